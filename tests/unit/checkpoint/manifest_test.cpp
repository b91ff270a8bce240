#include "checkpoint/manifest.h"

#include <fmt/format.h>

#include <random>

#include "checkpoint/safetensors.h"
#include "unit/checkpoint/support.h"

namespace octet {
namespace {

using namespace test;
using nlohmann::json;

json sample() {
  Manifest m;
  m.step = 5;
  m.files = {{"model-00001.safetensors", 1000}};
  m.groups["model"]["w"] = {
      Dtype::f32,
      {4, 6},
      {{{0, 0}, {2, 6}, "model-00001.safetensors", "a", 1}, {{2, 0}, {2, 6}, "model-00001.safetensors", "b", 0xfedcba9876543210u}}};
  m.state = {{"lr", 0.1}, {"n", 3}};
  return json::parse(to_text(m));
}

// Puts the right checksum on an edited manifest, so that the check behind it is what refuses.
std::string sealed(json m) {
  m.erase("checksum");
  const std::string text = m.dump();
  m["checksum"] = fmt::format("{:016x}", xxh64(text.data(), text.size()));
  return m.dump();
}

TEST(Manifest, RoundTrip) {
  const std::string text = sealed(sample());
  const Manifest m = parse_manifest(text, "m");
  EXPECT_EQ(m.step, 5);
  const auto& w = m.groups.at("model").at("w");
  EXPECT_EQ(w.shape, (Shape{4, 6}));
  ASSERT_EQ(w.boxes.size(), 2u);
  EXPECT_EQ(w.boxes[1].offset, (Shape{2, 0}));
  EXPECT_EQ(w.boxes[1].checksum, 0xfedcba9876543210u);
  EXPECT_EQ(m.state, (json{{"lr", 0.1}, {"n", 3}}));
  EXPECT_EQ(json::parse(to_text(m)), json::parse(text));
}

TEST(Manifest, HostileOnesAreRefusedWithAReason) {
  const auto edited = [](const std::function<void(json&)>& edit) {
    json m = sample();
    edit(m);
    return sealed(m);
  };
  const auto box = [](json& m) -> json& { return m["groups"]["model"]["w"]["boxes"][0]; };
  const std::string good = sealed(sample());
  std::string twice = good;
  twice.insert(1, "\"step\":5,");
  const std::tuple<const char*, std::string, const char*> table[] = {
      {"empty", "", "not valid JSON"},
      {"array", "[]", "not a JSON object"},
      {"duplicate key", twice, "duplicate"},
      {"deep", std::string(200000, '['), "nested deeper"},
      {"other format", edited([](json& m) { m["format"] = "x"; }), "format"},
      {"newer version", edited([](json& m) { m["format_version"] = 2; }), "format version 2"},
      {"no checksum", "{\"format\":\"octet checkpoint\",\"format_version\":1}", "checksum"},
      {"checksum of other content",
       [&] {
         json m = json::parse(good);
         m["state"]["n"] = 4;
         return m.dump();
       }(),
       "does not match"},
      {"negative step", edited([](json& m) { m["step"] = -1; }), "step"},
      {"fractional step", edited([](json& m) { m["step"] = 1.5; }), "step"},
      {"unknown key", edited([](json& m) { m["extra"] = 1; }), "unknown key"},
      {"no state", edited([](json& m) {
         m.erase("state");
         m["stat"] = 1;
       }),
       "stat"},
      {"no groups", edited([](json& m) { m.erase("groups"); }), "groups"},
      {"groups a list", edited([](json& m) { m["groups"] = json::array(); }), "groups is not an object"},
      {"group name", edited([](json& m) { m["groups"]["a/b"] = json::object(); }), "group name"},
      {"file leaves the directory", edited([](json& m) {
         m["files"]["../x.safetensors"] = {{"bytes", 1}};
       }),
       "file name"},
      {"file absolute", edited([](json& m) {
         m["files"]["/x.safetensors"] = {{"bytes", 1}};
       }),
       "file name"},
      {"file hidden", edited([](json& m) {
         m["files"]["..safetensors"] = {{"bytes", 1}};
       }),
       "file name"},
      {"file of another kind", edited([](json& m) {
         m["files"]["x.bin"] = {{"bytes", 1}};
       }),
       "file name"},
      {"file size", edited([](json& m) {
         m["files"]["x.safetensors"] = {{"bytes", -1}};
       }),
       "bytes"},
      {"unlisted file", edited([&](json& m) { box(m)["file"] = "other.safetensors"; }), "does not list"},
      {"dtype", edited([](json& m) { m["groups"]["model"]["w"]["dtype"] = "f16"; }), "unknown dtype"},
      {"dtype type", edited([](json& m) { m["groups"]["model"]["w"]["dtype"] = 7; }), "not a string"},
      {"shape overflow", edited([](json& m) {
         m["groups"]["model"]["w"]["shape"] = {4294967296, 4294967296};
       }),
       "too many elements"},
      {"shape bytes overflow", edited([](json& m) {
         m["groups"]["model"]["w"]["shape"] = {4611686018427387904, 1};
       }),
       "too many bytes"},
      {"five axes", edited([](json& m) {
         m["groups"]["model"]["w"]["shape"] = {1, 1, 1, 4, 6};
       }),
       "four axes"},
      {"no boxes", edited([](json& m) { m["groups"]["model"]["w"]["boxes"] = json::array(); }), "boxes"},
      {"too many boxes", edited([](json& m) { m["groups"]["model"]["w"]["boxes"] = json(20000, 0); }), "boxes"},
      {"box a number", edited([](json& m) { m["groups"]["model"]["w"]["boxes"][0] = 0; }), "not an object"},
      {"box axes", edited([&](json& m) { box(m)["shape"] = {12}; }), "number of axes"},
      {"hole", edited([&](json& m) {
         box(m)["shape"] = {1, 6};
       }),
       "hole"},
      {"overlap of one size", edited([&](json& m) {
         box(m)["offset"] = {2, 0};
       }),
       "overlap"},
      {"overlap", edited([&](json& m) {
         box(m)["shape"] = {3, 6};
       }),
       "overlap"},
      {"box sticks out", edited([&](json& m) {
         box(m)["offset"] = {0, 1};
       }),
       "sticks out"},
      {"offset overflow", edited([&](json& m) {
         box(m)["offset"] = {9223372036854775807, 0};
       }),
       "sticks out"},
      {"checksum length", edited([&](json& m) { box(m)["checksum"] = "1"; }), "16 hexadecimal"},
      {"checksum digits", edited([&](json& m) { box(m)["checksum"] = "000000000000000G"; }), "16 hexadecimal"},
      {"checksum a number", edited([&](json& m) { box(m)["checksum"] = 1; }), "not a string"},
  };
  for (const auto& [what, text, message] : table) {
    SCOPED_TRACE(what);
    const auto line = error_of(ExitCode::checkpoint, [&, t = &text] { parse_manifest(*t, "m.json"); });
    expect_contains(line, message);
    expect_contains(line, "m.json");
  }
}

TEST(Manifest, EveryTruncationIsRefused) {
  const std::string text = sealed(sample());
  for (size_t n = 0; n < text.size(); ++n) error_of(ExitCode::checkpoint, [&] { parse_manifest(text.substr(0, n), "m"); });
}

// The sweep along the first axis against the definition: every element lies in exactly one box.
TEST(Manifest, TilingAgreesWithCounting) {
  std::mt19937 random(3);
  const Shape shape{4, 5};
  int good = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<Box> boxes;
    if (round % 2) {  // a tiling cut at random, sometimes disturbed
      const int64_t cut = 1 + random() % 3, a = 1 + random() % 4, b = 1 + random() % 4;
      boxes = {{{0, 0}, {cut, a}, "", "", 0},
               {{0, a}, {cut, 5 - a}, "", "", 0},
               {{cut, b}, {4 - cut, 5 - b}, "", "", 0},
               {{cut, 0}, {4 - cut, b}, "", "", 0}};
      if (random() % 3 == 0) boxes[random() % 4].offset = Shape{static_cast<int64_t>(random() % 2), static_cast<int64_t>(random() % 2)};
    } else {
      for (int i = 0; i < 2; ++i) {
        const int64_t r = random() % 4, c = random() % 2 ? 0 : random() % 5;
        boxes.push_back({{r, c}, {static_cast<int64_t>(random() % 5), static_cast<int64_t>(random() % 3 ? 5 : random() % 6)}, "", "", 0});
      }
    }
    int count[4][5] = {};
    bool inside = true;
    for (const auto& b : boxes) {
      if (b.offset[0] + b.shape[0] > 4 || b.offset[1] + b.shape[1] > 5) {
        inside = false;
        break;
      }
      for (int64_t i = 0; i < b.shape[0]; ++i) {
        for (int64_t j = 0; j < b.shape[1]; ++j) ++count[b.offset[0] + i][b.offset[1] + j];
      }
    }
    const bool tiles = inside && std::all_of(&count[0][0], &count[0][0] + 20, [](int n) { return n == 1; });
    ASSERT_EQ(tiling_fault(shape, boxes).empty(), tiles) << round;
    good += tiles;
  }
  EXPECT_GT(good, 1000);
  EXPECT_EQ(tiling_fault({}, {{{}, {}, "", "", 0}}), "");
  EXPECT_NE(tiling_fault({}, {{{}, {}, "", "", 0}, {{}, {}, "", "", 0}}), "");
}

}  // namespace
}  // namespace octet

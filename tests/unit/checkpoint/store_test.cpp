#include "checkpoint/store.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <numeric>

#include "unit/checkpoint/support.h"

namespace octet {
namespace {

using namespace test;

TEST(Store, SavesAndLoadsTensorsAndState) {
  const TempDir dir;
  const fs::path checkpoints = dir.path() / "run" / "checkpoints";
  const SmallState state(3);
  const nlohmann::json sent = {{"step", 7},
                               {"lr", 0.1},
                               {"tiny", 5e-324},
                               {"seed", 18446744073709551615u},
                               {"sources", {{{"path", "data/x"}, {"tokens", 12345678901234}}}},
                               {"none", nullptr}};
  const fs::path saved = save_checkpoint(checkpoints, {.step = 7}, state.tensors(), sent);
  EXPECT_EQ(saved, checkpoints / "step_0000000007");
  EXPECT_EQ(listing(checkpoints), (std::vector<std::string>{"LATEST", "step_0000000007"}));
  EXPECT_EQ(slurp(checkpoints / "LATEST"), "step_0000000007\n");
  EXPECT_EQ(listing(saved),
            (std::vector<std::string>{"manifest.json", "model-00001.safetensors", "optimizer-00001.safetensors", "state-00001.safetensors"}));

  const auto c = Checkpoint::open(saved);
  EXPECT_EQ(c.step(), 7);
  EXPECT_EQ(c.state(), sent);
  EXPECT_TRUE(c.has("model", "model.norm.weight"));
  EXPECT_FALSE(c.has("optimizer", "model.norm.weight"));
  EXPECT_FALSE(c.has("nothing", "model.norm.weight"));
  const auto list = c.list();
  ASSERT_EQ(list.size(), 4u);
  EXPECT_EQ(list[0].group, "model");
  EXPECT_EQ(list[0].name, "model.layers.0.mlp.up_proj.weight");
  EXPECT_EQ(list[0].shape, (Shape{6, 4}));
  std::vector<float> weight(24);
  c.read("model", "model.layers.0.mlp.up_proj.weight", Dtype::f32, {6, 4}, weight.data());
  EXPECT_EQ(weight, state.weight);
  c.verify_all();
  expect_contains(error_of(ExitCode::checkpoint, [&] { c.read("model", "model.norm.weight", Dtype::f32, {5}, weight.data()); }),
                  "f32 [5] is expected");
  expect_contains(error_of(ExitCode::checkpoint, [&] { c.read("model", "model.norm.weight", Dtype::bf16, {4}, weight.data()); }), "bf16");
  expect_contains(error_of(ExitCode::checkpoint, [&] { c.read("model", "absent", Dtype::f32, {4}, weight.data()); }), "no tensor");
}

// The layout of the bytes must not depend on the order in which tensors are handed over.
TEST(Store, FilesAreAFunctionOfTheContent) {
  const TempDir dir;
  const SmallState state(3);
  auto tensors = state.tensors();
  const auto a = save_checkpoint(dir.path() / "a", {.step = 1}, tensors, {{"x", 1}});
  std::reverse(tensors.begin(), tensors.end());
  const auto b = save_checkpoint(dir.path() / "b", {.step = 1}, tensors, {{"x", 1}});
  ASSERT_EQ(listing(a), listing(b));
  for (const auto& file : listing(a)) EXPECT_EQ(slurp(a / file), slurp(b / file)) << file;
}

TEST(Store, ShardsStayBelowTheLimitAndALargeTensorStandsAlone) {
  const TempDir dir;
  std::vector<float> values(1000);
  std::iota(values.begin(), values.end(), 0.0f);
  std::vector<TensorToSave> tensors;
  for (int i = 0; i < 10; ++i) tensors.push_back({"model", fmt::format("t{}", i), Dtype::f32, {10 + i}, values.data() + i});
  tensors.push_back({"model", "t5.large", Dtype::f32, {500}, values.data()});
  SaveOptions options;
  options.max_shard_bytes = 200;
  const auto saved = save_checkpoint(dir.path(), options, tensors, nullptr);
  const auto c = Checkpoint::open(saved);
  EXPECT_GE(c.manifest().files.size(), 4u);
  for (const auto& [file, bytes] : c.manifest().files) {
    const auto shard = SafetensorsFile::open(saved / file);
    uint64_t data = 0;
    for (const auto& t : shard.tensors()) data += t.end - t.begin;
    EXPECT_TRUE(data <= 200 || (shard.tensors().size() == 1 && shard.tensors()[0].name == "t5.large")) << file;
    EXPECT_EQ(shard.metadata().at("format"), "pt");
  }
  for (const auto& t : tensors) {
    std::vector<float> out(static_cast<size_t>(t.shape.elements()));
    c.read("model", t.name, t.dtype, t.shape, out.data());
    EXPECT_EQ(std::memcmp(out.data(), t.data, out.size() * 4), 0) << t.name;
  }
}

// A tensor saved as boxes over both axes reads back whole.
TEST(Store, BoxesAreAssembled) {
  const TempDir dir;
  constexpr int64_t a = 3, b = 5, d = 7;
  std::vector<int32_t> global(a * b * d);
  std::iota(global.begin(), global.end(), 100);
  struct Part {
    Shape offset, shape;
    std::vector<int32_t> values;
  };
  std::vector<Part> parts = {
      {{0, 0, 0}, {2, 5, 3}, {}}, {{0, 0, 3}, {2, 2, 4}, {}}, {{0, 2, 3}, {2, 3, 4}, {}}, {{2, 0, 0}, {1, 5, 7}, {}}, {{1, 1, 1}, {0, 1, 1}, {}}};
  std::vector<TensorToSave> tensors;
  for (auto& p : parts) {
    for (int64_t i = 0; i < p.shape[0]; ++i) {
      for (int64_t j = 0; j < p.shape[1]; ++j) {
        for (int64_t k = 0; k < p.shape[2]; ++k) {
          p.values.push_back(global[static_cast<size_t>(((i + p.offset[0]) * b + j + p.offset[1]) * d + k + p.offset[2])]);
        }
      }
    }
    tensors.push_back({"model", "w", Dtype::i32, p.shape, p.values.data(), Shape{a, b, d}, p.offset});
  }
  SaveOptions options;
  options.max_shard_bytes = 150;
  const auto c = Checkpoint::open(save_checkpoint(dir.path(), options, tensors, nullptr));
  EXPECT_GT(c.manifest().files.size(), 1u);
  ASSERT_EQ(c.list().size(), 1u);
  std::vector<int32_t> out(global.size(), -1);
  c.read("model", "w", Dtype::i32, {a, b, d}, out.data());
  EXPECT_EQ(out, global);
  c.verify_all();
}

TEST(Store, MisuseIsOurBugAndWritesNothing) {
  const TempDir dir;
  const fs::path checkpoints = dir.path() / "c";
  const float x[8] = {};
  const auto refused = [&](const std::vector<TensorToSave>& tensors, const nlohmann::json& state = nullptr) {
    return error_of(ExitCode::internal, [&] { save_checkpoint(checkpoints, {.step = 1}, tensors, state); });
  };
  expect_contains(refused({{"model", "w", Dtype::f32, {2}, x}, {"model", "w", Dtype::f32, {2}, x}}), "saved twice");
  expect_contains(refused({{"../up", "w", Dtype::f32, {2}, x}}), "group name");
  expect_contains(refused({{"model", "w", Dtype::f32, {2, 2}, x, Shape{4, 2}, Shape{0, 0}}}), "hole");
  expect_contains(
      refused({{"model", "w", Dtype::f32, {2, 2}, x, Shape{3, 2}, Shape{0, 0}}, {"model", "w", Dtype::f32, {2, 2}, x, Shape{3, 2}, Shape{1, 0}}}),
      "overlap");
  expect_contains(refused({{"model", "w", Dtype::f32, {2, 2}, x, Shape{3, 2}, Shape{2, 0}}}), "sticks out");
  expect_contains(refused({}, {{"best", {{"loss", std::numeric_limits<double>::infinity()}}}}), "/best/loss");
  expect_contains(refused({}, {{"path", "a\xff"}}), "not UTF-8");
  nlohmann::json deep = 1;
  for (int i = 0; i < 60; ++i) deep = nlohmann::json::array({deep});
  expect_contains(refused({}, deep), "nested deeper");
  EXPECT_FALSE(fs::exists(checkpoints));
}

TEST(Store, StrictLoadListsEveryDifference) {
  const TempDir dir;
  const auto c = Checkpoint::open(save_small(dir.path(), 1, 1));
  c.check_names("model", {{"model.norm.weight", Dtype::f32, {4}}, {"model.layers.0.mlp.up_proj.weight", Dtype::f32, {6, 4}}});
  const auto line = error_of(ExitCode::checkpoint, [&] {
    c.check_names("model",
                  {{"lm_head.weight", Dtype::f32, {4, 4}}, {"model.embed.weight", Dtype::f32, {4, 4}}, {"model.norm.weight", Dtype::f32, {8}}});
  });
  expect_contains(line, "2 missing: \"lm_head.weight\", \"model.embed.weight\"");
  expect_contains(line, "1 unexpected: \"model.layers.0.mlp.up_proj.weight\"");
  expect_contains(line, "\"model.norm.weight\" is f32 [4] instead of f32 [8]");
  expect_contains(error_of(ExitCode::checkpoint, [&] { c.check_names("absent", {{"w", Dtype::f32, {1}}}); }), "1 missing");
  std::vector<ExpectedTensor> many;
  for (int i = 0; i < 30; ++i) many.push_back({fmt::format("t{}", i), Dtype::f32, {1}});
  expect_contains(error_of(ExitCode::checkpoint, [&] { c.check_names("state", many); }), "and 20 more");
}

TEST(Store, EveryFlippedByteOfEveryFileIsDetected) {
  const TempDir dir;
  const fs::path saved = save_small(dir.path(), 1, 1);
  for (const auto& file : listing(saved)) {
    const std::string content = slurp(saved / file);
    for (size_t i = 0; i < content.size(); ++i) {
      std::string damaged = content;
      damaged[i] = static_cast<char>(static_cast<unsigned char>(damaged[i]) ^ (1u << (i % 8)));
      spill(saved / file, damaged);
      try {
        const auto c = Checkpoint::open(saved);
        c.verify_all();
        // Only what carries no information may pass: layout of the JSON, and the shard's own free-form "format" entry.
        EXPECT_EQ(fill_of(saved), 1.0f);
        if (file == "manifest.json") {
          EXPECT_TRUE(content[i] == ' ' || content[i] == '\n') << i;
        } else {
          EXPECT_LT(i, content.find('}')) << file << " byte " << i;
        }
      } catch (const Error& e) {
        EXPECT_EQ(static_cast<int>(e.code), static_cast<int>(ExitCode::checkpoint)) << e.what();
      }
    }
    spill(saved / file, content);
  }
  EXPECT_EQ(fill_of(saved), 1.0f);
}

TEST(Store, ReadVerifiesTheChecksum) {
  const TempDir dir;
  const fs::path saved = save_small(dir.path(), 1, 1), shard = saved / "model-00001.safetensors";
  flip_bit(shard, fs::file_size(shard) - 1);
  const auto c = Checkpoint::open(saved);
  std::vector<float> out(24);
  const auto line = error_of(ExitCode::checkpoint, [&] {
    c.read("model", "model.layers.0.mlp.up_proj.weight", Dtype::f32, {6, 4}, out.data());
    c.read("model", "model.norm.weight", Dtype::f32, {4}, out.data());
  });
  expect_contains(line, shard.string());
  expect_contains(line, "is damaged");
}

TEST(Store, MissingTruncatedAndForeignShards) {
  const TempDir dir;
  const fs::path saved = save_small(dir.path(), 1, 1), shard = saved / "model-00001.safetensors";
  const std::string content = slurp(shard);
  fs::remove(shard);
  expect_contains(error_of(ExitCode::checkpoint, [&] { Checkpoint::open(saved); }), shard.string());
  for (size_t n = 0; n < content.size(); n += 5) {
    spill(shard, content.substr(0, n));
    error_of(ExitCode::checkpoint, [&] { Checkpoint::open(saved); });
  }
  // A sound safetensors file of the right size with other tensors in it.
  std::string renamed = content;
  renamed.replace(renamed.find("model.norm"), 10, "model.nurm");
  spill(shard, renamed);
  expect_contains(error_of(ExitCode::checkpoint, [&] { Checkpoint::open(saved); }), "not in the file");
  fs::remove(saved / "manifest.json");
  expect_contains(error_of(ExitCode::checkpoint, [&] { Checkpoint::open(saved); }), "not a complete checkpoint");
  expect_contains(error_of(ExitCode::checkpoint, [&] { Checkpoint::open(dir.path() / "absent"); }), "no such checkpoint");
}

TEST(Retention, KeepsTheNewestAndNeverTheFuture) {
  const TempDir dir;
  for (int64_t step : {10, 20, 30}) save_small(dir.path(), step, static_cast<float>(step), 2);
  EXPECT_EQ(listing(dir.path()), (std::vector<std::string>{"LATEST", "step_0000000020", "step_0000000030"}));
  save_small(dir.path(), 40, 40, 0);  // 0 keeps all
  EXPECT_EQ(listing(dir.path()).size(), 4u);
  // A run taken back to step 20 saves 25: 30 and 40 are neither counted nor deleted.
  save_small(dir.path(), 25, 25, 1);
  EXPECT_EQ(listing(dir.path()), (std::vector<std::string>{"LATEST", "step_0000000025", "step_0000000030", "step_0000000040"}));
  EXPECT_EQ(slurp(dir.path() / "LATEST"), "step_0000000025\n");
}

TEST(Retention, LeavesForeignFilesAlone) {
  const TempDir dir;
  for (const char* name : {"step_1", "step_00000000011x", "step_-000000001", "notes.txt", "step_0000000001.bak", "x.tmp.999999999"})
    fs::create_directory(dir.path() / name);
  save_small(dir.path(), 10, 10, 1);
  save_small(dir.path(), 20, 20, 1);
  EXPECT_EQ(listing(dir.path()).size(), 8u);
}

TEST(StepName, OnlyTheCanonicalSpelling) {
  EXPECT_EQ(step_directory_name(123), "step_0000000123");
  EXPECT_EQ(parse_step_name("step_0000000123")->step, 123);
  EXPECT_TRUE(parse_step_name("step_0000000123.replaced")->replaced);
  EXPECT_EQ(parse_step_name(step_directory_name(12345678901))->step, 12345678901);
  for (const char* bad : {"", "step_", "step_123", "step_00000000123", "step_+000000123", "step_-000000123", "step_0000000123 ", "step_000000012x",
                          "STEP_0000000123", "step_99999999999999999999", "step_0000000123/..", ".replaced"}) {
    EXPECT_FALSE(parse_step_name(bad)) << bad;
  }
}

}  // namespace
}  // namespace octet

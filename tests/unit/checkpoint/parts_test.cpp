// Checkpoint::read_part against read.
#include <fmt/format.h>

#include <cstring>
#include <random>

#include "unit/checkpoint/writers.h"

namespace octet {
namespace {

using namespace test;

struct Part {
  Shape offset, shape;
  std::vector<char> bytes;
};

// Cuts a box at random places, which may leave parts without elements.
void cut(const Shape& offset, const Shape& shape, int depth, std::mt19937& random, std::vector<Part>& out) {
  if (depth == 0 || shape.rank() == 0) {
    out.push_back({offset, shape, {}});
    return;
  }
  const int axis = static_cast<int>(random() % static_cast<unsigned>(shape.rank()));
  const int64_t at = static_cast<int64_t>(random() % static_cast<unsigned>(shape[axis] + 1));
  cut(offset, shape.with(axis, at), depth - 1, random, out);
  cut(offset.with(axis, offset[axis] + at), shape.with(axis, shape[axis] - at), depth - 1, random, out);
}

void take(Part& part, const Shape& global, size_t size, const std::vector<char>& from) {
  for (int64_t i = 0; i < part.shape.elements(); ++i) {
    int64_t rest = i, at = 0, stride = 1;
    for (int axis = global.rank() - 1; axis >= 0; --axis) {
      at += (part.offset[axis] + rest % part.shape[axis]) * stride;
      rest /= part.shape[axis];
      stride *= global[axis];
    }
    part.bytes.insert(part.bytes.end(), &from[static_cast<size_t>(at) * size], &from[static_cast<size_t>(at) * size] + size);
  }
}

std::vector<char> random_bytes(size_t n, std::mt19937& random) {
  std::vector<char> bytes(n);
  for (char& b : bytes) b = static_cast<char>(random());
  return bytes;
}

// Rows of the first axis, whole.
void read_rows(const Checkpoint& c, std::string_view tensor, Dtype dtype, const Shape& shape, int64_t first, int64_t rows, void* out) {
  Shape offset = shape;
  for (int axis = 0; axis < shape.rank(); ++axis) offset = offset.with(axis, axis == 0 ? first : 0);
  c.read_part("model", tensor, dtype, shape, offset, shape.rank() == 0 ? shape : shape.with(0, rows), out);
}

// Reads into the middle of a buffer, whose ends must stay as they were.
std::vector<char> read_guarded(const Checkpoint& c, Dtype dtype, const Shape& shape, const Shape& offset, const Shape& part) {
  constexpr size_t guard = 64;
  const size_t bytes = static_cast<size_t>(part.elements()) * size_bytes(dtype);
  std::vector<char> buffer(bytes + 2 * guard, 'g');
  c.read_part("model", "w", dtype, shape, offset, part, buffer.data() + guard);
  EXPECT_EQ(std::string(buffer.data(), guard), std::string(guard, 'g'));
  EXPECT_EQ(std::string(buffer.data() + guard + bytes, guard), std::string(guard, 'g'));
  return {buffer.begin() + guard, buffer.end() - guard};
}

TEST(ReadPart, IsThatPartOfTheWholeTensor) {
  std::mt19937 random(7);
  constexpr Dtype dtypes[] = {Dtype::f32, Dtype::bf16, Dtype::u8, Dtype::e4m3};
  for (int round = 0; round < 60; ++round) {
    const TempDir dir;
    std::vector<int64_t> dims;
    for (int axis = 0; axis < round % 5; ++axis) dims.push_back(static_cast<int64_t>(random() % 7 + (random() % 8 > 0 ? 1 : 0)));
    const Shape shape = *make_shape(dims);
    const Dtype dtype = dtypes[random() % 4];
    SCOPED_TRACE(fmt::format("round {}: {} {}", round, name(dtype), to_string(shape)));
    const auto values = random_bytes(static_cast<size_t>(shape.elements()) * size_bytes(dtype), random);
    std::vector<Part> parts;
    const Shape origin = *make_shape(std::vector<int64_t>(dims.size(), 0));
    cut(origin, shape, shape.elements() == 0 ? 0 : static_cast<int>(random() % 4), random, parts);
    // Parts without elements may share their place with another, which one file cannot hold.
    if (shape.elements() > 0) std::erase_if(parts, [](const Part& p) { return p.shape.elements() == 0; });
    std::vector<TensorToSave> tensors;
    for (Part& p : parts) {
      take(p, shape, size_bytes(dtype), values);
      tensors.push_back({"model", "w", dtype, p.shape, p.bytes.data(), shape, p.offset});
    }
    const auto c = Checkpoint::open(save_checkpoint(dir.path(), {.step = 1}, tensors, nullptr));
    std::vector<char> all(values.size());
    c.read("model", "w", dtype, shape, all.data());
    EXPECT_EQ(all, values);
    for (int trial = 0; trial < 40; ++trial) {
      Part wanted{origin, shape, {}};
      for (int axis = 0; axis < shape.rank(); ++axis) {
        // Half of the axes whole, so that runs of every length come up.
        const int64_t first = random() % 2 ? 0 : static_cast<int64_t>(random() % static_cast<unsigned>(shape[axis] + 1));
        const int64_t n = first == 0 && random() % 2 ? shape[axis] : static_cast<int64_t>(random() % static_cast<unsigned>(shape[axis] - first + 1));
        wanted.offset = wanted.offset.with(axis, first);
        wanted.shape = wanted.shape.with(axis, n);
      }
      take(wanted, shape, size_bytes(dtype), values);
      EXPECT_EQ(read_guarded(c, dtype, shape, wanted.offset, wanted.shape), wanted.bytes) << to_string(wanted.offset) << " + " << to_string(wanted.shape);
    }
  }
}

// Boxes of more than one piece, whose rows cross the pieces' edges.
TEST(ReadPart, LargeBoxesInPieces) {
  const TempDir dir;
  std::mt19937 random(11);
  const Shape shape{6000, 2000};
  const auto values = random_bytes(12'000'000, random);
  std::vector<Part> parts = {{{0, 0}, {5000, 1500}, {}}, {{0, 1500}, {5000, 500}, {}}, {{5000, 0}, {1000, 2000}, {}}};
  std::vector<TensorToSave> tensors;
  for (Part& p : parts) {
    for (int64_t r = 0; r < p.shape[0]; ++r) {
      const auto begin = values.begin() + (p.offset[0] + r) * 2000 + p.offset[1];
      p.bytes.insert(p.bytes.end(), begin, begin + p.shape[1]);
    }
    tensors.push_back({"model", "w", Dtype::u8, p.shape, p.bytes.data(), shape, p.offset});
  }
  const auto c = Checkpoint::open(save_checkpoint(dir.path(), {.step = 1}, tensors, nullptr));
  for (const auto& [first, n] : {std::pair<int64_t, int64_t>{0, 6000}, {2795, 3}, {1, 4999}, {4000, 2000}, {5999, 1}, {5000, 1000}}) {
    for (const auto& [column, columns] : {std::pair<int64_t, int64_t>{0, 2000}, {0, 1000}, {1400, 200}, {1500, 500}}) {
      Part wanted{{first, column}, {n, columns}, {}};
      take(wanted, shape, 1, values);
      EXPECT_TRUE(read_guarded(c, Dtype::u8, shape, wanted.offset, wanted.shape) == wanted.bytes) << first << " + " << n << ", " << column << " + " << columns;
    }
  }

  // What bounds the memory: pieces of one size, one behind the other.
  const auto file = SafetensorsFile::open(c.path() / "model-00001.safetensors");
  uint64_t expected = 0;
  size_t largest = 0;
  const auto sum = file.read_pieces(
      "w@[0, 0]", [](uint64_t, size_t) { return nullptr; },
      [&](uint64_t at, const void* data, size_t n) {
        EXPECT_EQ(at, expected);
        EXPECT_EQ(std::memcmp(data, parts[0].bytes.data() + at, n), 0);
        expected += n;
        largest = std::max(largest, n);
      });
  EXPECT_EQ(expected, 7'500'000u);
  EXPECT_EQ(largest, size_t{4} << 20);
  EXPECT_EQ(sum, xxh64(parts[0].bytes.data(), parts[0].bytes.size()));
}

TEST(ReadPart, ChecksEveryBoxItTouchesAndNoOther) {
  const TempDir dir;
  const auto saved = save_together(3, [&](const SaveGroup& g) { return save_share(dir.path(), 1, 1, g); })[0].path;  // rows 0-3, 4, 5 of the weight
  const std::string weight = "model.layers.0.mlp.up_proj.weight";
  const fs::path shard = saved / "model-r0000-00001.safetensors";
  const auto file = SafetensorsFile::open(shard);
  const TensorInfo* box = file.find(weight + "@[0, 0]");
  ASSERT_TRUE(box);
  flip_bit(shard, box->end - 1);  // in row 3
  const auto c = Checkpoint::open(saved);
  std::vector<float> out(24);
  for (const auto& range : {std::pair<int64_t, int64_t>{0, 1}, {3, 1}, {3, 2}, {0, 6}}) {
    const auto line = error_of(ExitCode::checkpoint, [&] { read_rows(c, weight, Dtype::f32, {6, 4}, range.first, range.second, out.data()); });
    expect_contains(line, shard.string());
    expect_contains(line, "is damaged");
  }
  read_rows(c, weight, Dtype::f32, {6, 4}, 4, 2, out.data());
  EXPECT_EQ(std::vector<float>(out.begin(), out.begin() + 8), std::vector<float>(8, 1.0f));
  read_rows(c, weight, Dtype::f32, {6, 4}, 2, 0, out.data());
}

TEST(ReadPart, ErrorsAreThoseOfRead) {
  const TempDir dir;
  const auto c = Checkpoint::open(save_small(dir.path(), 1, 1));
  std::vector<float> out(24);
  const auto refused = [&](ExitCode code, const char* tensor, Dtype dtype, const Shape& shape, int64_t first, int64_t n) {
    return error_of(code, [&] { read_rows(c, tensor, dtype, shape, first, n, out.data()); });
  };
  const char* norm = "model.norm.weight";
  expect_contains(refused(ExitCode::checkpoint, norm, Dtype::f32, {5}, 0, 1), "f32 [5] is expected");
  expect_contains(refused(ExitCode::checkpoint, norm, Dtype::bf16, {4}, 0, 1), "bf16");
  expect_contains(refused(ExitCode::checkpoint, "absent", Dtype::f32, {4}, 0, 1), "no tensor");
  for (const auto& [first, n] : {std::pair<int64_t, int64_t>{-1, 1}, {0, -1}, {0, 5}, {4, 1}, {5, 0}, {INT64_MAX, INT64_MAX}}) {
    expect_contains(refused(ExitCode::internal, norm, Dtype::f32, {4}, first, n), "part");
  }
}

}  // namespace
}  // namespace octet

#include "warpgroup.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "numerics/bf16.h"

namespace simt {
namespace {

constexpr int rows = 64, contraction = 16;

// An element's address by a matrix descriptor with the 128-byte swizzle (PTX ISA, "Matrix descriptor format" and "Canonical layouts"); offsets within shared memory.
struct Descriptor {
  size_t start, leading, stride;

  explicit Descriptor(uint64_t bits) : start((bits & 0x3FFF) << 4), leading((bits >> 16 & 0x3FFF) << 4), stride((bits >> 32 & 0x3FFF) << 4) {
    if (bits >> 62 != 1) throw std::runtime_error("simt: a matrix descriptor without the 128-byte swizzle");
  }
  // Of element k of a row, where k is contiguous.
  size_t by_row(int row, int k) const { return start + static_cast<size_t>(row / 8) * stride + static_cast<size_t>(row % 8) * 128 + static_cast<size_t>(k) * 2; }
  // Of a column, where columns are contiguous.
  size_t by_column(int column, int k) const {
    return start + static_cast<size_t>(column / 64) * leading + static_cast<size_t>(k / 8) * stride + static_cast<size_t>(k % 8) * 128 + static_cast<size_t>(column % 64) * 2;
  }
};

float element(size_t offset) {
  offset ^= (offset >> 7 & 7) << 4;
  octet::bf16 x;
  memcpy(&x, dynamic_shared_memory() + offset, sizeof x);
  return octet::to_float(x);
}

float half_of(uint32_t word, int half) { return octet::float_from_bits(half ? word & 0xFFFF0000u : word << 16); }

}  // namespace

void Warpgroup::issue(WarpgroupThread& thread, int index, const Product& product, bool at_once) {
  const auto place = static_cast<size_t>(thread.issued_++ - first_);
  if (place == products_.size()) products_.emplace_back();
  Shared& p = products_.at(place);
  const auto i = static_cast<size_t>(index);
  p.part[i] = product;
  bool chained = false;   // to an unfinished product with the same d
  for (size_t other = 0; other < place; ++other) chained |= products_[other].part[i].d == product.d;
  if (!chained) p.before[i].assign(product.d, product.d + product.n / 2);
  std::fill(product.d, product.d + product.n / 2, std::numeric_limits<float>::quiet_NaN());
  if (++p.arrived == warpgroup_size && at_once) execute(first_ + static_cast<int64_t>(place) + 1);
}

bool Warpgroup::issued(int64_t end) const {
  for (int64_t i = first_; i < end; ++i) {
    const auto place = static_cast<size_t>(i - first_);
    if (place >= products_.size() || products_[place].arrived < warpgroup_size) return false;
  }
  return true;
}

bool Warpgroup::execute_wanted() {
  if (wanted_ <= first_ || !issued(wanted_)) return false;
  execute(wanted_);
  return true;
}

void Warpgroup::execute(int64_t end) {
  for (; first_ < end; ++first_) {
    compute(products_.front());
    products_.pop_front();
  }
}

void Warpgroup::compute(const Shared& p) {
  const Product& any = p.part[0];
  const int n = any.n;
  for (const Product& x : p.part) {
    if (x.n != n || x.a != any.a || x.b != any.b || x.transposed_b != any.transposed_b || x.accumulate != any.accumulate || !x.a_registers != !any.a_registers) {
      throw std::runtime_error("simt: the threads of a warpgroup issue different products");
    }
  }
  std::vector<float> a(rows * contraction), b(static_cast<size_t>(contraction * n)), d(static_cast<size_t>(rows * n));
  const Descriptor of_a(any.a_registers ? uint64_t{1} << 62 : any.a), of_b(any.b);
  for (int r = 0; r < rows; ++r) {
    for (int k = 0; k < contraction; ++k) {
      const Product& owner = p.part[static_cast<size_t>(r / 16 * 32 + r % 8 * 4 + k % 8 / 2)];
      a[static_cast<size_t>(r * contraction + k)] = any.a_registers ? half_of(owner.a_registers[r % 16 / 8 + k / 8 * 2], k % 2) : element(of_a.by_row(r, k));
    }
  }
  for (int k = 0; k < contraction; ++k) {
    for (int c = 0; c < n; ++c) b[static_cast<size_t>(k * n + c)] = element(any.transposed_b ? of_b.by_column(c, k) : of_b.by_row(c, k));
  }
  const auto register_of = [](int r, int c) { return static_cast<size_t>(c / 8 * 4 + r % 16 / 8 * 2 + c % 2); };
  const auto thread_of = [](int r, int c) { return static_cast<size_t>(r / 16 * 32 + r % 8 * 4 + c % 8 / 2); };
  for (int r = 0; r < rows; ++r) {
    float* row = &d[static_cast<size_t>(r * n)];
    for (int c = 0; c < n; ++c) row[c] = any.accumulate ? p.previous(thread_of(r, c))[register_of(r, c)] : 0.0f;
    for (int k = 0; k < contraction; ++k) {
      const float x = a[static_cast<size_t>(r * contraction + k)];
      for (int c = 0; c < n; ++c) row[c] = std::fma(x, b[static_cast<size_t>(k * n + c)], row[c]);
    }
    for (int c = 0; c < n; ++c) p.part[thread_of(r, c)].d[register_of(r, c)] = row[c];
  }
}

}  // namespace simt

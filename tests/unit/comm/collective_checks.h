// Every operation of a World's groups against plain loops, bit for bit: run by threads (unit_comm) and by MPI processes (tests/dist/mpi_check.cpp).
//
// What a rank holds is a function of (rank, case, element), so each rank knows what all others started with. A check throws std::runtime_error.
#pragma once
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "comm/world.h"
#include "numerics/bf16.h"

namespace octet::comm_checks {

inline uint64_t scramble(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// Magnitudes over 2^24, so that another order of a sum gives other bits; with NaN, infinities and zeros of both signs here and there.
template <class T>
T value(int rank, int test, int64_t i) {
  const uint64_t h = scramble((static_cast<uint64_t>(test) << 48) ^ (static_cast<uint64_t>(rank) << 40) ^ static_cast<uint64_t>(i));
  if constexpr (std::is_same_v<T, bf16>) {
    return to_bf16(value<float>(rank, test, i));
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(h);
  } else {
    if (h % 97 == 0) return std::numeric_limits<T>::quiet_NaN();
    if (h % 89 == 0) return std::numeric_limits<T>::infinity();
    if (h % 83 == 0) return -std::numeric_limits<T>::infinity();
    if (h % 7 == 0) return h & 8 ? T(0) : -T(0);
    const T mantissa = static_cast<T>(static_cast<double>(h >> 12) * 0x1p-52 - 0.5);
    return std::ldexp(mantissa, static_cast<int>(h % 25) - 12);
  }
}

template <class T>
constexpr Dtype dtype_of() {
  if (std::is_same_v<T, float>) return Dtype::f32;
  if (std::is_same_v<T, double>) return Dtype::f64;
  if (std::is_same_v<T, int64_t>) return Dtype::i64;
  return sizeof(T) == 2 ? Dtype::bf16 : Dtype::u8;
}

template <class T>
Tensor tensor(std::vector<T>& x) {
  return {x.data(), dtype_of<T>(), {static_cast<int64_t>(x.size())}};
}

template <class T>
std::vector<T> filled(int rank, int test, int64_t count) {
  std::vector<T> x(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) x[static_cast<size_t>(i)] = value<T>(rank, test, i);
  return x;
}

template <class T>
bool same(T a, T b) {   // any NaN is any other: which of two an addition keeps is the compiler's choice
  if constexpr (std::is_same_v<T, bf16>) {
    return same(to_float(a), to_float(b));
  } else {
    return std::memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b);
  }
}

template <class T>
auto shown(T x) {
  if constexpr (std::is_same_v<T, bf16>) {
    return to_float(x);
  } else {
    return x;
  }
}

template <class T>
void expect(const Comm& comm, const char* what, const std::vector<T>& x, int64_t first, int64_t count, const std::function<T(int64_t)>& want) {
  for (int64_t i = first; i < first + count; ++i) {
    if (same(x[static_cast<size_t>(i)], want(i))) continue;
    throw std::runtime_error(fmt::format("{} of {} {} in group {} of {}: rank {} has {} at {}, not {}", what, x.size(), name(dtype_of<T>()), comm.name(), comm.size(), comm.rank(),
                                         shown(x[static_cast<size_t>(i)]), i, shown(want(i))));
  }
}

// What the ranks of a group make of element i. Values depend on the world's ranks.
template <class T>
T reduced(const std::vector<int>& ranks, int test, Reduce op, int64_t i) {
  if constexpr (std::is_same_v<T, bf16>) {   // a sum in FP32, rounded once
    float all = to_float(value<bf16>(ranks[0], test, i));
    for (size_t k = 1; k < ranks.size(); ++k) all += to_float(value<bf16>(ranks[k], test, i));
    return to_bf16(all);
  } else {
    T all = value<T>(ranks[0], test, i);
    for (size_t k = 1; k < ranks.size(); ++k) {
      const T x = value<T>(ranks[k], test, i);
      if (op == Reduce::max) {
        if (all == all && (x != x || x > all)) all = x;
      } else if constexpr (std::is_integral_v<T>) {
        all = static_cast<T>(static_cast<uint64_t>(all) + static_cast<uint64_t>(x));
      } else {
        all = all + x;
      }
    }
    return all;
  }
}

template <class T>
void check_all_reduce(Comm& comm, const std::vector<int>& ranks, int test, int64_t count, Reduce op) {
  std::vector<T> x = filled<T>(ranks[static_cast<size_t>(comm.rank())], test, count);
  comm.wait(comm.all_reduce(tensor(x), op));
  expect<T>(comm, op == Reduce::sum ? "sum" : "max", x, 0, count, [&](int64_t i) { return reduced<T>(ranks, test, op, i); });
}

// Pieces of very different sizes, some of none: by `kind` even, falling, all of one rank's, only for odd ranks.
inline Pieces pieces(int64_t count, int n, int kind) {
  if (kind == 0) return even_pieces(count, n);
  Pieces p{{0}};
  for (int r = 1; r < n; ++r) {
    const int64_t left = count - p.begin.back();
    const int64_t mine = kind == 1 ? left - left / 3 : kind == 2 ? (r - 1 == count % n ? left : 0) : (r - 1) % 2 ? left / 2 : 0;
    p.begin.push_back(p.begin.back() + mine);
  }
  p.begin.push_back(count);
  return p;
}

template <class T>
void check_reduce_scatter(Comm& comm, const std::vector<int>& ranks, int test, int64_t count, int kind) {
  std::vector<T> x = filled<T>(ranks[static_cast<size_t>(comm.rank())], test, count);
  const Pieces p = pieces(count, comm.size(), kind);
  comm.wait(comm.reduce_scatter(tensor(x), p));
  expect<T>(comm, "reduce_scatter", x, p.first(comm.rank()), p.count(comm.rank()), [&](int64_t i) { return reduced<T>(ranks, test, Reduce::sum, i); });
}

template <class T>
void check_all_gather(Comm& comm, const std::vector<int>& ranks, int test, int64_t count, int kind) {
  std::vector<T> x = filled<T>(ranks[static_cast<size_t>(comm.rank())], test, count);
  const Pieces p = pieces(count, comm.size(), kind);
  comm.wait(comm.all_gather(tensor(x), p));
  for (int r = 0; r < comm.size(); ++r) {
    expect<T>(comm, "all_gather", x, p.first(r), p.count(r), [&](int64_t i) { return value<T>(ranks[static_cast<size_t>(r)], test, i); });
  }
}

template <class T>
void check_broadcast(Comm& comm, const std::vector<int>& ranks, int test, int64_t count, int root) {
  std::vector<T> x = filled<T>(ranks[static_cast<size_t>(comm.rank())], test, count);
  comm.wait(comm.broadcast(tensor(x), root));
  expect<T>(comm, "broadcast", x, 0, count, [&](int64_t i) { return value<T>(ranks[static_cast<size_t>(root)], test, i); });
}

// Tensors of a list, each in memory of its own; the empty ones have none.
template <class T>
struct List {
  List(int rank, int& test, const std::vector<int64_t>& counts) : first(test + 1) {
    for (int64_t count : counts) x.push_back(filled<T>(rank, ++test, count));
  }
  std::vector<Tensor> tensors() {
    std::vector<Tensor> all;
    for (auto& t : x) all.push_back(tensor(t));
    return all;
  }
  // Each tensor cut in another way than the one before it.
  Pieces cut(size_t i, int n, int kind) const { return pieces(static_cast<int64_t>(x[i].size()), n, (kind + static_cast<int>(i)) % 4); }
  std::vector<TensorInPieces> in_pieces(int n, int kind) {
    std::vector<TensorInPieces> all;
    for (size_t i = 0; i < x.size(); ++i) all.push_back({tensor(x[i]), cut(i, n, kind)});
    return all;
  }
  std::vector<std::vector<T>> x;
  int first;   // the first tensor's case
};

template <class T>
void check_list_all_reduce(Comm& comm, const std::vector<int>& ranks, int& test, const std::vector<int64_t>& counts, Reduce op) {
  List<T> list(ranks[static_cast<size_t>(comm.rank())], test, counts);
  comm.wait(comm.all_reduce(list.tensors(), op));
  for (size_t k = 0; k < counts.size(); ++k) {
    expect<T>(comm, "all_reduce of a list", list.x[k], 0, counts[k], [&](int64_t i) { return reduced<T>(ranks, list.first + static_cast<int>(k), op, i); });
  }
}

template <class T>
void check_list_reduce_scatter(Comm& comm, const std::vector<int>& ranks, int& test, const std::vector<int64_t>& counts, int kind) {
  List<T> list(ranks[static_cast<size_t>(comm.rank())], test, counts);
  comm.wait(comm.reduce_scatter(list.in_pieces(comm.size(), kind)));
  for (size_t k = 0; k < counts.size(); ++k) {
    const Pieces p = list.cut(k, comm.size(), kind);
    expect<T>(comm, "reduce_scatter of a list", list.x[k], p.first(comm.rank()), p.count(comm.rank()),
              [&](int64_t i) { return reduced<T>(ranks, list.first + static_cast<int>(k), Reduce::sum, i); });
  }
}

template <class T>
void check_list_all_gather(Comm& comm, const std::vector<int>& ranks, int& test, const std::vector<int64_t>& counts, int kind) {
  List<T> list(ranks[static_cast<size_t>(comm.rank())], test, counts);
  comm.wait(comm.all_gather(list.in_pieces(comm.size(), kind)));
  for (size_t k = 0; k < counts.size(); ++k) {
    const Pieces p = list.cut(k, comm.size(), kind);
    for (int r = 0; r < comm.size(); ++r) {
      expect<T>(comm, "all_gather of a list", list.x[k], p.first(r), p.count(r), [&](int64_t i) { return value<T>(ranks[static_cast<size_t>(r)], list.first + static_cast<int>(k), i); });
    }
  }
}

// Lists with empty tensors at all places, around the size up to which sums go whole, and (`large`) with tensors that begin and end within chunks.
inline void check_lists(Comm& comm, const std::vector<int>& ranks, bool large, int& test) {
  std::vector<std::vector<int64_t>> lists = {{0}, {0, 0, 0}, {7}, {0, 5, 0, 1, 1, 1000, 3, 0}, {5000, 0, 11384}, {5000, 1, 11384}, {3, 20011, 1, 30000, 0, 777, 12}};
  if (large) lists.push_back({11, 250000 * comm.size(), 0, 1, 90001 * comm.size(), 500, 13});
  for (const std::vector<int64_t>& counts : lists) {
    check_list_all_reduce<float>(comm, ranks, test, counts, Reduce::sum);
    check_list_reduce_scatter<float>(comm, ranks, test, counts, 1);
    check_list_all_gather<float>(comm, ranks, test, counts, 0);
    if (counts.size() > 1 && counts[1] > 100000) continue;
    check_list_all_reduce<double>(comm, ranks, test, counts, Reduce::max);
    check_list_all_reduce<bf16>(comm, ranks, test, counts, Reduce::sum);
    for (int kind = 2; kind < 5; ++kind) check_list_reduce_scatter<float>(comm, ranks, test, counts, kind);
    check_list_reduce_scatter<bf16>(comm, ranks, test, counts, 1);
    for (int kind = 0; kind < 4; ++kind) check_list_all_gather<uint8_t>(comm, ranks, test, counts, kind);
  }
}

// All operations in one group, sizes up to three chunks of a piece when `large`.
inline void check_group(Comm& comm, const std::vector<int>& ranks, bool large) {
  int test = 0;
  std::vector<int64_t> counts = {0, 1, 3, 1000, 16384, 16385, 20011};
  if (large) counts.push_back(270000 * comm.size() * 2 + 11);
  for (int64_t count : counts) {
    const bool small = count < 100000;
    check_all_reduce<float>(comm, ranks, ++test, count, Reduce::sum);
    if (small) check_all_reduce<float>(comm, ranks, ++test, count, Reduce::max);
    check_all_reduce<bf16>(comm, ranks, ++test, count, Reduce::sum);
    for (int kind = 0; kind < (small ? 4 : 2); ++kind) check_reduce_scatter<float>(comm, ranks, ++test, count, kind);
    check_reduce_scatter<bf16>(comm, ranks, ++test, count, 1);
    check_all_gather<uint8_t>(comm, ranks, ++test, count, 0);
    check_broadcast<uint16_t>(comm, ranks, ++test, count, static_cast<int>(count) % comm.size());
    if (!small) continue;
    check_all_reduce<double>(comm, ranks, ++test, count, Reduce::sum);
    check_all_reduce<double>(comm, ranks, ++test, count, Reduce::max);
    check_all_reduce<int64_t>(comm, ranks, ++test, count, Reduce::sum);
    check_all_reduce<int64_t>(comm, ranks, ++test, count, Reduce::max);
    for (int kind = 0; kind < 4; ++kind) {
      check_all_gather<float>(comm, ranks, ++test, count, kind);
      check_all_gather<uint16_t>(comm, ranks, ++test, count, kind);
    }
    for (int root = 0; root < comm.size(); ++root) check_broadcast<float>(comm, ranks, ++test, count, root);
  }
  check_lists(comm, ranks, large, test);
}

inline std::vector<int> everyone(const World& world) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Groups that overlap, many operations in flight in each, waits in another order than starts.
inline void check_in_flight(World& world) {
  struct Started {
    Comm* comm;
    std::vector<int> ranks;
    int test;
    Comm::Ticket ticket;
    std::vector<float> x;
  };
  const std::vector<int> all = everyone(world);
  std::vector<int> parity;
  for (int r = world.rank() % 2; r < world.size(); r += 2) parity.push_back(r);
  const auto whole = world.group("whole", all), again = world.group("again", all), half = world.group("half", parity);
  std::vector<Started> started;
  for (int i = 0; i < 60; ++i) {
    const bool is_half = i % 3 == 2;
    Comm* comm = is_half ? half.get() : i % 3 == 1 ? again.get() : whole.get();
    Started s{comm, is_half ? parity : all, 1000 + i, 0, filled<float>(world.rank(), 1000 + i, 10 + 977 * i)};
    const Tensor x = tensor(s.x);   // moving a vector keeps its memory
    const int64_t front = x.elements() / 3;
    s.ticket = i % 4 == 0 ? comm->all_reduce({Tensor{x.data, x.dtype, {front}}, Tensor{s.x.data() + front, x.dtype, {x.elements() - front}}}, Reduce::sum) : comm->all_reduce(x, Reduce::sum);
    started.push_back(std::move(s));
  }
  for (size_t k = 0; k < started.size(); ++k) {
    Started& s = started[(k * 23 + 7) % started.size()];   // 23 and 60 have no common divisor: each once
    s.comm->wait(s.ticket);
    s.comm->wait(s.ticket);
    expect<float>(*s.comm, "sum in flight", s.x, 0, static_cast<int64_t>(s.x.size()), [&](int64_t i) { return reduced<float>(s.ranks, s.test, Reduce::sum, i); });
  }
}

inline void check_texts(World& world) {
  const auto comm = world.group("texts", everyone(world));
  const auto text = [](int rank) { return std::string(static_cast<size_t>(rank * 1000 % 3001), static_cast<char>('a' + rank)); };   // rank 0's is empty
  const std::vector<std::string> texts = exchange(*comm, text(world.rank()));
  for (int r = 0; r < world.size(); ++r) {
    if (texts[static_cast<size_t>(r)] != text(r)) throw std::runtime_error(fmt::format("exchange: rank {} has a wrong text of rank {}", world.rank(), r));
  }
  const int64_t n = world.size();
  if (sum_of(*comm, int64_t{1} << (world.rank() + 40)) != ((int64_t{1} << n) - 1) << 40) throw std::runtime_error("sum_of");
  if (max_of(*comm, -5 - world.rank()) != -5) throw std::runtime_error("max_of");
  barrier(*comm);
}

inline void check_world(World& world, bool large) {
  const std::vector<int> all = everyone(world);
  check_texts(world);
  check_in_flight(world);
  check_group(*world.group("all", all), all, large);
  if (world.size() < 3) return;
  const std::vector<int> but_first(all.begin() + 1, all.end());
  if (world.rank() > 0) check_group(*world.group("but first", but_first), but_first, false);
}

}  // namespace octet::comm_checks

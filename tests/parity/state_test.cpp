// Operators over all parameters of a model: the bits of each by itself, and few launches.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "both.h"
#include "cpu/cpu_ops.h"
#include "cuda/cuda_ops.h"
#include "numerics/master.h"

#ifdef OCTET_SIMT
#include "simt.h"
#endif

using namespace parity;

namespace {

int64_t launches() {
#ifdef OCTET_SIMT
  return simt::launches();
#else
  return 0;
#endif
}

// Matrices and their places in whole ones: whole, parts of rows and of columns at multiples of 8 and 4, and anywhere; numbers beyond 32 bits; several CTAs.
struct Part {
  int64_t rows, cols;
  MatrixPlace place;
};
const std::vector<Part> adamw_parts{{1, 1, {}}, {70, 64, {}}, {40, 24, {3, 8, 64}}, {20, 24, {3, 4, 64}}, {20, 24, {0, 3, 64}}, {17, 37, {2, 5, 101}}, {17, 37, {2, 0, 0}},
                                    {17, 37, {4, 0, 0}}, {1, 1000, {0, 1024, 4096}}, {9, 20, {0, 8, 64}}, {8, 16, {int64_t{1} << 30, 16, 8192}}};

// A model of 300 tensors, whose forms are all the same or not: the bits of the CPU, and few launches. Also from a recording, as a CUDA graph would have it.
TEST(state, adamw_of_a_model) {
  Rig rig;
  for (const auto& [mixed, recorded] : {std::pair{false, false}, {true, false}, {true, true}}) {
    Both b(rig);
    const int control = b.input(step_control(0.77f, 0));
    std::vector<std::array<int, 6>> all;
    const auto part_of = [](size_t i) { return adamw_parts[i % adamw_parts.size()]; };
    const auto moments_of = [mixed = mixed](size_t i) { return mixed && i % 4 >= 2 ? Dtype::f32 : Dtype::bf16; };
    for (size_t i = 0; i < 300; ++i) {
      const Shape shape{part_of(i).rows, part_of(i).cols};
      Host w = normal("w", Dtype::f32, shape), v = normal("v", moments_of(i), shape), upper(Dtype::bf16, shape), lower(Dtype::u16, shape);
      for (int64_t k = 0; k < w.elements(); ++k) {
        const SplitMaster s = split_master(resolve_tie(w.at(k)));
        std::memcpy(upper.bytes().data() + 2 * k, &s.weight, 2);
        std::memcpy(lower.bytes().data() + 2 * k, &s.remainder, 2);
        v.set(k, v.at(k) * v.at(k));
      }
      all.push_back({b.updated(w), b.updated(lower), b.updated(normal("m", moments_of(i), shape, 0.1)), b.updated(v), b.input(normal("g", Dtype::f32, shape)), b.updated(upper)});
    }
    const auto updates = [&, mixed = mixed](const std::vector<Tensor>& t) {
      std::vector<AdamwUpdate> u;
      for (size_t i = 0; i < all.size(); ++i) {
        const auto at = [&](size_t k) { return t[static_cast<size_t>(all[i][k])]; };
        const bool halves = !mixed || i % 2 == 0;
        u.push_back({{halves ? Tensor{} : at(0), halves ? at(1) : Tensor{}, at(2), at(3), at(4), halves || i % 3 == 0 ? at(5) : Tensor{}, part_of(i).place}, i % 5 == 0 ? 0.0f : 0.1f, i});
        if (i % 50 == 7) u.push_back({{{nullptr, Dtype::f32, {0}}, {}, {nullptr, Dtype::f32, {0}}, {nullptr, Dtype::f32, {0}}, {nullptr, Dtype::f32, {0}}, {}, {}}, 0.1f, 0});   // of no elements
      }
      return u;
    };
    const AdamwStep step{3e-2f, 0.9f, 0.95f, 1e-8f, 99.0f, 1.7f, 3.1f};
    const auto decision = [&](const std::vector<Tensor>& t) { return static_cast<const StepControl*>(t[static_cast<size_t>(control)].data); };
    b.run([&](Ctx& ctx, const std::vector<Tensor>& t) { cpu::adamw(ctx, updates(t), step, decision(t)); },
          [&, recorded = recorded](Ctx& ctx, const std::vector<Tensor>& t) {
            if (ctx.planning()) return cuda::adamw(ctx, updates(t), step, decision(t));
            const int64_t before = launches();
            if (recorded) {
              rig.device().run(rig.device().record([&] { cuda::adamw(ctx, updates(t), step, decision(t)); }));
              rig.device().synchronize();   // before the recording ends
            } else {
              cuda::adamw(ctx, updates(t), step, decision(t));
            }
            EXPECT_LE(launches() - before, 8);
          });
    for (size_t i = 0; i < all.size(); ++i) {
      for (const size_t k : {0, 1, 2, 3, 5}) b.same(all[i][k], fmt::format("mixed {}, recorded {}, tensor {} of {}x{}, {}", mixed, recorded, i, part_of(i).rows, part_of(i).cols, k));
    }
  }
}

// The device's order, written out: tiles of 2^14, in each of which thread t of 256 adds elements t, t + 256, ..., warps by halves, warps in order, then the tiles in order.
double squares_in_order(const Host& x, double start) {
  constexpr int64_t tile = 1 << 14;
  for (int64_t begin = 0; begin < x.elements(); begin += tile) {
    std::array<double, 256> sums{};
    for (int64_t i = begin; i < std::min(begin + tile, x.elements()); ++i) sums[static_cast<size_t>(i % 256)] += static_cast<double>(x.at(i)) * static_cast<double>(x.at(i));
    double of_tile = 0;
    for (size_t warp = 0; warp < 256; warp += 32) {
      for (size_t distance = 16; distance > 0; distance /= 2) {
        for (size_t lane = 0; lane < distance; ++lane) sums[warp + lane] += sums[warp + lane + distance];
      }
      of_tile = warp == 0 ? sums[0] : of_tile + sums[warp];
    }
    start += of_tile;
  }
  return start;
}

// Many tensors' squares: the bits that each has alone, in few launches.
TEST(state, squares_of_a_model) {
  Rig rig;
  std::vector<Host> hosts;
  std::vector<Tensor> on_host, on_device;
  for (size_t i = 0; i < 300; ++i) hosts.push_back(normal("s" + std::to_string(i), Dtype::f32, {std::array{1, 0, 700, 16384, 20, 40001, 0}[i % (i < 150 ? 3 : 7)]}));
  for (Host& h : hosts) {
    on_host.push_back(h.tensor());
    on_device.push_back(rig.upload(h));
  }
  std::array<double, 300> start{}, want{}, got{}, alone{};
  for (size_t i = 0; i < start.size(); ++i) start[i] = i % 4 == 1 ? 3.0 : 0.0;
  want = start;
  rig.on_host([&](Ctx& ctx) { cpu::sum_squares(ctx, on_host, want.data()); });
  const auto squares = [&](bool together) {
    std::array<double, 300>* totals = rig.upload_value(start);
    rig.on_device([&](Ctx& ctx) {
      const int64_t before = launches();
      for (size_t i = 0; !together && i < on_device.size(); ++i) cuda::sum_squares(ctx, {&on_device[i], 1}, totals->data() + i);
      if (!together) return;
      cuda::sum_squares(ctx, on_device, totals->data());
      EXPECT_LE(launches() - before, 4);
    });
    return rig.download_value(totals);
  };
  got = squares(true);
  alone = squares(false);
  EXPECT_EQ(got, squares(true));
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i], alone[i]) << i;
    EXPECT_EQ(got[i], squares_in_order(hosts[i], start[i])) << i;
    EXPECT_NEAR(got[i], want[i], 1e-12 * want[i]) << i;
  }
  rig.reset();
}

}  // namespace

// Operations on the memory of a device, here other memory of the host, through buffers of the host.
#include "comm/staged.h"

#include <gtest/gtest.h>

#include <cstring>

#include "comm/world.h"

namespace octet {
namespace {

TEST(Staged, OperationsReachTheDeviceAndTouchWhatIsTheirs) {
  run_local_ranks(3, [](World& world) {
    size_t out = 0, in = 0;
    const auto group = staged(world.group("dp", {0, 1, 2}), {[&](void* host, const void* device, size_t bytes) { std::memcpy(host, device, bytes); out += bytes; },
                                                             [&](void* device, const void* host, size_t bytes) { std::memcpy(device, host, bytes); in += bytes; }});
    EXPECT_EQ(group->name(), "dp");
    EXPECT_EQ(group->rank(), world.rank());
    const float mine = static_cast<float>(world.rank() + 1);
    std::vector<float> x(7, mine);
    const Tensor t{x.data(), Dtype::f32, {7}};
    group->wait(group->all_reduce(t, Reduce::sum));
    EXPECT_EQ(x, std::vector<float>(7, 6));
    EXPECT_EQ(out, 28u);
    EXPECT_EQ(in, 28u);

    // Uneven pieces, one of them empty.
    const Pieces pieces{{0, 4, 4, 7}};
    x.assign(7, mine);
    group->wait(group->reduce_scatter(t, pieces));
    for (int64_t i = 0; i < 7; ++i) EXPECT_EQ(x[static_cast<size_t>(i)], i >= pieces.first(world.rank()) && i < pieces.first(world.rank()) + pieces.count(world.rank()) ? 6 : mine) << i;
    EXPECT_EQ(in, 28u + 4u * static_cast<size_t>(pieces.count(world.rank()))) << "only the own piece comes back";

    x.assign(7, mine);
    group->wait(group->all_gather(t, pieces));
    EXPECT_EQ(x, (std::vector<float>{1, 1, 1, 1, 3, 3, 3}));

    x.assign(7, mine);
    group->wait(group->broadcast(t, 1));
    EXPECT_EQ(x, std::vector<float>(7, 2));

    // Lists: own pieces out for a gather, own pieces in from a reduce-scatter.
    std::vector<float> y(3, 10 * mine);
    const std::vector<TensorInPieces> list{{t, pieces}, {{nullptr, Dtype::f32, {0}}, {{0, 0, 0, 0}}}, {{y.data(), Dtype::f32, {3}}, {{0, 1, 2, 3}}}};
    const size_t own = 4u * static_cast<size_t>(pieces.count(world.rank()) + 1);
    x.assign(7, mine);
    out = in = 0;
    group->wait(group->all_gather(list));
    EXPECT_EQ(x, (std::vector<float>{1, 1, 1, 1, 3, 3, 3}));
    EXPECT_EQ(y, (std::vector<float>{10, 20, 30}));
    EXPECT_EQ(out, own);
    EXPECT_EQ(in, 40u);
    out = in = 0;
    group->wait(group->reduce_scatter(list));
    EXPECT_EQ(y[static_cast<size_t>(world.rank())], 30 * mine);
    if (pieces.count(world.rank()) > 0) { EXPECT_EQ(x[static_cast<size_t>(pieces.first(world.rank()))], 3 * mine); }
    EXPECT_EQ(out, 40u);
    EXPECT_EQ(in, own);
    x.assign(7, mine);
    y.assign(3, 10 * mine);
    group->wait(group->all_reduce({t, list[2].x}, Reduce::max));
    EXPECT_EQ(x, std::vector<float>(7, 3));
    EXPECT_EQ(y, std::vector<float>(3, 30));
    EXPECT_EQ(group->traffic().at({"reduce_scatter", Dtype::f32}).calls, 2);
  });
}

}  // namespace
}  // namespace octet

// Broadcaster, UpdateReceivers and the nccl transport together: streams of tensors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/weights_sync/nccl/nccl_fleet.h"
#include "weights_sync/arena_fill.h"

namespace warproll {
namespace {

using checkpoint_fixtures::model_layout;
using update_fixtures::arith;

TEST_F(NcclFleet, ReloadsEqualColdLoadsOnEveryWorker) {
  uint64_t version = 0;
  for (const int n : {1, 2, 3, 1}) {
    begin(n, ++version);
    ASSERT_TRUE(pump()) << trainer_.report().reason;
    const auto cold = load_checkpoint(*arith(n, version).checkpoint, model_layout());
    const Digest want = layout_digest(cold->layout, cold->arena.span());
    for (const auto& worker : workers_) {
      EXPECT_EQ(worker->engine->weight_version, version);
      EXPECT_EQ(worker->engine->layout_digest, want);
    }
  }
}

TEST_F(NcclFleet, AWorkerThatDiesInTheMiddleIsBackInTheNextGroupWithAllOthers) {
  begin(1, 1);
  ASSERT_TRUE(pump());
  cluster_.set({.death_is_noticed = false, .hold_from = 6});
  begin(2, 2);
  ASSERT_TRUE(pump_until([this] {
    return workers_[1]->receiver->progress().received_bytes > 0 &&
           workers_[1]->receiver->progress().weight_version == 2;
  }));
  cluster_.set({.death_is_noticed = false});
  restart(*workers_[1]);
  ASSERT_TRUE(pump()) << trainer_.report().reason;
  for (const auto& worker : workers_) {
    EXPECT_EQ(worker->engine->weight_version, 2u);
    EXPECT_EQ(worker->engine->layout_digest, workers_[0]->engine->layout_digest);
  }
}

TEST_F(NcclFleet, ALateJoinerGetsTheVersionInAGroupOfItsOwn) {
  begin(3, 7);
  ASSERT_TRUE(pump());
  add_worker();
  EXPECT_FALSE(trainer_.converged());
  ASSERT_TRUE(pump());
  EXPECT_EQ(workers_[3]->engine->layout_digest, workers_[0]->engine->layout_digest);
}

}  // namespace
}  // namespace warproll

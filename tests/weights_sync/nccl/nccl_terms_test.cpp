// What the ranks of a group must agree on before it forms.
#include "weights_sync/nccl/nccl_terms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/weights_sync/nccl/nccl_group.h"

namespace warproll {
namespace {

using testing::HasSubstr;
using update_fixtures::arith;

TEST(NcclTerms, DifferencesAreToldWithBothValues) {
  const HelloEnvironment trainer = nccl_terms("2.28.9", 4, {{"NCCL_PROTO", "LL"}});
  const auto check = [&trainer](const HelloEnvironment& worker) {
    return check_nccl_terms(decode_nccl_terms(encode_nccl_terms(trainer)), worker).message();
  };
  EXPECT_EQ(check(nccl_terms("2.28.9", 8, {{"NCCL_PROTO", "LL"}, {"NCCL_HOSTID", "b"}})), "");
  EXPECT_THAT(check(nccl_terms("2.29.1", 4, {{"NCCL_PROTO", "LL"}})),
              HasSubstr("the NCCL version is '2.29.1' at the worker, '2.28.9' at the trainer"));
  EXPECT_THAT(check(nccl_terms("2.28.9", 4, {})),
              HasSubstr("NCCL_PROTO is '' at the worker, 'LL' at the trainer"));
  EXPECT_THAT(check(nccl_terms("2.28.9", 2, {{"NCCL_PROTO", "LL"}})),
              HasSubstr("uses up to 4 CTAs (checkpoints.nccl_max_ctas), this worker allows 2"));
  EXPECT_THAT(check({}), HasSubstr("the NCCL version is ''"));
  const HelloEnvironment older = without_slots(trainer);
  EXPECT_THAT(check(older),
              HasSubstr("nccl.slots is '' at the worker, 'registered' at the trainer"));
  EXPECT_EQ(check_nccl_terms(older, trainer).message(), "");
}

TEST(NcclTerms, AWorkerRejectsABeginOfAnotherNccl) {
  FakeCluster cluster;
  const NcclTransport worker(std::make_shared<FakeNccl>(cluster, "2.28.9"), {});
  NcclSource source(std::make_shared<FakeNccl>(cluster, "2.30.3"), {});
  const TransportRoute route = source.offer(arith(1, 3)).value();
  UpdateBegin begin;
  begin.source = route.source;
  EXPECT_THAT(worker.check(begin).message(), HasSubstr("'2.28.9' at the worker, '2.30.3'"));
  EXPECT_THAT(route.suits(worker.environment()).message(), HasSubstr("'2.28.9' at the worker"));
}

}  // namespace
}  // namespace warproll

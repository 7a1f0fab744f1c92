#include "tessera/shard/resident_bytes.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr int64_t kKiB = 1024;

// A square matrix of 1024 floats, whole on two ranks: 4 KiB, 2 KiB a shard.
UnitMemory matrix(AfterForward after_forward = AfterForward::freed,
                  int64_t world_size = 2) {
  const std::vector<std::vector<int64_t>> shapes = {{32, 32}};
  return {.groups = {{.layout = plan_flat_layout(shapes,
                                                 {.world_size = world_size})}},
          .after_forward = after_forward};
}

// Two matrices one after the other, without a root.
StepMemory two_in_a_row(AfterForward after_forward) {
  return {.units = {matrix(after_forward), matrix(after_forward)},
          .visits = {{0, 4 * kKiB}, {1, 4 * kKiB}}};
}

TEST(ResidentBytes, OneFreedUnitIsGatheredAtATimeInForward) {
  const auto bytes = resident_bytes(two_in_a_row(AfterForward::freed));
  EXPECT_EQ(bytes.between_steps, 2 * 2 * kKiB);
  EXPECT_EQ(bytes.forward_peak, bytes.between_steps + 4 * kKiB);
}

TEST(ResidentBytes, KeptUnitsAddUpInForward) {
  const auto bytes = resident_bytes(two_in_a_row(AfterForward::kept));
  EXPECT_EQ(bytes.forward_peak, bytes.between_steps + 2 * 4 * kKiB);
}

TEST(ResidentBytes, BackwardEndsWithTheShardsGradients) {
  const auto bytes = resident_bytes(two_in_a_row(AfterForward::freed));
  EXPECT_EQ(bytes.after_backward, bytes.between_steps + 2 * 2 * kKiB);
}

// The last unit's reduction is under way (4 in, 2 from the peer, 2 out) while
// the first one's gradient (4) is copied to its input (4): more than the 4 + 4
// of a gathered parameter and its gradient.
TEST(ResidentBytes, ReductionsStayUntilTheEndOfBackwardOnCpu) {
  const auto bytes = resident_bytes(two_in_a_row(AfterForward::freed));
  EXPECT_EQ(bytes.backward_peak, bytes.between_steps + (8 + 8) * kKiB);
}

// As above; at the end of backward, when nothing else is there any more, what the
// replicas send (2, or 4 of two) takes the place of what a peer sent (2).
TEST(ResidentBytes, SumsOverReplicasTakeThePlaceOfThoseOverPeersOnCpu) {
  StepMemory step = two_in_a_row(AfterForward::freed);
  step.replicas = 2;
  const auto two = resident_bytes(step);
  EXPECT_EQ(two.backward_peak, two.between_steps + (8 + 8) * kKiB);
  step.replicas = 3;  // from two replicas (4)
  const auto three = resident_bytes(step);
  EXPECT_EQ(three.backward_peak, three.between_steps + (10 + 8) * kKiB);
  step.reduce_buffers = ReduceBuffers::until_next;  // in place
  EXPECT_EQ(resident_bytes(step).backward_peak,
            three.between_steps + 14 * kKiB);
}

// One rank of two keeps half (2) of the first unit beside the second (4).
TEST(ResidentBytes, APartIsKeptFromForwardUntilTheWholeIsThereAgain) {
  StepMemory step = two_in_a_row(AfterForward::kept_in_parts);
  for (UnitMemory& unit : step.units) unit.keepers = 2;
  const auto bytes = resident_bytes(step);
  EXPECT_EQ(bytes.after_forward, bytes.between_steps + (2 + 4) * kKiB);
  EXPECT_EQ(bytes.parts_peak, 2 * kKiB);
  EXPECT_EQ(bytes.num_gathers, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(bytes.num_gathers_of_parts, (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(bytes.after_backward, bytes.between_steps + 2 * 2 * kKiB);
}

TEST(ResidentBytes, OffloadedStateIsNotOnTheDevice) {
  StepMemory step = two_in_a_row(AfterForward::freed);
  step.reduce_buffers = ReduceBuffers::until_next;
  const auto on_device = resident_bytes(step);
  step.masters = Masters::on_host;
  step.optimizer_bytes = 8 * kKiB;
  const auto bytes = resident_bytes(step);
  EXPECT_EQ(bytes.between_steps, 0);
  EXPECT_EQ(bytes.after_backward, 0);
  EXPECT_EQ(bytes.backward_peak,
            on_device.backward_peak - on_device.between_steps);
}

// 32 rows of 32 elements in a byte each and a scale of 4 bytes; and in fp32.
TEST(ResidentBytes, Float8TakesItsElementsAndScalesWhileItTravels) {
  StepMemory step = two_in_a_row(AfterForward::freed);
  for (UnitMemory& unit : step.units) {
    unit.groups[0].form = GatherForm::float8;
  }
  const int64_t travelling = 32 * 32 + 32 * 4 + 4 * kKiB;
  EXPECT_EQ(travel_bytes(step.units[0]), travelling);
  const auto bytes = resident_bytes(step);
  EXPECT_EQ(bytes.forward_peak, bytes.between_steps + 4 * kKiB + travelling);
  EXPECT_EQ(bytes.gathered_peak, 4 * kKiB);
}

// Here the last unit keeps its result (2) alone.
TEST(ResidentBytes, OneReduceInputIsThereAtATimeOnCuda) {
  StepMemory step = two_in_a_row(AfterForward::freed);
  step.reduce_buffers = ReduceBuffers::until_next;
  const auto bytes = resident_bytes(step);
  // Gathered (4), gradient (4), the other's input (4) and result (2).
  EXPECT_EQ(bytes.backward_peak, bytes.between_steps + 14 * kKiB);
  EXPECT_EQ(bytes.after_backward, bytes.between_steps + 2 * 2 * kKiB);
}

TEST(ResidentBytes, OptimizerStateIsThereThroughout) {
  StepMemory step = two_in_a_row(AfterForward::freed);
  const auto without = resident_bytes(step);
  step.optimizer_bytes = 2 * 4 * kKiB;
  const auto with = resident_bytes(step);
  EXPECT_EQ(with.between_steps, without.between_steps + 2 * 4 * kKiB);
  EXPECT_EQ(with.peak(), without.peak() + 2 * 4 * kKiB);
}

// The root is gathered all the time and its gradients wait for its first visit;
// then its reduction begins after the block's.
TEST(ResidentBytes, ARootWaitsForTheGradientsOfItsFirstVisit) {
  UnitMemory root = matrix(AfterForward::kept);
  UnitMemory block = matrix();
  block.parent = 0;
  const auto bytes =
      resident_bytes({.units = {root, block},
                      .visits = {{0, 3 * kKiB}, {1, 4 * kKiB}, {0, 1 * kKiB}}});
  EXPECT_EQ(bytes.forward_peak, bytes.between_steps + 8 * kKiB);
  EXPECT_EQ(bytes.backward_peak, bytes.between_steps + (8 + 4 + 4) * kKiB);
}

// Embedding and head share a matrix (4): at the end there are the head's
// gradient, the embedding's and their sum; the sum (4) becomes the input (4).
TEST(ResidentBytes, ASecondGradientIsAddedToTheFirst) {
  const auto bytes =
      resident_bytes({.units = {matrix()},
                      .visits = {{.unit = 0,
                                  .added_bytes = 4 * kKiB,
                                  .backward_reads = BackwardReads::nothing},
                                 {.unit = 0, .gradient_bytes = 4 * kKiB}}});
  EXPECT_EQ(bytes.backward_peak, bytes.between_steps + (4 + 3 * 4) * kKiB);
  EXPECT_EQ(bytes.after_backward, bytes.between_steps + 2 * kKiB);
}

TEST(ResidentBytes, ActivationsGoAsBuffersOfReductionsCome) {
  StepMemory step = two_in_a_row(AfterForward::freed);
  step.visits[0].kept_bytes = 50 * kKiB;
  step.visits[1].kept_bytes = 30 * kKiB;
  step.visits[1].again_bytes = 7 * kKiB;
  step.loss = {
      .kept_bytes = 3 * kKiB, .peak_bytes = 9 * kKiB, .left_bytes = 2 * kKiB};
  const auto bytes = resident_bytes(step);
  EXPECT_EQ(bytes.after_forward, bytes.between_steps + (4 + 80 + 3) * kKiB);
  EXPECT_EQ(bytes.forward_peak, bytes.between_steps + (4 + 80 + 9) * kKiB);
  // Gathered, its gradient, the loss's gradient, and what is made again.
  EXPECT_EQ(bytes.backward_peak,
            bytes.between_steps + (4 + 80 + 2 + 7 + 4) * kKiB);
  EXPECT_EQ(bytes.after_backward, bytes.between_steps + 2 * 2 * kKiB);
}

TEST(ResidentBytes, PrefetchGathersTheNextUnitEarlier) {
  StepMemory step = two_in_a_row(AfterForward::freed);
  step.units.push_back(matrix());
  step.visits.push_back({2, 4 * kKiB});
  EXPECT_EQ(resident_bytes(step).gathered_peak, 4 * kKiB);
  EXPECT_EQ(resident_bytes(step).num_gathers, (std::vector<int64_t>{2, 2, 1}));
  step.prefetch = 1;
  EXPECT_EQ(resident_bytes(step).gathered_peak, 2 * 4 * kKiB);
  // The one before the last stays, too: backward would gather it at once.
  EXPECT_EQ(resident_bytes(step).num_gathers, (std::vector<int64_t>{2, 1, 1}));
  step.prefetch = 5;
  const auto bytes = resident_bytes(step);
  EXPECT_EQ(bytes.gathered_peak, 3 * 4 * kKiB);
  EXPECT_EQ(bytes.num_gathers, (std::vector<int64_t>{1, 1, 1}));
}

// Units that need 64 KiB for themselves in backward. The peak is at the last
// but one, beside 4 KiB gathered ahead and 4 of the unit before that are
// summed; a tight backward has neither, so its peak is at the last, with 2 of
// sums more.
TEST(ResidentBytes, ATightBackwardHasLessOfOtherUnitsAtItsEnd) {
  StepMemory step{.reduce_buffers = ReduceBuffers::until_next, .prefetch = 1};
  for (size_t i = 0; i < 13; ++i) {
    step.units.push_back(matrix(AfterForward::freed));
    step.visits.push_back(
        {.unit = i, .gradient_bytes = 4 * kKiB, .again_bytes = 64 * kKiB});
  }
  const auto full = resident_bytes(step);
  step.backward_overlap = BackwardOverlap::tight;
  const auto tight = resident_bytes(step);
  EXPECT_EQ(tight.num_gathers, full.num_gathers);
  EXPECT_EQ(tight.forward_peak, full.forward_peak);
  EXPECT_EQ(tight.after_backward, full.after_backward);
  EXPECT_EQ(full.backward_peak - tight.backward_peak, (4 + 4 - 2) * kKiB);
}

TEST(ResidentBytes, AFrozenUnitTakesNoReduction) {
  StepMemory step = two_in_a_row(AfterForward::freed);
  step.visits[0].gradient_bytes = 0;
  const auto bytes = resident_bytes(step);
  EXPECT_EQ(bytes.after_backward, bytes.between_steps + 2 * kKiB);
  EXPECT_EQ(bytes.backward_peak, bytes.between_steps + 12 * kKiB);
}

TEST(ResidentBytes, OneRankGathersNothingAndItsReduceInputIsTheGradient) {
  const StepMemory step{.units = {matrix(AfterForward::freed, 1)},
                        .visits = {{0, 4 * kKiB}}};
  const auto bytes = resident_bytes(step);
  EXPECT_EQ(bytes.forward_peak, bytes.between_steps);
  EXPECT_EQ(bytes.backward_peak, bytes.between_steps + 8 * kKiB);
  EXPECT_EQ(bytes.after_backward, bytes.between_steps + 4 * kKiB);
}

// 2 KiB gathered, 2 of gradients, 4 in, 2 from the peer, 2 out.
TEST(ResidentBytes, Bfloat16HalvesWhatIsGathered) {
  UnitMemory unit = matrix();
  unit.groups[0].compute_bytes = 2;
  const auto bytes =
      resident_bytes({.units = {unit}, .visits = {{0, 2 * kKiB}}});
  EXPECT_EQ(bytes.forward_peak, bytes.between_steps + 2 * kKiB);
  EXPECT_EQ(bytes.backward_peak, bytes.between_steps + 8 * kKiB);
}

// In, from the peer and out are 2 + 1 + 1; the gradient of the shard is 2.
TEST(ResidentBytes, ASumInBfloat16IsConvertedAtTheEnd) {
  UnitMemory unit = matrix();
  unit.groups[0].compute_bytes = 2;
  unit.groups[0].reduce_bytes = 2;
  const auto bytes =
      resident_bytes({.units = {unit}, .visits = {{0, 2 * kKiB}}});
  EXPECT_EQ(bytes.backward_peak, bytes.between_steps + 5 * kKiB);
  EXPECT_EQ(bytes.after_backward, bytes.between_steps + 2 * kKiB);
}

TEST(ResidentBytes, RefusesAVisitOfNoUnit) {
  StepMemory step = two_in_a_row(AfterForward::freed);
  step.visits.push_back({2});
  EXPECT_THROW((void)resident_bytes(step), InvalidArgument);
  step.visits.pop_back();
  step.units[0].parent = 2;
  EXPECT_THROW((void)resident_bytes(step), InvalidArgument);
}

}  // namespace
}  // namespace tessera

// Who writes what: layouts of all kinds, and states that may not be saved.
#include <gtest/gtest.h>

#include <set>

#include "tessera/base/error.h"
#include "tessera/checkpoint/load_plan.h"
#include "tessera/checkpoint/region.h"
#include "tessera/checkpoint/save_plan.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

using testing::message_of;

OfferedTensor tensor(const std::string& name, std::vector<int64_t> sizes,
                     std::vector<Box> boxes) {
  return {name, {name}, Dtype::float32, std::move(sizes), std::move(boxes)};
}

Box rows(int64_t begin, int64_t count, int64_t width) {
  return {{begin, 0}, {count, width}};
}

std::string error_of(const std::vector<Offer>& offers) {
  return message_of<InvalidArgument>([&] { (void)plan_save(offers); });
}

void expect_error(const std::vector<Offer>& offers, const std::string& part) {
  const std::string message = error_of(offers);
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

// Every box of the plan is written by one rank, which offered it.
void expect_written_once(const std::vector<Offer>& offers) {
  const SavePlan plan = plan_save(offers);
  std::set<std::pair<std::string, size_t>> written;
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    for (const WriteItem& item : plan.of_rank[rank]) {
      EXPECT_TRUE(written.insert({item.key, item.box}).second) << item.key;
      if (item.is_value) continue;
      const Box& box = plan.metadata.tensors.at(item.key).boxes[item.box].box;
      bool offered = false;
      for (const OfferedTensor& own : offers[rank].tensors) {
        if (own.key != item.key) continue;
        for (const Box& b : own.boxes) offered = offered || b == box;
      }
      EXPECT_TRUE(offered) << item.key << " by rank " << rank;
    }
  }
  size_t expected = plan.metadata.values.size();
  for (const auto& [key, stored] : plan.metadata.tensors) {
    expected += stored.boxes.size();
    std::vector<Box> boxes;
    EXPECT_NO_THROW(
        (void)find_overlaps(stored.boxes, whole_box(stored.sizes), key));
  }
  EXPECT_EQ(written.size(), expected);
}

TEST(SavePlan, OffersTravelUnchanged) {
  const Offer offer{
      .tensors = {{"a.0.b",
                   {"a", int64_t{0}, "b"},
                   Dtype::float8_e5m2,
                   {3, 0},
                   {rows(0, 3, 0)}},
                  {"scalar", {"scalar"}, Dtype::float32, {}, {Box{}}}},
      .values = {{"step", {"step"}, "3", std::string("\xff\0", 2)}}};
  EXPECT_EQ(decode_offer(encode_offer(offer)), offer);
}

TEST(SavePlan, WritesEachBoxOnceForShardsReplicasAndGrids) {
  // Shards of 7 rows on 4 ranks, the last of one row; a scalar on all.
  std::vector<Offer> shards;
  for (int64_t rank = 0; rank < 4; ++rank) {
    shards.push_back(
        {.tensors = {
             tensor("w", {7, 3},
                    {rows(2 * rank, std::min<int64_t>(2, 7 - 2 * rank), 3)}),
             tensor("scalar", {}, {Box{}})}});
  }
  expect_written_once(shards);
  // Replicas of shards (HSDP 2 x 2): both boxes twice.
  std::vector<Offer> replicas;
  for (int64_t rank = 0; rank < 4; ++rank) {
    const bool second = rank % 2 == 1;
    replicas.push_back(
        {.tensors = {
             tensor("w", {5, 3}, {second ? rows(3, 2, 3) : rows(0, 3, 3)})}});
  }
  expect_written_once(replicas);
  // A grid of rows and columns (FSDP x TP), 7 x 5 on 2 x 2.
  std::vector<Offer> grid;
  for (int64_t rank = 0; rank < 4; ++rank) {
    const bool down = rank / 2 == 1;
    const bool right = rank % 2 == 1;
    grid.push_back({.tensors = {tensor("w", {7, 5},
                                       {{{down ? 4 : 0, right ? 3 : 0},
                                         {down ? 3 : 4, right ? 2 : 3}}})}});
  }
  expect_written_once(grid);
  // Two boxes of a rank, and stages that hold different tensors (pipeline).
  expect_written_once(
      {{.tensors = {tensor("w", {6, 2}, {rows(0, 1, 2), rows(4, 2, 2)})}},
       {.tensors = {tensor("w", {6, 2}, {rows(1, 3, 2)}),
                    tensor("stage 1", {2}, {{{0}, {2}}})}}});
  // Nothing to cut: empty tensors and empty shards.
  expect_written_once({{.tensors = {tensor("e", {0, 3}, {rows(0, 0, 3)}),
                                    tensor("w", {1, 3}, {rows(0, 1, 3)})}},
                       {.tensors = {tensor("e", {0, 3}, {rows(0, 0, 3)}),
                                    tensor("w", {1, 3}, {rows(1, 0, 3)})}}});
}

// Along one dim tensor parallelism cuts first, then FSDP cuts each part: the
// rows of a rank are not where its place in the grid would put them.
TEST(SavePlan, WritesTrueBoxesOfUnevenFsdpAndTensorParallelism) {
  const auto cut = [](int64_t begin, int64_t size, int64_t index, int64_t of) {
    const int64_t most = (size + of - 1) / of;
    const int64_t at = std::min(index * most, size);
    return std::pair{begin + at, std::min(most, size - at)};
  };
  for (int64_t num_rows = 0; num_rows <= 9; ++num_rows) {
    for (int64_t fsdp = 1; fsdp <= 4; ++fsdp) {
      for (int64_t tp = 1; tp <= 3; ++tp) {
        std::vector<Offer> offers;
        for (int64_t rank = 0; rank < fsdp * tp; ++rank) {
          const auto [begin, size] = cut(0, num_rows, rank % tp, tp);
          const auto [at, count] = cut(begin, size, rank / tp, fsdp);
          offers.push_back(
              {.tensors = {tensor("w", {num_rows, 3}, {rows(at, count, 3)})}});
        }
        SCOPED_TRACE(str(num_rows, " rows on ", fsdp, " x ", tp));
        expect_written_once(offers);
      }
    }
  }
}

TEST(SavePlan, SpreadsReplicasByTheirBytes) {
  std::vector<Offer> offers(2);
  for (Offer& offer : offers) {
    for (int i = 0; i < 10; ++i) {
      offer.tensors.push_back(
          tensor(str("w", i), {1000, 100}, {rows(0, 1000, 100)}));
    }
  }
  const SavePlan plan = plan_save(offers);
  EXPECT_EQ(plan.of_rank[0].size(), 5U);
  EXPECT_EQ(plan.of_rank[1].size(), 5U);
}

TEST(SavePlan, RefusesWhatWouldBeLost) {
  const auto half = tensor("w", {4, 2}, {rows(0, 2, 2)});
  expect_error({{.tensors = {half}}, {.tensors = {half}}},
               "hold 4 of its 8 elements");
  expect_error({{.tensors = {half}},
                {.tensors = {tensor("w", {4, 2}, {rows(1, 3, 2)})}}},
               "overlap, on rank 0 and rank 1");
  expect_error({{.tensors = {tensor("w", {4, 2}, {rows(3, 2, 2)})}}},
               "outside");
}

TEST(SavePlan, RefusesRanksThatDisagreeAndNamesThem) {
  const auto whole = tensor("w", {4, 2}, {rows(0, 4, 2)});
  auto narrow = whole;
  narrow.dtype = Dtype::bfloat16;
  auto longer = whole;
  longer.sizes = {5, 2};
  auto elsewhere = whole;
  elsewhere.path = {"v"};
  for (const OfferedTensor& other : {narrow, longer, elsewhere}) {
    expect_error({{.tensors = {whole}}, {.tensors = {other}}},
                 "another dtype, size or path on rank 1 than on rank 0");
  }
  const OfferedValue three{"w", {"w"}, "3", "3"};
  const OfferedValue four{"w", {"w"}, "4", "4"};
  expect_error({{.tensors = {whole}}, {.values = {three}}},
               "value on rank 1 and a tensor");
  expect_error({{.values = {three}}, {.values = {four}}},
               "is 3 on rank 0 and 4 on rank 1");
  expect_error({{.tensors = {whole, whole}}}, "twice on rank 0");
}

TEST(SavePlan, MatchesByKeyAndNotByPosition) {
  const auto a = tensor("a", {2}, {{{0}, {2}}});
  const auto b = tensor("b", {3}, {{{0}, {3}}});
  expect_written_once({{.tensors = {a, b}}, {.tensors = {b, a}}});
  expect_written_once({{.tensors = {a, b}}, {.tensors = {a}}});
}

TEST(KeyReport, NamesMissingAndUnexpectedKeys) {
  Metadata metadata;
  metadata.tensors = {{"model.a", {}}, {"model.b", {}}, {"optim.a", {}}};
  const KeyReport report =
      compare_keys(metadata, {"model.a", "model.c"}, {"model"});
  EXPECT_EQ(report.missing, std::vector<std::string>{"model.c"});
  EXPECT_EQ(report.unexpected, std::vector<std::string>{"model.b"});
}

}  // namespace
}  // namespace tessera::checkpoint

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/layout/layout_checks.h"

namespace tessera {
namespace {

using namespace layout_test;

constexpr int64_t kLargestWorld = 1024;

struct Llama {
  const char* name;
  int64_t dim, num_heads, num_kv_heads, hidden, vocabulary;
};

constexpr Llama kLlamas[] = {
    {"124m", 768, 12, 12, 2048, 32000},
    {"1b", 2048, 32, 8, 8192, 32000},
    {"1b of Meta", 2048, 32, 8, 8192, 128256},
    {"3b", 3072, 24, 8, 8192, 32000},
    {"8b", 4096, 32, 8, 14336, 128256},
    {"70b", 8192, 64, 8, 28672, 128256},
};

std::vector<Shapes> llama_units(const Llama& llama) {
  const int64_t kv = llama.dim / llama.num_heads * llama.num_kv_heads;
  return {{{llama.dim},
           {llama.dim, llama.dim},
           {kv, llama.dim},
           {kv, llama.dim},
           {llama.dim, llama.dim},
           {llama.dim},
           {llama.hidden, llama.dim},
           {llama.hidden, llama.dim},
           {llama.dim, llama.hidden}},
          {{llama.vocabulary, llama.dim}},
          {{llama.vocabulary, llama.dim},
           {llama.dim},
           {llama.vocabulary, llama.dim}}};
}

std::vector<Shapes> gpt2_units(int64_t dim) {
  return {{{dim},
           {dim},
           {3 * dim, dim},
           {3 * dim},
           {dim, dim},
           {dim},
           {dim},
           {dim},
           {4 * dim, dim},
           {4 * dim},
           {dim, 4 * dim},
           {dim}},
          {{50257, dim}, {1024, dim}, {dim}, {dim}}};
}

// A router, its bias, and experts as stacks or one by one.
std::vector<Shapes> moe_units() {
  Shapes experts = {{2048}, {60, 2048}, {60}, {1, 2048}};
  for (int expert = 0; expert < 60; ++expert) {
    experts.insert(experts.end(), {{1408, 2048}, {1408, 2048}, {2048, 1408}});
  }
  return {experts,
          {{64, 2048}, {64, 1408, 2048}, {64, 1408, 2048}, {64, 2048, 1408}}};
}

void check_all_worlds(const std::vector<Shapes>& units) {
  for (const Shapes& unit : units) {
    for (int64_t world_size = 1; world_size <= kLargestWorld; ++world_size) {
      const LayoutOptions options{.world_size = world_size, .compute_bytes = 2};
      // The cost of pieces grows with the world; a few worlds show enough.
      const bool pieces = world_size <= 8 || world_size % 127 == 0;
      SCOPED_TRACE(describe(unit, options));
      ASSERT_NO_FATAL_FAILURE(check_layout(
          unit, options, pieces ? Pieces::check : Pieces::leave_out));
    }
  }
}

TEST(FlatLayoutBound, HoldsForLlamaInAllWorlds) {
  for (const Llama& llama : kLlamas) {
    ASSERT_NO_FATAL_FAILURE(check_all_worlds(llama_units(llama))) << llama.name;
  }
}

TEST(FlatLayoutBound, HoldsForGpt2InAllWorlds) {
  for (int64_t dim : {768, 1024, 1280, 1600}) {
    ASSERT_NO_FATAL_FAILURE(check_all_worlds(gpt2_units(dim)));
  }
}

TEST(FlatLayoutBound, HoldsForExpertsInAllWorlds) {
  ASSERT_NO_FATAL_FAILURE(check_all_worlds(moe_units()));
}

TEST(FlatLayoutBound, HoldsForRandomShapesInAllWorlds) {
  std::mt19937 random(7);
  std::vector<Shapes> units(16);
  for (Shapes& unit : units) {
    unit.resize(1 + random() % 20);
    for (Shape& shape : unit) {
      shape.resize(1 + random() % 3);
      for (int64_t& size : shape) size = random() % (4U << random() % 9);
    }
  }
  ASSERT_NO_FATAL_FAILURE(check_all_worlds(units));
}

TEST(FlatLayoutBound, WastesAtMostOnePercentOfLlamaUpToSixtyFourRanks) {
  for (const Llama& llama : kLlamas) {
    if (llama.dim < 2048) continue;
    for (const Shapes& unit : llama_units(llama)) {
      for (int64_t world_size = 1; world_size <= 64; ++world_size) {
        const FlatLayout layout = plan_flat_layout(
            unit, {.world_size = world_size, .compute_bytes = 2});
        EXPECT_LE(layout.padding() * 100, total_numel(unit))
            << llama.name << ", world_size " << world_size;
      }
    }
  }
}

}  // namespace
}  // namespace tessera

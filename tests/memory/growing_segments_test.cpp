#include "tessera/device/growing_segments.h"

#include <c10/core/AllocatorConfig.h>
#include <gtest/gtest.h>

#include <string>

namespace tessera {
namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;
using c10::CachingAllocator::getAllocatorSettings;
using c10::CachingAllocator::setAllocatorSettings;

bool segments_grow() {
  return AcceleratorAllocatorConfig::use_expandable_segments();
}

TEST(GrowingSegments, AreOffInAScopeAndThenAsTheUserSetThem) {
  const std::string mine = "expandable_segments:True,max_split_size_mb:128";
  setAllocatorSettings(mine);
  const size_t split = AcceleratorAllocatorConfig::max_split_size();
  {
    const PlainSegments plain;
    EXPECT_FALSE(segments_grow());
  }
  EXPECT_TRUE(segments_grow());
  EXPECT_EQ(AcceleratorAllocatorConfig::max_split_size(), split);
  EXPECT_EQ(getAllocatorSettings(), mine);
  setAllocatorSettings("expandable_segments:False");
  {
    const PlainSegments plain;
    EXPECT_FALSE(segments_grow());
  }
  EXPECT_FALSE(segments_grow());
}

TEST(GrowingSegments, AreNotAskedForOnACpu) {
  setAllocatorSettings("expandable_segments:False");
  prefer_growing_segments(c10::kCPU);
  EXPECT_FALSE(segments_grow());
}

}  // namespace
}  // namespace tessera

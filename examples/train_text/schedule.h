// How far the training is, and the learning rate that belongs there.
//
// A pure file: no tensors, no ranks.
//
//   rate |    /''''-.
//        |   /       ''-.          a straight warm-up, then half a cosine
//        |  /            ''-._
//        '--+-----------------'--
//        0  warmup            1    progress
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>

namespace train_text {

/// progress: 0 at the first step, 1 at the end. warmup: a share of that.
[[nodiscard]] inline double learning_rate(double progress, double peak,
                                          double warmup) {
  if (progress < warmup) {
    // Not from zero: the first step would do nothing.
    return peak * std::max(0.02, progress / warmup);
  }
  const double rest = std::min(1.0, (progress - warmup) / (1.0 - warmup));
  return peak * 0.5 * (1.0 + std::cos(std::numbers::pi * rest));
}

}  // namespace train_text

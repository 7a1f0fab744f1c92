// A text as bytes, cut into windows.
//
//   text     I t   i s   a   t r u t h ...      seq = 4
//   window 0 [I t   i s]                        input "It i", target "t is"
//   window 1         [s   a   t]                begins with the last target
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace train_text {

/// [batch, seq] each, int64; the target is the byte after each input byte.
struct Batch {
  at::Tensor input;
  at::Tensor target;
};

class Text {
 public:
  explicit Text(const std::string& bytes);

  /// Errors: InvalidArgument when the file cannot be read, or is empty.
  static Text from_file(const std::string& path);

  [[nodiscard]] int64_t num_windows(int64_t seq) const;

  /// Stacks these windows. A window number past the end gives a row whose
  /// targets are all kIgnored.
  [[nodiscard]] Batch batch(const std::vector<int64_t>& windows,
                            int64_t seq) const;

  /// cross_entropy's own "no target here".
  static constexpr int64_t kIgnored = -100;

 private:
  at::Tensor bytes_;  // 1-D, uint8
};

}  // namespace train_text

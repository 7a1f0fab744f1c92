// A text of tokens as batches of windows.
//
//   tokens   5 9 2 7 | 1 4 4 8 | 3 ...        seq = 4
//   window 0 [5 9 2 7]                        input 5 9 2 7, target 9 2 7 1
//   window 1           [1 4 4 8]              input 1 4 4 8, target 4 4 8 3
#pragma once

#include <cstdint>
#include <span>

#include "tessera/train/token_file.h"
#include "tessera/train/train_step.h"

namespace tessera::train {

class TokenBatches {
 public:
  /// tokens: outlive this.
  TokenBatches(const Tokens& tokens, int64_t seq)
      : tokens_(&tokens), seq_(seq) {}

  [[nodiscard]] int64_t num_windows() const {
    return tokens_->num_windows(seq_);
  }

  /// These windows, one below the other. A window that is past the end gives a
  /// row without a target. Errors: as Tokens::read.
  [[nodiscard]] Batch batch(std::span<const int64_t> windows) const;

 private:
  const Tokens* tokens_;
  int64_t seq_;
};

}  // namespace tessera::train

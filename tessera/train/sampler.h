// In which order the windows of a text are trained on, and by which rank.
//
// A pure file. All samples of a run have one number, counted over all epochs
// and ranks; epoch e is samples [e * n, (e + 1) * n), a shuffle of all n
// windows that depends on the seed and e alone:
//
//   sample   0 1 2 3 4 | 5 6 7 8 9 | ...          n = 5
//   window   3 0 4 1 2 | 1 4 0 2 3 | ...
//
// One call of next() on every rank takes the next W * batch samples; rank r has
// those from r * batch on. So every window is used once in an epoch, whether
// W * batch divides n or not, and a run that goes on with another W, and as
// many samples a step, sees the same windows in the same steps.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::train {

/// One shuffle of 0 ... size - 1. A Feistel network over the next power of
/// four, walked until it lands inside: no memory, any element at once.
class Permutation {
 public:
  /// Errors: InvalidArgument for size < 1.
  Permutation(int64_t size, uint64_t seed, uint64_t epoch);
  /// index in [0, size). Cost: four network passes at most, on average.
  [[nodiscard]] int64_t at(int64_t index) const;

 private:
  [[nodiscard]] uint64_t mixed(uint64_t index) const;

  uint64_t size_;
  int half_bits_;
  std::vector<uint64_t> keys_;
};

struct SamplerOptions {
  int64_t num_windows = 0;
  int64_t batch = 1;  // windows that next() gives to this rank
  uint64_t seed = 1;
  int64_t rank = 0;
  int64_t world_size = 1;
};

/// Where a run stands: the next sample is number `sample` of epoch `epoch`.
struct SamplerPosition {
  int64_t epoch = 0;
  int64_t sample = 0;  // in [0, num_windows)

  bool operator==(const SamplerPosition&) const = default;
};

class Sampler {
 public:
  /// Errors: InvalidArgument for num_windows, batch or world_size below 1, or a
  /// rank outside [0, world_size).
  explicit Sampler(const SamplerOptions& options);

  /// This rank's windows; the position moves on by world_size * batch.
  [[nodiscard]] std::vector<int64_t> next();

  [[nodiscard]] SamplerPosition position() const;
  /// Goes on from there. The same on every rank, or ranks would share windows.
  /// Errors: InvalidArgument for a position that this text does not have.
  void seek(const SamplerPosition& position);

  /// Samples that all ranks have taken, over all epochs.
  [[nodiscard]] int64_t samples_taken() const { return next_; }
  /// The same as `seek` by this count.
  void seek(int64_t samples_taken);

 private:
  [[nodiscard]] int64_t window_of(int64_t sample);

  SamplerOptions options_;
  int64_t next_ = 0;
  int64_t epoch_ = 0;
  Permutation order_;  // of epoch_
};

}  // namespace tessera::train

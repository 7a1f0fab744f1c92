#include "tessera/train/sampler.h"

#include <bit>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

constexpr int kRounds = 6;

/// A bijection of 64 bits in which each bit of the input moves all others
/// (the finaliser of SplitMix64).
constexpr uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

const SamplerOptions& checked(const SamplerOptions& o) {
  const auto at_least_one = [](const char* name, int64_t value) {
    require<InvalidArgument>(value >= 1, [&] {
      return str("Sampler: ", name, " is ", value, "; give 1 or more.");
    });
  };
  at_least_one("num_windows", o.num_windows);
  at_least_one("batch", o.batch);
  at_least_one("world_size", o.world_size);
  require<InvalidArgument>(o.rank >= 0 && o.rank < o.world_size, [&] {
    return str("Sampler: rank ", o.rank, " of ", o.world_size, " ranks.");
  });
  return o;
}

}  // namespace

Permutation::Permutation(int64_t size, uint64_t seed, uint64_t epoch)
    : size_(static_cast<uint64_t>(size)) {
  require<InvalidArgument>(size >= 1, [&] {
    return str("Permutation: size is ", size, "; give 1 or more.");
  });
  half_bits_ = (std::bit_width(size_ - 1) + 1) / 2;
  for (uint64_t round = 0; round < kRounds; ++round) {
    keys_.push_back(mix(mix(mix(seed) ^ epoch) + round));
  }
}

uint64_t Permutation::mixed(uint64_t index) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = index >> half_bits_;
  uint64_t right = index & mask;
  for (const uint64_t key : keys_) {
    const uint64_t swapped = left ^ (mix(right ^ key) & mask);
    left = right;
    right = swapped;
  }
  return (left << half_bits_) | right;
}

int64_t Permutation::at(int64_t index) const {
  auto image = mixed(static_cast<uint64_t>(index));
  // A bijection of the power of four: the walk comes back inside before it
  // could come to where another index went.
  while (image >= size_) image = mixed(image);
  return static_cast<int64_t>(image);
}

Sampler::Sampler(const SamplerOptions& options)
    : options_(checked(options)),
      order_(options.num_windows, options.seed, 0) {}

std::vector<int64_t> Sampler::next() {
  std::vector<int64_t> windows(static_cast<size_t>(options_.batch));
  int64_t sample = next_ + options_.rank * options_.batch;
  for (int64_t& window : windows) window = window_of(sample++);
  next_ += options_.world_size * options_.batch;
  return windows;
}

int64_t Sampler::window_of(int64_t sample) {
  const int64_t epoch = sample / options_.num_windows;
  if (epoch != epoch_) {
    epoch_ = epoch;
    order_ = Permutation(options_.num_windows, options_.seed,
                         static_cast<uint64_t>(epoch));
  }
  return order_.at(sample % options_.num_windows);
}

SamplerPosition Sampler::position() const {
  return {.epoch = next_ / options_.num_windows,
          .sample = next_ % options_.num_windows};
}

void Sampler::seek(const SamplerPosition& position) {
  require<InvalidArgument>(
      position.epoch >= 0 && position.sample >= 0 &&
          position.sample < options_.num_windows,
      [&] {
        return str("Sampler: sample ", position.sample, " of epoch ",
                   position.epoch, ", but the text has ", options_.num_windows,
                   " windows; was the run made with another text or seq?");
      });
  seek(position.epoch * options_.num_windows + position.sample);
}

void Sampler::seek(int64_t samples_taken) {
  require<InvalidArgument>(samples_taken >= 0, [&] {
    return str("Sampler: ", samples_taken, " samples taken; give 0 or more.");
  });
  next_ = samples_taken;
}

}  // namespace tessera::train

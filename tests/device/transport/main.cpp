// Gathers and reduce-scatters between GPUs, by the transport that the command
// line names, against their definition; and their speed, alone and beside
// matrix products. Prints a line for each check; exits with 1 when any differs.
// Needs two ranks or more:
//
//   tessera run -n 2 -- device_transport copy_engines
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/cuda/Sleep.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/comm/world.h"
#include "tessera/device/stream.h"
#include "tests/device/transport/measure.h"

namespace {

using namespace tessera;
using torch::Tensor;

constexpr int64_t kSleep = 400'000;  // cycles: a fraction of a millisecond

/// Whole numbers, so that sums of a few ranks are exact in any dtype.
Tensor values(int rank, int64_t numel, torch::Dtype dtype, int64_t seed = 0) {
  return ((torch::arange(numel) * 5 + rank * 7 + seed).remainder(13) + 1)
      .to(dtype);
}

class Checks {
 public:
  Checks(const World& world, std::shared_ptr<Communicator> communicator)
      : device_(world.device()),
        rank_(world.rank()),
        size_(world.size()),
        communicator_(std::move(communicator)) {}

  int run() {
    check_gathers();
    check_reductions();
    check_several_at_once();
    check_pieces();
    check_large();
    check_races();
    check_replays();
    return failures_;
  }

 private:
  void expect(const std::string& what, bool good) {
    if (!good) ++failures_;
    if (rank_ == 0 || !good) {
      std::printf("rank %d: %s: %s\n", rank_, what.c_str(),
                  good ? "ok" : "DIFFERS");
    }
  }

  [[nodiscard]] Tensor gathered(int64_t numel, torch::Dtype dtype,
                                int64_t seed = 0) const {
    std::vector<Tensor> parts;
    for (int r = 0; r < size_; ++r) {
      parts.push_back(values(r, numel, dtype, seed));
    }
    return torch::cat(parts);
  }

  /// Of all ranks' parts of `numel`.
  [[nodiscard]] Tensor whole_sum(int64_t numel, torch::Dtype dtype,
                                 int64_t seed = 0) const {
    Tensor sum = torch::zeros({numel * size_}, torch::kDouble);
    for (int r = 0; r < size_; ++r) {
      sum += values(r, numel * size_, torch::kDouble, seed);
    }
    return sum.to(dtype);
  }

  /// Of this rank's part.
  [[nodiscard]] Tensor summed(int64_t numel, torch::Dtype dtype,
                              int64_t seed = 0) const {
    return whole_sum(numel, dtype, seed).narrow(0, rank_ * numel, numel);
  }

  [[nodiscard]] Tensor unset(int64_t numel, torch::Dtype dtype) const {
    return torch::full({numel}, 77, torch::dtype(dtype).device(device_));
  }

  void check_gathers() {
    for (const auto dtype :
         {torch::kFloat32, torch::kBFloat16, torch::kInt64, torch::kUInt8}) {
      bool good = true;
      for (const int64_t numel : {1, 3, 8, 1000, 4097, 1'000'003, 16, 0}) {
        for (const bool in_place : {false, true}) {
          Tensor output = unset(numel * size_, dtype);
          Tensor input = values(rank_, numel, dtype).to(device_);
          if (in_place) {
            const Tensor slot = output.narrow(0, rank_ * numel, numel);
            slot.copy_(input);
            input = slot;
          }
          const std::vector<GatherCall> calls = {{output, input}};
          communicator_->all_gather(calls, {.unit = "gather"}).wait();
          good = good && torch::equal(output.cpu(), gathered(numel, dtype));
        }
      }
      expect(std::string("all_gather ") + c10::toString(dtype), good);
    }
    for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
      if (!communicator_->gathers_as(torch::kFloat32, dtype)) continue;
      bool good = true;
      for (const int64_t numel : {1, 3, 8, 4097, 1'000'003, 40'000'008, 0}) {
        const Tensor output = unset(numel * size_, dtype);
        // Numbers that are rounded, and differently by rank.
        const auto exact = [&](int rank) {
          return values(rank, numel, torch::kFloat32) / 7;
        };
        const std::vector<GatherCall> calls = {
            {output, exact(rank_).to(device_)}};
        communicator_->all_gather(calls, {.unit = "cast"}).wait();
        for (int r = 0; r < size_; ++r) {
          good = good && torch::equal(output.narrow(0, r * numel, numel).cpu(),
                                      exact(r).to(dtype));
        }
      }
      expect(std::string("all_gather float32 as ") + c10::toString(dtype),
             good);
    }
  }

  void check_reductions() {
    struct Types {
      torch::Dtype from, to;
    };
    for (const auto& [from, to] : {Types{torch::kFloat32, torch::kFloat32},
                                   Types{torch::kBFloat16, torch::kBFloat16},
                                   Types{torch::kHalf, torch::kHalf},
                                   Types{torch::kInt64, torch::kInt64},
                                   Types{torch::kBFloat16, torch::kFloat32},
                                   Types{torch::kHalf, torch::kFloat32}}) {
      if (!communicator_->sums_as(from, to)) continue;
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
        if (op == ReduceOp::avg && from == torch::kInt64) continue;
        bool good = true;
        for (const int64_t numel : {1, 3, 8, 1000, 4097, 1'000'003, 16, 0}) {
          Tensor output = unset(numel, to);
          const Tensor input = values(rank_, numel * size_, from).to(device_);
          const std::vector<ReduceCall> calls = {{output, input}};
          communicator_->reduce_scatter(calls, {.unit = "reduce"}, op).wait();
          Tensor expected = summed(numel, torch::kDouble);
          if (op == ReduceOp::avg) expected /= size_;
          good = good && torch::allclose(output.cpu().to(torch::kDouble),
                                         expected, 1e-2, 0);
          if (op == ReduceOp::sum || (size_ & (size_ - 1)) == 0) {
            good = good && torch::equal(output.cpu(), expected.to(to));
          }
        }
        expect(std::string("reduce_scatter ") +
                   (op == ReduceOp::sum ? "sum " : "avg ") +
                   c10::toString(from) + " as " + c10::toString(to),
               good);
      }
    }
  }

  void check_several_at_once() {
    const std::vector<int64_t> sizes = {5, 0, 64, 1, 70'001, 12};
    std::vector<GatherCall> gathers;
    std::vector<ReduceCall> reductions;
    for (const int64_t numel : sizes) {
      gathers.push_back({unset(numel * size_, torch::kBFloat16),
                         values(rank_, numel, torch::kBFloat16).to(device_)});
      reductions.push_back(
          {unset(numel, torch::kFloat32),
           values(rank_, numel * size_, torch::kFloat32).to(device_)});
    }
    communicator_->all_gather(gathers, {.unit = "several"}).wait();
    communicator_->reduce_scatter(reductions, {.unit = "several"}).wait();
    bool good = true;
    for (size_t i = 0; i < sizes.size(); ++i) {
      good = good &&
             torch::equal(gathers[i].output.cpu(),
                          gathered(sizes[i], torch::kBFloat16)) &&
             torch::equal(reductions[i].output.cpu(),
                          summed(sizes[i], torch::kFloat32));
    }
    expect("several at once", good);
  }

  // Inputs in pieces of odd sizes, with gaps that no rank sends: some cross the
  // ranks' parts, one call is larger than a window, one has nothing to sum.
  void check_pieces() {
    if (!communicator_->takes_pieces(torch::kBFloat16, torch::kFloat32)) {
      return;
    }
    struct Stretch {
      int64_t offset, numel;
    };
    const std::vector<std::pair<int64_t, std::vector<Stretch>>> wholes = {
        {1000, {{0, 8}, {8, 0}, {16, 700}, {716, 1}, {900, 1100}}},
        {10, {}},
        {20'000'000, {{3, 29'000'001}, {29'100'000, 10'900'000}}},
        {64, {{0, 64 * size_}}}};
    std::vector<PiecewiseReduceCall> calls;
    std::vector<Tensor> expected;
    for (const auto& [numel, stretches] : wholes) {
      const Tensor own = values(rank_, numel * size_, torch::kBFloat16);
      const Tensor sums = whole_sum(numel, torch::kFloat32);
      Tensor masked = torch::zeros_like(sums);
      PiecewiseReduceCall call{.output = unset(numel, torch::kFloat32),
                               .dtype = torch::kBFloat16,
                               .pieces = {}};
      for (const auto& [offset, length] : stretches) {
        const int64_t end = std::min(offset + length, numel * size_);
        call.pieces.push_back({own.slice(0, offset, end).to(device_), offset});
        masked.slice(0, offset, end).copy_(sums.slice(0, offset, end));
      }
      calls.push_back(std::move(call));
      expected.push_back(masked.narrow(0, rank_ * numel, numel));
    }
    communicator_->reduce_scatter_pieces(calls, {.unit = "pieces"}).wait();
    bool good = true;
    for (size_t i = 0; i < calls.size(); ++i) {
      good = torch::equal(calls[i].output.cpu(), expected[i]) && good;
    }
    expect("sums of pieces", good);
  }

  // More than a window holds, with ends in the middle of a round.
  void check_large() {
    constexpr int64_t kNumel = 21'000'003;
    const Tensor whole = unset((kNumel + 5) * size_, torch::kFloat32);
    const Tensor few = whole.narrow(0, 0, 5 * size_);
    const Tensor many = whole.narrow(0, 5 * size_, kNumel * size_);
    const std::vector<GatherCall> gathers = {
        {few, values(rank_, 5, torch::kFloat32).to(device_)},
        {many, values(rank_, kNumel, torch::kFloat32).to(device_)}};
    communicator_->all_gather(gathers, {.unit = "large"}).wait();
    const Tensor part = unset(kNumel, torch::kFloat32);
    const std::vector<ReduceCall> reductions = {{part, many}};
    communicator_->reduce_scatter(reductions, {.unit = "large"}).wait();
    const Tensor expected = gathered(kNumel, torch::kFloat32);
    expect(
        "84 MB of each rank",
        torch::equal(few.cpu(), gathered(5, torch::kFloat32)) &&
            torch::equal(many.cpu(), expected) &&
            torch::equal(part.cpu(),
                         expected.narrow(0, rank_ * kNumel, kNumel) * size_));
  }

  struct Race {
    int64_t numel;
    bool gathers;
    int late;    // the rank
    int stream;  // of two
    Tensor input, output;
  };

  // The same on all ranks, but for the values.
  [[nodiscard]] std::vector<Race> make_races(int count) const {
    std::mt19937 random(7);
    std::vector<Race> races;
    for (int i = 0; i < count; ++i) {
      Race race{.numel = 1 + static_cast<int64_t>(random() % 300'000),
                .gathers = random() % 2 == 0,
                .late = static_cast<int>(random() % size_),
                .stream = static_cast<int>(random() % 2),
                .input = {},
                .output = {}};
      const int64_t whole = race.numel * size_;
      race.input =
          values(rank_, race.gathers ? race.numel : whole, torch::kFloat32, i)
              .to(device_);
      race.output = unset(race.gathers ? whole : race.numel, torch::kFloat32);
      races.push_back(race);
    }
    return races;
  }

  // Calls without a pause on two streams, while ranks are late in turn and
  // inputs are overwritten as soon as their calls are issued. The host waits
  // for nothing in between: all are in flight together.
  void check_races() {
    const std::vector<c10::Stream> streams = {
        make_stream(device_, StreamPriority::high),
        make_stream(device_, StreamPriority::normal)};
    std::vector<Race> races = make_races(300);
    torch::cuda::synchronize();
    for (const Race& race : races) {
      const StreamScope scope(streams[race.stream]);
      if (rank_ == race.late) at::cuda::sleep(kSleep);
      if (race.gathers) {
        const std::vector<GatherCall> calls = {{race.output, race.input}};
        (void)communicator_->all_gather(calls, {.unit = "races"});
      } else {
        const std::vector<ReduceCall> calls = {{race.output, race.input}};
        (void)communicator_->reduce_scatter(calls, {.unit = "races"});
      }
      Tensor(race.input).fill_(-1);
    }
    torch::cuda::synchronize();
    bool good = true;
    for (size_t i = 0; i < races.size(); ++i) {
      const auto seed = static_cast<int64_t>(i);
      const Race& race = races[i];
      good = torch::equal(race.output.cpu(),
                          race.gathers
                              ? gathered(race.numel, torch::kFloat32, seed)
                              : summed(race.numel, torch::kFloat32, seed)) &&
             good;
    }
    expect("300 calls without a pause", good);
  }

  // An odd number of calls in the graph, and other calls between its replays.
  void check_replays() {
    constexpr int64_t kNumel = 20'011;
    const auto stream = make_stream(device_, StreamPriority::normal);
    const StreamScope scope(stream);
    Tensor input = values(rank_, kNumel, torch::kFloat32).to(device_);
    Tensor whole = unset(kNumel * size_, torch::kFloat32);
    Tensor part = unset(kNumel, torch::kFloat32);
    const auto body = [&] {
      for (int i = 0; i < 3; ++i) {
        const std::vector<GatherCall> gather = {{whole, input}};
        (void)communicator_->all_gather(gather, {.unit = "replay"});
        if (i == 1) continue;
        const std::vector<ReduceCall> reduce = {{part, whole}};
        (void)communicator_->reduce_scatter(reduce, {.unit = "replay"});
      }
    };
    body();
    torch::cuda::synchronize();
    at::cuda::CUDAGraph graph;
    graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    body();
    graph.capture_end();
    bool good = true;
    for (int64_t i = 0; i < 12; ++i) {
      if (i % size_ == rank_) at::cuda::sleep(kSleep);
      input.copy_(values(rank_, kNumel, torch::kFloat32, i));
      whole.fill_(-1);
      graph.replay();
      if (i % 3 == 1) {
        const Tensor extra = unset(5 * size_, torch::kFloat32);
        const std::vector<GatherCall> gather = {
            {extra, values(rank_, 5, torch::kFloat32, i).to(device_)}};
        (void)communicator_->all_gather(gather, {.unit = "between"});
        good =
            torch::equal(extra.cpu(), gathered(5, torch::kFloat32, i)) && good;
      }
      const Tensor all = gathered(kNumel, torch::kFloat32, i);
      good = torch::equal(whole.cpu(), all) && good;
      good = torch::equal(part.cpu(),
                          all.narrow(0, rank_ * kNumel, kNumel) * size_) &&
             good;
    }
    expect("12 replays of a graph of 5 calls", good);
  }

  const c10::Device device_;
  const int rank_;
  const int size_;
  std::shared_ptr<Communicator> communicator_;
  int failures_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::string transport = argc > 1 ? argv[1] : "copy_engines";
  const World world = init_distributed(
      {.timeout = std::chrono::minutes(1),
       .transport =
           transport == "nccl" ? Transport::nccl : Transport::copy_engines});
  std::vector<int> ranks;
  for (int r = 0; r < world.size(); ++r) ranks.push_back(r);
  const auto communicator = world.make_communicator("test/gather", ranks);
  const int failures = Checks(world, communicator).run();
  device_transport::measure(world, *communicator, transport);
  world.barrier();
  return failures == 0 ? 0 : 1;
}

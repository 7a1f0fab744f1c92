#include "tessera/comm/peer_link.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/byte_overlap.h"
#include "tessera/comm/call_bytes.h"
#include "tessera/comm/peer_rounds.h"
#include "tessera/comm/peer_window.h"
#include "tessera/device/capture.h"
#include "tessera/device/host_memory.h"
#include "tessera/kernels/element_of.h"
#include "tessera/kernels/launch.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kFlagBytes = (cuda::kMostPeers + 1) * sizeof(uint64_t);

char* bytes_of(const at::Tensor& tensor) {
  return static_cast<char*>(tensor.mutable_data_ptr());
}

int64_t window_bytes(const PeerLink::Place& place) {
  return place.window_mib << 20;
}

class CudaPeerLink final : public PeerLink {
 public:
  CudaPeerLink(const Place& place, PeerWindow window)
      : place_(place),
        half_bytes_(window_bytes(place) / 2),
        window_(std::move(window)),
        host_words_(make_host_bytes(2 * sizeof(uint64_t), place.device)) {
    std::fill_n(bytes_of(host_words_), host_words_.numel(), 0);
  }

  static PeerWindow make_window(const Place& place, const Exchange& exchange,
                                std::string& why) {
    return {window_bytes(place) + kFlagBytes, place, exchange, why};
  }

  bool sums(c10::ScalarType from, c10::ScalarType to) const override {
    return cuda::element_of(from) && (from == to || to == c10::kFloat);
  }

  bool casts(c10::ScalarType from, c10::ScalarType to) const override {
    return from == c10::kFloat && (to == c10::kBFloat16 || to == c10::kHalf);
  }

  void all_gather(std::span<const GatherCall> calls) override {
    const auto parts = part_bytes(calls);
    begin_call();
    const auto rounds = plan_peer_rounds(parts, half_bytes_);
    for (const auto& round : rounds) {
      take_other_half();
      std::vector<cuda::CastToTwo> casts;
      for (const PeerPiece& piece : round) {
        offer(calls[piece.part], parts[piece.part], piece, casts);
      }
      launch(casts);
      meet(number_of(round, rounds));
      for (int i = 1; i < place_.size; ++i) {
        const int peer = (place_.rank + i) % place_.size;  // not all from one
        for (const PeerPiece& piece : round) {
          copy(bytes_of(calls[piece.part].output) + peer * parts[piece.part] +
                   piece.offset,
               window_.of(peer) + half_ + piece.place, piece.bytes);
        }
      }
    }
    end_call();
  }

  void reduce_scatter(std::span<const PiecewiseReduceCall> calls,
                      double scale) override {
    const auto parts = part_bytes(calls);
    std::vector<std::vector<ByteRange>> inputs;
    for (const auto& call : calls) inputs.push_back(ranges_of(call));
    begin_call();
    for (size_t i = 0; i < calls.size(); ++i) {
      zero_gaps(calls[i], inputs[i], parts[i]);
    }
    const auto rounds = plan_peer_rounds(parts, sender_bytes());
    for (const auto& round : rounds) {
      take_other_half();
      for (int i = 1; i < place_.size; ++i) {
        const int peer = (place_.rank + i) % place_.size;
        for (const PeerPiece& piece : round) {
          send(calls[piece.part], inputs[piece.part], piece,
               peer * parts[piece.part], peer);
        }
      }
      meet(number_of(round, rounds));
      std::vector<cuda::SumOfParts> sums;
      for (const PeerPiece& piece : round) {
        add(calls[piece.part], inputs[piece.part], piece,
            place_.rank * parts[piece.part], scale, sums);
      }
      launch(sums);
    }
    end_call();
  }

  void expect_replays() override { replays_ = true; }

  void before_replay(const c10::Stream& stream) override {
    last_call_.block(stream);
  }
  void after_replay(const c10::Stream& stream) override {
    last_call_.record(stream);
  }

  void watch(const CollectiveEntry& entry) override {
    if (watched_ == issued_) return;
    watched_ = issued_;
    const std::lock_guard lock(mutex_);
    if (forget_arrived()) went_on_ = Clock::now();
    under_way_.push_back({issued_, entry, Clock::now()});
  }

  std::optional<CollectiveEntry> overdue(
      std::chrono::milliseconds patience) override {
    const std::lock_guard lock(mutex_);
    if (forget_arrived()) went_on_ = Clock::now();
    if (under_way_.empty()) return std::nullopt;
    const auto since = std::max(went_on_, under_way_.front().issued);
    if (Clock::now() - since < patience) return std::nullopt;
    CollectiveEntry entry = under_way_.front().entry;
    entry.started = since;
    return entry;
  }

  void stop() noexcept override {
    *static_cast<volatile int*>(stop_word()) = 1;
  }

  void drain() noexcept override {
    try {
      last_call_.synchronize();
    } catch (const std::exception&) {
      // The device failed; others say so.
    }
  }

 private:
  struct UnderWay {
    uint64_t number;
    CollectiveEntry entry;
    Clock::time_point issued;
  };

  [[nodiscard]] uint64_t* arrived_word() const {
    return reinterpret_cast<uint64_t*>(bytes_of(host_words_));
  }
  [[nodiscard]] int* stop_word() const {
    return reinterpret_cast<int*>(bytes_of(host_words_) + sizeof(uint64_t));
  }
  /// By rank, then the epoch.
  [[nodiscard]] uint64_t* flags_of(int rank) const {
    return reinterpret_cast<uint64_t*>(window_.of(rank) + 2 * half_bytes_);
  }

  /// What one of the others may send in a round of a reduce-scatter.
  [[nodiscard]] int64_t sender_bytes() const {
    return half_bytes_ / (place_.size - 1) / kPeerAlignment * kPeerAlignment;
  }
  /// In the window of `owner`, which keeps no place for itself.
  [[nodiscard]] char* place_of_sender(int sender, int owner) const {
    const int place = sender < owner ? sender : sender - 1;
    return window_.of(owner) + half_ + place * sender_bytes();
  }

  [[nodiscard]] char* own_slot(const GatherCall& call, int64_t bytes) const {
    return bytes_of(call.output) + place_.rank * bytes;
  }

  /// Writes a piece of this rank's part to its slot of the output and to its
  /// window; a cast is left to be launched.
  void offer(const GatherCall& call, int64_t part_bytes, const PeerPiece& piece,
             std::vector<cuda::CastToTwo>& casts) const {
    char* slot = own_slot(call, part_bytes) + piece.offset;
    char* window = window_.of(place_.rank) + half_ + piece.place;
    if (call.input.scalar_type() == call.output.scalar_type()) {
      copy(slot, bytes_of(call.input) + piece.offset, piece.bytes);
      copy(window, slot, piece.bytes);
      return;
    }
    const auto element_bytes = size_of(call.output.scalar_type());
    const int64_t first = piece.offset / element_bytes;
    casts.push_back({.to = *cuda::element_of(call.output.scalar_type()),
                     .numel = piece.bytes / element_bytes,
                     .input = call.input.const_data_ptr<float>() + first,
                     .outputs = {slot, window}});
  }

  template <class Call>
  void launch(const std::vector<Call>& calls) const {
    cuda::launch(calls.data(), static_cast<int>(calls.size()), stream_);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }

  void copy(void* to, const void* from, int64_t bytes) const {
    if (to == from || bytes == 0) return;
    C10_CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes),
                                   cudaMemcpyDeviceToDevice, stream_));
  }

  // Calls of one link follow each other, whatever streams they are on; so do
  // replays of GraphedStep.
  void begin_call() {
    const auto current = c10::cuda::getCurrentCUDAStream(place_.device.index());
    stream_ = current.stream();
    // 0 outside of a capture.
    const uint64_t capture = capture_id(place_.device).value_or(0);
    const bool changed = capture != capture_;
    if (capture == 0) {
      last_call_.block(current.unwrap());
    } else if (!changed) {
      last_captured_.block(current.unwrap());
    }
    capture_ = capture;
    replays_ = replays_ || capture != 0;
    if (changed || (replays_ && capture == 0)) {
      meet(0);
      // A capture may have ended early on some ranks.
      half_ = 0;
    }
  }

  void take_other_half() { half_ = half_ == 0 ? half_bytes_ : 0; }

  void end_call() {
    (capture_ == 0 ? last_call_ : last_captured_)
        .record(
            c10::cuda::getCurrentCUDAStream(place_.device.index()).unwrap());
  }

  /// When a call's last round has come, all of it has.
  template <class Round>
  uint64_t number_of(const Round& round, const std::vector<Round>& rounds) {
    return capture_ == 0 && &round == &rounds.back() ? ++issued_ : 0;
  }

  void meet(uint64_t number) const {
    cuda::PeerMeeting meeting{.rank = place_.rank,
                              .num_ranks = place_.size,
                              .epoch = flags_of(place_.rank) + place_.size,
                              .own_flags = flags_of(place_.rank),
                              .peer_flags = {},
                              .stop = stop_word(),
                              .arrived = arrived_word(),
                              .number = number};
    for (int peer = 0; peer < place_.size; ++peer) {
      meeting.peer_flags[peer] = flags_of(peer);
    }
    cuda::launch(meeting, stream_);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }

  static char* input_of(const PiecewiseReduceCall& call,
                        const ByteOverlap& overlap) {
    return bytes_of(call.pieces[overlap.piece].values) + overlap.in_piece;
  }

  /// `part`: where the part of `peer` begins in the whole input, in bytes.
  void send(const PiecewiseReduceCall& call, std::span<const ByteRange> input,
            const PeerPiece& piece, int64_t part, int peer) const {
    char* to = place_of_sender(place_.rank, peer) + piece.place;
    for (const ByteOverlap& overlap :
         overlaps({part + piece.offset, piece.bytes}, input)) {
      copy(to + overlap.in_range, input_of(call, overlap), overlap.bytes);
    }
  }

  void add(const PiecewiseReduceCall& call, std::span<const ByteRange> input,
           const PeerPiece& piece, int64_t part, double scale,
           std::vector<cuda::SumOfParts>& sums) const {
    const auto from_bytes = size_of(call.dtype);
    const auto to_bytes = size_of(call.output.scalar_type());
    for (const ByteOverlap& overlap :
         overlaps({part + piece.offset, piece.bytes}, input)) {
      const int64_t first = (piece.offset + overlap.in_range) / from_bytes;
      sums.push_back({.from = *cuda::element_of(call.dtype),
                      .to = *cuda::element_of(call.output.scalar_type()),
                      .numel = overlap.bytes / from_bytes,
                      .num_parts = place_.size,
                      .scale = static_cast<float>(scale),
                      .parts = {},
                      .output = bytes_of(call.output) + first * to_bytes});
      for (int sender = 0; sender < place_.size; ++sender) {
        sums.back().parts[sender] = sender == place_.rank
                                        ? input_of(call, overlap)
                                        : place_of_sender(sender, place_.rank) +
                                              piece.place + overlap.in_range;
      }
    }
  }

  void zero_gaps(const PiecewiseReduceCall& call,
                 std::span<const ByteRange> input, int64_t part_bytes) const {
    const auto from_bytes = size_of(call.dtype);
    const auto to_bytes = size_of(call.output.scalar_type());
    for (const ByteRange& gap :
         gaps({place_.rank * part_bytes, part_bytes}, input)) {
      C10_CUDA_CHECK(cudaMemsetAsync(
          bytes_of(call.output) + gap.begin / from_bytes * to_bytes, 0,
          static_cast<size_t>(gap.bytes / from_bytes * to_bytes), stream_));
    }
  }

  bool forget_arrived() {
    const uint64_t arrived =
        *static_cast<const volatile uint64_t*>(arrived_word());
    bool any = false;
    while (!under_way_.empty() && under_way_.front().number <= arrived) {
      under_way_.pop_front();
      any = true;
    }
    return any;
  }

  const Place place_;
  const int64_t half_bytes_;       // of the window
  PeerWindow window_;              // two halves, then the flags
  at::Tensor host_words_;          // pinned: what arrived, whether to stop
  int64_t half_ = 0;               // offset of the half of this round
  cudaStream_t stream_ = nullptr;  // of this call
  uint64_t capture_ = 0;           // of this call
  bool replays_ = false;           // may come between calls
  StreamEvent last_call_;          // or replay
  StreamEvent last_captured_;      // of this capture
  uint64_t issued_ = 0;            // calls outside of captures
  uint64_t watched_ = 0;           // of these

  std::mutex mutex_;
  std::deque<UnderWay> under_way_;
  Clock::time_point went_on_;
};

}  // namespace

std::shared_ptr<PeerLink> PeerLink::connect(const Place& place,
                                            const Exchange& exchange,
                                            std::string& why) {
  static_assert(kMostPeerRanks <= cuda::kMostPeers);
  if (place.size > kMostPeerRanks) {
    why = str("it has more than ", kMostPeerRanks, " ranks");
    return nullptr;
  }
  PeerWindow window = CudaPeerLink::make_window(place, exchange, why);
  if (!why.empty()) return nullptr;
  return std::make_shared<CudaPeerLink>(place, std::move(window));
}

}  // namespace tessera

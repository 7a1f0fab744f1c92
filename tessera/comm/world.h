// The ranks of one job, as this rank sees them.
//
//   World world = init_distributed();  // torchrun, plain RANK/WORLD_SIZE, or 1
//   ...
//   world.finish();                    // throws what is found last
//
// A World is a cheap handle; copies share one state. Communicators are created
// eagerly, in the order in which they are asked for, which must be the same on
// every rank.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/comm/stores.h"
#include "tessera/comm/transport.h"

namespace tessera {

class Communicator;
class CollectiveLog;
class ReplayedCalls;

enum class CommBackend { automatic, gloo, nccl };

/// What a failed collective does to its process, on every rank.
enum class OnTimeout {
  throw_error,  // CommError where this rank waits next, and nothing more
  end_process,  // as above; and when the process has not ended or dropped its
                // World 3 s later (rank 0: 5 s), it is ended with code 70
};

struct InitOptions {
  // Where the ranks meet: "env://", which is the default, "tcp://host:port" or
  // "file:///path"; see init_method.h.
  std::string init_method = "";
  // A store that all ranks reach and that holds no other job, instead.
  Store store = {};
  // For tcp://, file:// and a store; with env:// they replace the variables.
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
  // Where this rank computes. Unset: the CUDA device LOCAL_RANK with NCCL, else
  // the CPU. It must fit the backend.
  std::optional<c10::Device> device = {};
  // automatic: NCCL when a CUDA device is there and this is a CUDA build.
  CommBackend backend = CommBackend::automatic;
  // A collective that takes longer ends the job with a table. Unset: 10 min for
  // NCCL, 30 min for Gloo.
  std::optional<std::chrono::milliseconds> timeout = {};
  OnTimeout on_timeout = OnTimeout::end_process;
  // Unset: TESSERA_TRANSPORT, else nccl. On CPU there is no copy_engines.
  std::optional<Transport> transport = {};
  // Of copy_engines: MiB of device memory that each rank lends the others for
  // each communicator, 1 to 4096. Less memory, or fewer meetings of the ranks.
  // Unset: TESSERA_WINDOW_MIB, else 64.
  std::optional<int64_t> window_mib = {};
};

class World {
 public:
  struct State;

  World() = default;  // undefined; a mesh made of it is an error
  explicit World(std::shared_ptr<State> state) : state_(std::move(state)) {}

  [[nodiscard]] bool defined() const { return state_ != nullptr; }
  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;
  [[nodiscard]] int local_rank() const;
  /// Where this rank computes: cpu, or cuda:<local rank>.
  [[nodiscard]] c10::Device device() const;
  [[nodiscard]] std::chrono::milliseconds timeout() const;
  [[nodiscard]] Transport transport() const;
  /// What init_distributed took its place from, with the variables that
  /// decided it: "Slurm (SLURM_PROCID 3, SLURM_NTASKS 8, SLURM_LOCALID 1)".
  [[nodiscard]] const std::string& launcher() const;
  [[nodiscard]] CollectiveLog& log() const;
  /// For tessera/graph.
  [[nodiscard]] ReplayedCalls& replayed() const;
  /// For tessera/graph: around each replay on `stream`.
  void before_replay(const c10::Stream& stream) const;
  void after_replay(const c10::Stream& stream) const;
  /// Errors: CommError when this job has failed, InvalidState after `finish`.
  void check_alive() const;

  /// A communicator over `ranks` (world ranks, in this order; this rank must be
  /// among them). `name` must be the same on all its ranks and new to them.
  [[nodiscard]] std::shared_ptr<Communicator> make_communicator(
      const std::string& name, const std::vector<int>& ranks) const;

  /// Every rank's bytes, in rank order, through the store.
  [[nodiscard]] std::vector<std::string> exchange(std::string_view key,
                                                  std::string_view bytes) const;

  /// The end of the job on this rank: looks at what was not compared yet, and
  /// returns when all ranks have come here. No collective follows it; a second
  /// call does nothing. Where it is not called, the last handle's destructor
  /// does the same, but can only log what it finds, and the process ends as if
  /// nothing had been.
  /// Errors: CommError when ranks issued unlike collectives, or one has failed
  ///         or does not come; InvalidState in later collectives.
  void finish() const;

  /// Returns when all ranks have called it. For set-up and teardown.
  void barrier() const;

  /// 0, 1, 2, ...: for names that must be new. The same on every rank when all
  /// call in the same order.
  [[nodiscard]] int64_t next_id() const;

  /// Inside comm only.
  [[nodiscard]] const std::shared_ptr<State>& state() const { return state_; }

  bool operator==(const World& other) const = default;

 private:
  std::shared_ptr<State> state_;
};

/// Joins the job that the options name or, without any, the environment
/// describes: torchrun's variables (agent hosted store included), plain RANK /
/// WORLD_SIZE / MASTER_ADDR / MASTER_PORT, those of Open MPI, MPICH, MVAPICH2,
/// jsrun, Slurm or a Kubernetes indexed Job (tessera/comm/launch.h has the
/// order), or else one process. Says on rank 0 which it took; so does
/// World::launcher.
/// Errors: InvalidArgument for half-set, impossible or contradictory options or
///         variables,
///         CommError when the store cannot be reached.
[[nodiscard]] World init_distributed(const InitOptions& options = {});

/// Runs `body` on `world_size` threads of this process, each with a World of
/// its own over Gloo and an in-process store. For tests.
///
/// A rank that waits for a peer longer than `timeout` fails by CommError. When
/// a rank fails, the others fail within about a second wherever they wait;
/// then the failure of the lowest rank that failed by itself is rethrown, with
/// its type, its rank named in front. A rank that returns while another waits
/// for it counts as failed. A body that does not return keeps run_ranks from
/// returning: when no rank has begun or ended a collective for 3 * timeout (30
/// s at least) and none has returned, the process prints where the ranks stand
/// and aborts.
template <class Body>
void run_ranks(int world_size, Body&& body,
               std::chrono::milliseconds timeout = std::chrono::seconds(60));

namespace internal {
void run_ranks(int world_size, void (*call)(void*, const World&), void* body,
               std::chrono::milliseconds timeout);
}

template <class Body>
void run_ranks(int world_size, Body&& body, std::chrono::milliseconds timeout) {
  using B = std::remove_reference_t<Body>;
  internal::run_ranks(
      world_size,
      [](void* b, const World& world) { (*static_cast<B*>(b))(world); },
      const_cast<void*>(static_cast<const void*>(&body)), timeout);
}

}  // namespace tessera

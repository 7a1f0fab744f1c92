// What the communicators of all backends share. Inside comm only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/comm/world_state.h"

namespace tessera {

/// Name, place, log, and what goes through the store.
class CommunicatorBase : public Communicator {
 public:
  CommunicatorBase(std::shared_ptr<World::State> world, std::string name,
                   const std::vector<int>& ranks);

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] CollectiveLog& log() const override { return world_->log; }
  [[nodiscard]] c10::Device device() const override {
    return world_->place.device;
  }

  Pending reduce_scatter_pieces(std::span<const PiecewiseReduceCall> calls,
                                const CallLabel& label, ReduceOp op) override;
  void barrier(const CallLabel& label) override;
  [[nodiscard]] std::vector<std::string> exchange(
      std::string_view bytes, const CallLabel& label) override;
  void check_later(DeferredCheck check) override;
  void run_due_checks() override;
  [[noreturn]] void give_up(const std::string& cause) override;

 protected:
  [[nodiscard]] const std::shared_ptr<World::State>& world() const {
    return world_;
  }

  /// Errors: InvalidArgument that names the call, the communicator and what
  ///         does not fit: device, layout, dtype or numel.
  /// Those with a call mark shards and gradients that it writes as changed.
  void check(const GatherCall& call, const CallLabel& label) const;
  void check(const ReduceCall& call, const CallLabel& label) const;
  void check(const PiecewiseReduceCall& call, const CallLabel& label) const;
  void check(const char* kind, const at::Tensor& tensor,
             const CallLabel& label) const;
  void check(ReduceOp op) const;
  void check_reduce_scatter(ReduceOp op) const;

 private:
  void check_slots(const char* kind, const at::Tensor& whole,
                   const at::Tensor& part, bool dtypes_fit,
                   const CallLabel& label) const;

  std::shared_ptr<World::State> world_;
  std::string name_;
  int rank_;
  int size_;
  Rendezvous rendezvous_;
};

/// Connects (Gloo or NCCL, as the world's device asks). All `ranks` call it.
[[nodiscard]] std::shared_ptr<Communicator> make_backend_communicator(
    const std::shared_ptr<World::State>& world, const std::string& name,
    const std::vector<int>& ranks);

/// The n-th of the equal slots of a flat buffer.
[[nodiscard]] at::Tensor slot_of(const at::Tensor& buffer, int slot, int slots);

}  // namespace tessera

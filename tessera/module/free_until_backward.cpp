#include "tessera/module/free_until_backward.h"

#include <torch/csrc/autograd/grad_mode.h>

#include <memory>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/module/storage_memory.h"

namespace tessera {

namespace {

/// A storage without memory, and how to get it back. Lives in the users' hooks;
/// once it is filled it holds nothing, or all that `again` reads would live
/// until the graph dies.
class Freed {
 public:
  Freed(c10::Storage storage, std::function<at::Tensor()> again)
      : storage_(std::move(storage)), again_(std::move(again)) {
    internal::take_memory(storage_);
  }

  void fill() {
    if (!again_) return;
    const torch::NoGradGuard no_grad;
    const at::Tensor value = std::exchange(again_, nullptr)();
    c10::Storage filled = std::exchange(storage_, c10::Storage());
    require<InvalidState>(
        value.is_contiguous() && value.storage_offset() == 0 &&
            value.storage().nbytes() == filled.nbytes() &&
            value.device() == filled.device(),
        [&] {
          return str("free_until_backward: the value had ", filled.nbytes(),
                     " bytes; computed again it is of ", value.sizes(), " (",
                     c10::toString(value.scalar_type()), ", ",
                     value.storage().nbytes(), " bytes).");
        });
    internal::give_memory(filled, value.storage());
  }

 private:
  c10::Storage storage_;
  std::function<at::Tensor()> again_;
};

}  // namespace

void free_until_backward(const at::Tensor& value,
                         const std::vector<at::Tensor>& users,
                         std::function<at::Tensor()> again) {
  internal::require_whole_storage(value, "free_until_backward");
  std::shared_ptr<Freed> freed;
  for (const at::Tensor& user : users) {
    if (!user.requires_grad()) continue;
    if (!freed) {
      freed = std::make_shared<Freed>(value.storage(), std::move(again));
    }
    user.register_hook([freed](const at::Tensor&) { freed->fill(); });
  }
}

}  // namespace tessera

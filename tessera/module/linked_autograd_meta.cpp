#include "tessera/module/linked_autograd_meta.h"

#include "tessera/module/gated_storage.h"

namespace tessera {

namespace {

using torch::autograd::AutogradMeta;

// Both sides of a link point to it; a side that dies leaves it.
struct Link {
  AutogradMeta* full = nullptr;
  AutogradMeta* shard = nullptr;
  bool agreed = false;

  void update() {
    bool flag = agreed;
    if (full && full->requires_grad_ != agreed) flag = full->requires_grad_;
    if (shard && shard->requires_grad_ != agreed) flag = shard->requires_grad_;
    if (flag == agreed) return;
    agreed = flag;
    if (full) full->requires_grad_ = flag;
    if (shard) shard->requires_grad_ = flag;
  }
};

class LinkedAutogradMeta final : public AutogradMeta {
 public:
  LinkedAutogradMeta(std::shared_ptr<Link> link, AutogradMeta* Link::* side)
      : link_(std::move(link)), side_(side) {
    link_.get()->*side_ = this;
  }
  ~LinkedAutogradMeta() override { link_.get()->*side_ = nullptr; }

  bool requires_grad() const override {
    link_->update();
    return requires_grad_ || grad_fn_;
  }

  // Autograd itself and `zero_grad` use `mutable_grad`.
  const torch::autograd::Variable& grad() const override {
    if (!grad_.defined() && side_ == &Link::full) refuse();
    return grad_;
  }

  void set_tensor(const at::Tensor& tensor) {
    tensor_ = WeakTensor(tensor.getIntrusivePtr());
  }

  // Takes over what users may have put on the tensor before.
  void take(AutogradMeta& from) {
    name_ = std::move(from.name_);
    grad_ = std::move(from.grad_);
    grad_accumulator_ = std::move(from.grad_accumulator_);
    hooks_ = std::move(from.hooks_);
    cpp_hooks_list_ = std::move(from.cpp_hooks_list_);
    post_acc_grad_hooks_ = std::move(from.post_acc_grad_hooks_);
  }

 private:
  using WeakTensor =
      c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  void refuse() const {
    const at::Tensor tensor(tensor_.lock());
    const GatedStorage* storage =
        tensor.defined() ? gated_storage_of(tensor) : nullptr;
    if (storage && storage->owner()) storage->owner()->refuse_grad(tensor);
  }

  WeakTensor tensor_{
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
  std::shared_ptr<Link> link_;
  AutogradMeta* Link::* side_;
};

void replace_meta(const at::Tensor& tensor, const std::shared_ptr<Link>& link,
                  AutogradMeta* Link::* side) {
  auto meta = std::make_unique<LinkedAutogradMeta>(link, side);
  if (auto* old = torch::autograd::impl::get_autograd_meta(tensor)) {
    meta->take(*old);
  }
  meta->requires_grad_ = link->agreed;
  meta->set_tensor(tensor);
  tensor.unsafeGetTensorImpl()->set_autograd_meta(std::move(meta));
}

}  // namespace

void link_requires_grad(const at::Tensor& full, const at::Tensor& shard) {
  auto link = std::make_shared<Link>();
  link->agreed = full.requires_grad();
  replace_meta(full, link, &Link::full);
  replace_meta(shard, link, &Link::shard);
}

}  // namespace tessera

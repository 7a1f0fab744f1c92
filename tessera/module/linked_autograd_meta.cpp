#include "tessera/module/linked_autograd_meta.h"

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

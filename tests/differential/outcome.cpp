#include "tests/differential/outcome.h"

#include <cmath>
#include <stdexcept>

#include "tessera/base/error.h"

namespace differential {

using torch::Tensor;

namespace {

Tensor plain_copy(const Tensor& tensor) {
  return tensor.detach().to(torch::kFloat, false, /*copy=*/true).contiguous();
}

Json numbers(const Tensor& tensor) {
  const Tensor flat = plain_copy(tensor).flatten();
  const float* data = flat.const_data_ptr<float>();
  return std::vector<float>(data, data + flat.numel());
}

/// The view of `whole` that `box` describes.
Tensor part_of(Tensor whole, const tessera::Box& box) {
  for (size_t d = 0; d < box.offsets.size(); ++d) {
    whole =
        whole.narrow(static_cast<int64_t>(d), box.offsets[d], box.lengths[d]);
  }
  return whole;
}

}  // namespace

Outcome::Outcome(int num_ranks, int num_steps)
    : num_ranks_(num_ranks),
      losses_(num_steps),
      evaluations_(num_steps),
      norms_(num_steps),
      inputs_(num_steps),
      gradients_(num_steps) {}

void Outcome::add_loss(int step, double loss) {
  const std::lock_guard lock(mutex_);
  losses_[step] += loss / num_ranks_;
}

void Outcome::add_evaluation(int step, double loss) {
  const std::lock_guard lock(mutex_);
  evaluations_[step] += loss / num_ranks_;
}

void Outcome::set_norm(int step, double norm) {
  const std::lock_guard lock(mutex_);
  norms_[step] = norm;
}

void Outcome::set_input_gradient(int step, const Tensor& gradient) {
  const std::lock_guard lock(mutex_);
  inputs_[step] = plain_copy(gradient);
}

void Outcome::set_weight(const std::string& name, const Tensor& weight) {
  const std::lock_guard lock(mutex_);
  weights_[name] = plain_copy(weight);
}

void Outcome::add_gradient(int step, const std::string& name,
                           at::IntArrayRef sizes, const Boxes& boxes,
                           const Tensor& part) {
  const std::lock_guard lock(mutex_);
  Gradient& gradient = gradients_[step][name];
  ++(part.defined() ? gradient.had : gradient.had_none);
  if (!part.defined()) return;
  if (!gradient.whole.defined()) gradient.whole = torch::full(sizes, NAN);
  const Tensor flat = plain_copy(part).flatten();
  int64_t at = 0;
  for (const tessera::Box& box : boxes) {
    const Tensor piece = flat.narrow(0, at, box.numel()).view(box.lengths);
    const Tensor place = part_of(gradient.whole, box);
    const bool written = !place.isnan().all().item<bool>();
    if (written && !place.equal(piece)) gradient.replicas_differ = true;
    place.copy_(piece);
    at += box.numel();
  }
}

void Outcome::add_gradient(int step, const std::string& name,
                           const Tensor& gradient) {
  const std::lock_guard lock(mutex_);
  Gradient& kept = gradients_[step][name];
  ++(gradient.defined() ? kept.had : kept.had_none);
  if (gradient.defined()) kept.whole = plain_copy(gradient);
}

Json Outcome::gradient_json(const std::string& name,
                            const Gradient& gradient) const {
  if (gradient.had == 0) return nullptr;
  if (gradient.had_none > 0) {
    throw std::logic_error(tessera::str("only ", gradient.had, " of ",
                                        num_ranks_,
                                        " ranks have a gradient of ", name));
  }
  if (gradient.replicas_differ) {
    throw std::logic_error("replicas have other gradients of " + name);
  }
  return numbers(gradient.whole);
}

Json Outcome::json() const {
  Json gradients = Json::array();
  for (const auto& step : gradients_) {
    Json one = Json::object();
    for (const auto& [name, gradient] : step) {
      one[name] = gradient_json(name, gradient);
    }
    gradients.push_back(one);
  }
  Json inputs = Json::array();
  for (const Tensor& gradient : inputs_) {
    inputs.push_back(gradient.defined() ? numbers(gradient) : Json());
  }
  Json weights = Json::object();
  for (const auto& [name, weight] : weights_) weights[name] = numbers(weight);
  return {{"losses", losses_}, {"evaluations", evaluations_},
          {"norms", norms_},   {"gradients", gradients},
          {"inputs", inputs},  {"weights", weights}};
}

}  // namespace differential

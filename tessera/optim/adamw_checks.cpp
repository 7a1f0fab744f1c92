#include "tessera/optim/adamw_checks.h"

#include <limits>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/tensor/spread.h"

namespace tessera::adamw {

using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;

namespace {

void check_rate(const char* what, double value, double end) {
  require<InvalidArgument>(value >= 0 && value < end, [&] {
    return str("AdamW: ", what, " is ", value, "; give a number from 0 to ",
               end, " (which is out).");
  });
}

}  // namespace

std::string name_of(const at::Tensor& parameter) {
  const Spread* spread = spread_of(parameter);
  return tessera::str("parameter ", spread ? spread->name + " " : "",
                      parameter.sizes());
}

const AdamWOptions& options_of(const OptimizerParamGroup& group) {
  const auto* options = dynamic_cast<const AdamWOptions*>(&group.options());
  require<InvalidArgument>(options != nullptr, [] {
    return str(
        "AdamW: a parameter group has the options of another optimizer; "
        "give torch::optim::AdamWOptions.");
  });
  return *options;
}

void validate(const AdamWOptions& options) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  check_rate("lr", options.lr(), kInfinity);
  check_rate("eps", options.eps(), kInfinity);
  check_rate("weight_decay", options.weight_decay(), kInfinity);
  check_rate("betas[0]", std::get<0>(options.betas()), 1);
  check_rate("betas[1]", std::get<1>(options.betas()), 1);
}

void check_kind(const at::Tensor& parameter, const at::Tensor& gradient) {
  require<Unsupported>(gradient.layout() == at::kStrided, [&] {
    return str("AdamW: the gradient of ", name_of(parameter),
               " is sparse; make its embedding with sparse(false).");
  });
  require<Unsupported>(parameter.is_floating_point(), [&] {
    return tessera::str("AdamW: ", name_of(parameter), " is ",
                        parameter.dtype().name(),
                        "; only real floating-point parameters are updated.");
  });
}

bool fits(const at::Tensor& state, const at::Tensor& parameter) {
  return state.sizes() == parameter.sizes() &&
         state.scalar_type() == parameter.scalar_type() &&
         state.device() == parameter.device() &&
         (state.strides() == parameter.strides() ||
          !parameter.is_non_overlapping_and_dense());
}

}  // namespace tessera::adamw

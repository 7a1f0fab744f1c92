// The gradients of a list of parameters, grouped for what is asked of all of
// them: their norm, whether they are finite, a common factor.
//
//   parameters   p0 p1 p2 | p3 p4     | p5
//   cut over     4 ranks  | 2 ranks   | nothing: every rank holds it whole
//   part         one run of p0..p2's flat gradient | p3, p4 | p5
//
// Inside optim only.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/tensor/spread.h"

namespace tessera {

/// The gradients of parameters that are cut over the same ranks.
struct GradientPart {
  std::shared_ptr<Communicator> communicator;  // null: every rank holds all
  at::Device device = at::kCPU;                // where its ranks talk
  // Not gated; runs of a flat gradient where they are pieces of it. Without
  // the gaps between pieces, whose zeros a NaN would spoil for good.
  std::vector<at::Tensor> gradients;
  // Of those of which backward has taken them (set_norm_in_backward): the norms
  // of their chunks, as chunk_norms gives them.
  std::unordered_map<const c10::TensorImpl*, std::vector<at::Tensor>>
      norms_kept;
};

struct GradientParts {
  std::vector<GradientPart> parts;
  at::Device device = at::kCPU;  // of the first parameter
  bool has_double = false;       // among the parameters
};

/// A parameter that stands several times in the list counts once. Which parts
/// there are follows from the parameters alone, so that it is the same on
/// every rank: one without gradients still takes part.
///
/// who: the function that asks, for messages.
/// Errors: Unsupported for sparse gradients, InvalidState for parameters that
///         are stepped in backward.
[[nodiscard]] GradientParts collect_gradients(
    const std::vector<at::Tensor>& parameters, const char* who);

using DeviceAndDtype = std::pair<at::Device, at::ScalarType>;

struct DeviceAndDtypeOrder {
  bool operator()(const DeviceAndDtype& a, const DeviceAndDtype& b) const {
    const auto key = [](const DeviceAndDtype& kind) {
      return std::tuple(kind.first.type(), kind.first.index(), kind.second);
    };
    return key(a) < key(b);
  }
};

/// Lists that one foreach call can take.
[[nodiscard]] std::map<DeviceAndDtype, std::vector<at::Tensor>,
                       DeviceAndDtypeOrder>
by_device_and_dtype(const std::vector<at::Tensor>& tensors);

}  // namespace tessera

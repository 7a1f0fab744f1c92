// The fixtures' three models, in plain torch::nn, with Python's names.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>

#include "tests/fsdp2_fixtures/fixture.h"

namespace fsdp2_fixtures {

struct Model : torch::nn::Module {
  /// The mean loss over `count` rows from `first` of the batch of one step.
  virtual Tensor loss(const Fixture& fixture, int64_t step, int64_t first,
                      int64_t count) = 0;
};

/// The fixture's model with its start weights.
[[nodiscard]] std::shared_ptr<Model> make_model(const Fixture& fixture);

/// The module of that name below `model`; `model` itself for "".
[[nodiscard]] torch::nn::Module& submodule(Model& model,
                                           const std::string& name);

}  // namespace fsdp2_fixtures

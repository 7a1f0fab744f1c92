// Copies a dict into the tensors that it is for: compared on all ranks first.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <string>

#include "tessera/state/key_report.h"
#include "tessera/state/state_dict.h"
#include "tessera/state/state_dict_options.h"

namespace tessera {

/// What a dict is given to: where its tensors go, and what it lacks or has too
/// much.
struct Targets {
  StateDict tensors = {};
  KeyReport report = {};
};

/// Finds them by a dict of which only the layout is known.
using FindTargets = std::function<Targets(const StateDict& layout)>;

struct Assigned {
  StateDict layout = {};  // of the dict that was taken: rank 0's if it is full
  Targets targets = {};
};

/// Fills the targets that `given` has, as the options say; others stay.
/// Collective; `what` stands in front of errors.
/// Errors: as set_state_dict.h has them; nothing is filled then.
Assigned assign_state(torch::nn::Module& model, const std::string& what,
                      const StateDict& given, const StateDictOptions& options,
                      const FindTargets& find);

}  // namespace tessera

// The two forms of an optimizer's state dict.
//
//   nested      state / up.bias / exp_avg      param_groups / 0 / lr
//                                              param_groups / 0 / params
//   flattened   state.up.bias.exp_avg          param_groups.up.bias.lr
//
// Joined by dots, the names of tensors are the same in both.
#pragma once

#include <set>
#include <string>

#include "tessera/state/state_dict.h"

namespace tessera {

/// The nested form, flattened: each group's options once for each of its
/// parameters.
[[nodiscard]] StateDict flatten_optimizer(const StateDict& nested);

/// Appends `more`, whose groups come behind those of `dict`. Both nested.
void append_optimizer(StateDict& dict, const StateDict& more);

/// The parameters whose group has options in `dict`, which has either form and
/// keys that begin at its root.
[[nodiscard]] std::set<std::string> parameters_with_options(
    const StateDict& dict);

}  // namespace tessera

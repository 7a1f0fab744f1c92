// One answer of all ranks to an error that not all of them may have seen.
//
//   agree_on_failure(world, [&] { file = TokenFile::open(path); });
//
// Without it, a rank that cannot open its file would leave while the others
// wait for it in their next collective.
#pragma once

#include <functional>
#include <string>

#include "tessera/comm/world.h"
#include "tessera/train/failure.h"

namespace tessera::train {

/// A failure that every rank raises with the same words: one of them need say
/// it.
class AgreedFailure : public Failure {
 public:
  using Failure::Failure;
};

/// Runs `body`, which uses no collectives. When it raises an Error on some
/// ranks, all ranks raise that of the lowest, which is named when not all have
/// the same. A collective.
/// Errors: AgreedFailure, with the code of the Failure; of an InvalidArgument
///         wrong_config, of other errors failed.
void agree_on_failure(const World& world, const std::function<void()>& body);

}  // namespace tessera::train

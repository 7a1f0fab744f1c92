// What the ranks of one attempt write to, and what can be read of it later.
#pragma once

#include <string>
#include <vector>

#include "cli/launch/file_descriptor.h"
#include "cli/launch/log_folder.h"
#include "cli/launch/log_options.h"
#include "cli/launch/output_relay.h"

namespace tessera::launch {

class RankOutput {
 public:
  RankOutput(const LogOptions& options, const LogFolder& folder,
             OutputRelay& relay, int first_rank)
      : options_(options),
        folder_(folder),
        relay_(relay),
        first_rank_(first_rank) {}

  /// What a stream of `local_rank` is written to; closed: to ours.
  /// Errors: LaunchError when a file cannot be made or a limit is reached.
  [[nodiscard]] FileDescriptor open(int local_rank, Stream stream);

  /// The last lines that a rank wrote, from stderr if there are any; empty when
  /// it wrote to our own streams.
  [[nodiscard]] std::string last_words(int local_rank) const;

 private:
  const LogOptions& options_;
  const LogFolder& folder_;
  OutputRelay& relay_;
  int first_rank_;
};

}  // namespace tessera::launch

// The files of a job, in torchrun's layout:
//
//   <log dir>/<run id>_<six letters>/attempt_<restart>/<local rank>/
//     stdout.log  stderr.log   where --redirects or --tee ask for them
//     error.json               what the rank says it fails of, if it does
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "cli/launch/log_options.h"

namespace tessera::launch {

class LogFolder {
 public:
  /// Makes the folder of the run: in options.folder, or a temporary one, which
  /// is removed at the end unless streams are written to it.
  /// Errors: LaunchError (kExitLauncher).
  LogFolder(const LogOptions& options, const std::string& run_id);
  LogFolder(const LogFolder&) = delete;
  LogFolder& operator=(const LogFolder&) = delete;
  ~LogFolder();

  /// Makes the folders of the ranks of one attempt. Errors: as above.
  void begin_attempt(int attempt, int num_ranks);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// In the present attempt.
  [[nodiscard]] std::filesystem::path log_file(int local_rank,
                                               Stream stream) const;
  [[nodiscard]] std::filesystem::path error_file(int local_rank) const;

 private:
  std::filesystem::path path_;
  std::filesystem::path attempt_;
  bool removed_at_end_;
};

/// What a rank wrote into its error file.
struct RankError {
  std::string message;
  std::filesystem::file_time_type time;
};

/// Reads torchrun's form of it, {"message": {"message": ...}} or
/// {"message": "..."}. None when there is no file or it is not legible.
[[nodiscard]] std::optional<RankError> read_error_file(
    const std::filesystem::path& path);

/// The last `num_lines` lines of a text, at most.
[[nodiscard]] std::string last_lines(const std::string& text, int num_lines);

/// The end of a file, 16 KiB at most; empty when it cannot be read.
[[nodiscard]] std::string end_of_file(const std::filesystem::path& path);

}  // namespace tessera::launch

// Scalars that TensorBoard shows: tensorboard --logdir run
//
//   TensorBoardWriter events("run");
//   events.scalar("train/loss", 3.2, step);
//
// The file is a row of records, each
//
//   u64 length, u32 masked CRC-32C of it, bytes, u32 masked CRC-32C of them
//
// and each record one `Event` of TensorFlow's event.proto, written by hand: no
// protobuf library is linked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::train {

/// What TensorFlow does to a checksum that stands beside its own bytes.
[[nodiscard]] uint32_t masked_crc32c(std::string_view bytes);

/// Event{wall_time, step, summary{value{tag, simple_value}}}, as protobuf
/// bytes.
[[nodiscard]] std::string scalar_event(std::string_view tag, double value,
                                       int64_t step, double wall_time);

/// Event{wall_time, step, session_log{status: START}}: a run that starts again
/// with this step.
[[nodiscard]] std::string start_event(int64_t step, double wall_time);

class TensorBoardWriter {
 public:
  /// Makes a new file events.out.tfevents.* in `folder`, which must be there;
  /// TensorBoard shows the files of a folder as one run.
  /// Errors, here and below: Failure (cannot_write) that names the file and the
  /// system's reason. The run may go on, and the next scalar be tried.
  /// goes_on_after: what earlier files of the folder say of later steps is no
  /// longer shown.
  explicit TensorBoardWriter(const std::string& folder,
                             std::optional<int64_t> goes_on_after = {});
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  /// Tags with a common part before "/" stand together. nan and infinity pass.
  void scalar(std::string_view tag, double value, int64_t step);

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  void write_record(const std::string& event);

  std::string path_;
  int file_ = -1;
};

}  // namespace tessera::train

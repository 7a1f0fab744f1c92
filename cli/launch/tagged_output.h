// The output of several ranks in one stream, a line at a time, each with its
// rank in front:
//
//   [rank 0] step 1 loss 5.54
//   [rank 1] step 1 loss 5.54
//
// Nothing here blocks: the job polls, so that a signal is served even while the
// reader of our output sleeps.
#pragma once

#include <string>
#include <string_view>

#include "cli/launch/file_descriptor.h"

namespace tessera::launch {

/// Takes from `partial` all lines that are complete, with `prefix` before each.
/// A line ends with \n, \r\n or a lone \r (progress bars); a line of 64 KiB
/// without an end is cut. `final` also takes an unfinished last line.
enum class TakeLines { complete, final };
[[nodiscard]] std::string take_lines(std::string& partial,
                                     std::string_view prefix, TakeLines which);

/// Where lines go: our stdout or stderr.
class LineSink {
 public:
  explicit LineSink(int fd) : fd_(fd) {}

  [[nodiscard]] int fd() const { return fd_; }
  /// Nobody reads any more.
  [[nodiscard]] bool broken() const { return broken_; }
  [[nodiscard]] bool pending() const { return !pending_.empty(); }
  /// Much is waiting: let the ranks wait too.
  [[nodiscard]] bool full() const { return pending_.size() >= 64 * 1024; }
  void push(const std::string& lines);
  /// Writes a little. Call when poll says that fd is writable.
  void write_some();

 private:
  int fd_;
  std::string pending_;
  bool broken_ = false;
};

/// Reads one pipe of one rank into a sink, and as it is into a file.
class LineSource {
 public:
  /// `copy` may be closed: then there is no file.
  LineSource(FileDescriptor read_end, std::string prefix, LineSink& sink,
             FileDescriptor copy);

  [[nodiscard]] int fd() const { return read_end_.get(); }
  [[nodiscard]] bool open() const { return read_end_.open(); }
  [[nodiscard]] const LineSink& sink() const { return *sink_; }
  /// The last 16 KiB or so of what was read.
  [[nodiscard]] const std::string& recent() const { return recent_; }
  /// The file could not take all that was read: a full disk.
  [[nodiscard]] bool copy_failed() const { return copy_failed_; }
  /// Reads what is there. At the end of file, or when the sink is broken (the
  /// rank then gets SIGPIPE, as without tags), closes itself.
  void read_some();
  /// Reads what is there and closes, though a process may hold the other end.
  void finish();

 private:
  // False when nothing is there now.
  bool read_once();
  void keep(std::string_view bytes);
  void close();

  FileDescriptor read_end_;
  std::string prefix_;
  std::string partial_;
  std::string recent_;
  LineSink* sink_;
  FileDescriptor copy_;
  bool copy_failed_ = false;
};

}  // namespace tessera::launch

#include "cli/launch/output_relay.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "cli/launch/launch_error.h"

namespace tessera::launch {

void OutputRelay::say(const std::string& message) {
  error_.push("tessera run: " + message + "\n");
}

void OutputRelay::quote(const std::string& lines) {
  std::string text = lines;
  error_.push(take_lines(text, "  | ", TakeLines::final));
}

FileDescriptor OutputRelay::add_rank(int rank, Stream stream,
                                     FileDescriptor copy) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw LaunchError(kExitLauncher,
                      str("cannot make a pipe for the output of a rank: ",
                          std::strerror(errno),
                          "; use fewer ranks, raise the "
                          "limit on open files (ulimit -n), or leave out "
                          "--tag-output and --tee"));
  }
  LineSink& sink = stream == Stream::output ? output_ : error_;
  sources_.push_back(
      {rank, stream,
       LineSource(FileDescriptor(ends[0]), str("[rank ", rank, "] "), sink,
                  std::move(copy))});
  return FileDescriptor(ends[1]);
}

std::string OutputRelay::recent(int rank) const {
  for (const Stream stream : {Stream::error, Stream::output}) {
    for (const Source& source : sources_) {
      if (source.rank == rank && source.stream == stream &&
          !source.lines.recent().empty()) {
        return source.lines.recent();
      }
    }
  }
  return "";
}

// poll skips entries with a negative descriptor.
std::vector<pollfd> OutputRelay::polls() const {
  std::vector<pollfd> polls;
  for (const LineSink* sink : {&output_, &error_}) {
    polls.push_back({sink->pending() ? sink->fd() : -1, POLLOUT, 0});
  }
  for (const Source& source : sources_) {
    const LineSource& lines = source.lines;
    const bool wanted = lines.open() && !lines.sink().full();
    polls.push_back({wanted ? lines.fd() : -1, POLLIN, 0});
  }
  return polls;
}

void OutputRelay::handle(std::span<const pollfd> polls) {
  if (polls[0].revents != 0) output_.write_some();
  if (polls[1].revents != 0) error_.write_some();
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (polls[i + 2].revents == 0) continue;
    sources_[i].lines.read_some();
    say_when_a_copy_failed(sources_[i]);
  }
}

void OutputRelay::say_when_a_copy_failed(const Source& source) {
  if (!source.lines.copy_failed() || said_that_a_copy_failed_) return;
  said_that_a_copy_failed_ = true;
  say(str("cannot write the log of rank ", source.rank,
          " any more (is the disk full?); its file stays as it is."));
}

void OutputRelay::finish() {
  for (Source& source : sources_) {
    source.lines.finish();
    say_when_a_copy_failed(source);
  }
}

bool OutputRelay::pending() const {
  return output_.pending() || error_.pending();
}

}  // namespace tessera::launch

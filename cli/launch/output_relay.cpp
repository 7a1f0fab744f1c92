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

FileDescriptor OutputRelay::add_source(const std::string& prefix,
                                       LineSink& sink) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw LaunchError(kExitLauncher,
                      str("cannot make a pipe for the output of a rank: ",
                          std::strerror(errno),
                          "; use fewer ranks, raise the "
                          "limit on open files (ulimit -n), or leave out "
                          "--tag-output"));
  }
  sources_.emplace_back(FileDescriptor(ends[0]), prefix, sink);
  return FileDescriptor(ends[1]);
}

OutputRelay::WriteEnds OutputRelay::add_rank(int rank) {
  const std::string prefix = str("[rank ", rank, "] ");
  FileDescriptor output = add_source(prefix, output_);
  FileDescriptor error = add_source(prefix, error_);
  return {std::move(output), std::move(error)};
}

// poll skips entries with a negative descriptor.
std::vector<pollfd> OutputRelay::polls() const {
  std::vector<pollfd> polls;
  for (const LineSink* sink : {&output_, &error_}) {
    polls.push_back({sink->pending() ? sink->fd() : -1, POLLOUT, 0});
  }
  for (const LineSource& source : sources_) {
    const bool wanted = source.open() && !source.sink().full();
    polls.push_back({wanted ? source.fd() : -1, POLLIN, 0});
  }
  return polls;
}

void OutputRelay::handle(std::span<const pollfd> polls) {
  if (polls[0].revents != 0) output_.write_some();
  if (polls[1].revents != 0) error_.write_some();
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (polls[i + 2].revents != 0) sources_[i].read_some();
  }
}

void OutputRelay::finish() {
  for (LineSource& source : sources_) source.finish();
}

bool OutputRelay::pending() const {
  return output_.pending() || error_.pending();
}

}  // namespace tessera::launch

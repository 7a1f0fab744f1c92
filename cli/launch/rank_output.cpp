#include "cli/launch/rank_output.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "cli/launch/launch_error.h"

namespace tessera::launch {
namespace {

constexpr int kNumLastLines = 10;

FileDescriptor open_to_append(const std::string& path) {
  FileDescriptor file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file.open()) {
    throw LaunchError(kExitLauncher,
                      str("cannot open '", path, "': ", std::strerror(errno)));
  }
  return file;
}

}  // namespace

FileDescriptor RankOutput::open(int local_rank, Stream stream) {
  using Console = Route::Console;
  const Route route = route_of(options_, local_rank, stream);
  FileDescriptor file;
  if (route.file) file = open_to_append(folder_.log_file(local_rank, stream));
  if (route.console == Console::tagged) {
    return relay_.add_rank(first_rank_ + local_rank, stream, std::move(file));
  }
  if (route.file || route.console == Console::as_is) return file;
  return open_to_append("/dev/null");
}

std::string RankOutput::last_words(int local_rank) const {
  std::string words = relay_.recent(first_rank_ + local_rank);
  for (const Stream stream : {Stream::error, Stream::output}) {
    if (!words.empty() || !route_of(options_, local_rank, stream).file)
      continue;
    words = end_of_file(folder_.log_file(local_rank, stream));
  }
  return last_lines(words, kNumLastLines);
}

}  // namespace tessera::launch

#include "cli/launch/tagged_output.h"

#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace tessera::launch {
namespace {

constexpr size_t kLongestLine = 64 * 1024;

// One past the end of the first line of `text`; npos when it is not complete.
size_t end_of_line(std::string_view text) {
  const size_t end = text.find_first_of("\r\n");
  if (end == std::string_view::npos) return end;
  if (text[end] == '\n') return end + 1;
  if (end + 1 == text.size()) return std::string_view::npos;  // \n may follow
  return text[end + 1] == '\n' ? end + 2 : end + 1;
}

}  // namespace

std::string take_lines(std::string& partial, std::string_view prefix,
                       TakeLines which) {
  std::string lines;
  size_t begin = 0;
  const auto take = [&](size_t length, std::string_view end) {
    lines.append(prefix).append(partial, begin, length).append(end);
    begin += length;
  };
  const std::string_view text = partial;
  for (size_t length = 0;
       (length = end_of_line(text.substr(begin))) != std::string_view::npos;) {
    take(length, "");
  }
  while (text.size() - begin >= kLongestLine) take(kLongestLine, "\n");
  if (which == TakeLines::final && begin < text.size()) {
    take(text.size() - begin, "\n");
  }
  partial.erase(0, begin);
  return lines;
}

void LineSink::push(const std::string& lines) {
  if (!broken_) pending_ += lines;
}

// A pipe that poll calls writable takes PIPE_BUF bytes without blocking.
void LineSink::write_some() {
  const size_t num_bytes = std::min<size_t>(pending_.size(), PIPE_BUF);
  const ssize_t written = ::write(fd_, pending_.data(), num_bytes);
  if (written >= 0) {
    pending_.erase(0, static_cast<size_t>(written));
  } else if (errno != EINTR && errno != EAGAIN) {
    broken_ = true;
    pending_.clear();
  }
}

LineSource::LineSource(FileDescriptor read_end, std::string prefix,
                       LineSink& sink, FileDescriptor copy)
    : read_end_(std::move(read_end)),
      prefix_(std::move(prefix)),
      sink_(&sink),
      copy_(std::move(copy)) {
  ::fcntl(fd(), F_SETFL, O_NONBLOCK);
}

bool LineSource::read_once() {
  std::array<char, 16 * 1024> buffer;
  const ssize_t num_bytes = ::read(fd(), buffer.data(), buffer.size());
  if (num_bytes < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (num_bytes <= 0) {
    close();
    return false;
  }
  keep({buffer.data(), static_cast<size_t>(num_bytes)});
  sink_->push(take_lines(partial_, prefix_, TakeLines::complete));
  return true;
}

void LineSource::keep(std::string_view bytes) {
  constexpr size_t kRecent = 16 * 1024;
  partial_ += bytes;
  recent_ += bytes;
  if (recent_.size() > 2 * kRecent) recent_.erase(0, recent_.size() - kRecent);
  while (copy_.open() && !bytes.empty()) {
    const ssize_t written = ::write(copy_.get(), bytes.data(), bytes.size());
    if (written > 0) bytes.remove_prefix(static_cast<size_t>(written));
    if (written >= 0 || errno == EINTR) continue;
    copy_failed_ = true;
    copy_.reset();
  }
}

void LineSource::close() {
  sink_->push(take_lines(partial_, prefix_, TakeLines::final));
  read_end_.reset();
}

void LineSource::read_some() {
  if (sink_->broken()) {
    read_end_.reset();
  } else {
    read_once();
  }
}

// At most what a pipe holds: a process that writes on and on is not awaited.
void LineSource::finish() {
  for (int i = 0; i < 8 && open() && read_once(); ++i) {
  }
  if (open()) close();
}

}  // namespace tessera::launch

#include "tessera/checkpoint/file_slice.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

constexpr uint64_t kWindow = 8192;
constexpr uint64_t kLarge = 1 << 20;
constexpr uint64_t kReadAhead = 128 << 10;  // what comes with a small read

}  // namespace

FileSlice::FileSlice(const ReadableFile& file, uint64_t offset, uint64_t length)
    : file_(file), offset_(offset), length_(length) {
  const uint64_t size = file.size();
  require<CheckpointError>(offset <= size && length <= size - offset, [&] {
    return str("'", file.path(), "' has ", size, " bytes, but an item lies at ",
               offset, " with ", length,
               ": the file is cut, or not the one "
               "that belongs here.");
  });
}

std::string FileSlice::name() const {
  return str("item at byte ", offset_, " of '", file_.path(), "'");
}

void FileSlice::forget_ends() const {
  if (length_ < kLarge) return;
  for (const Window* window : {&head_, &tail_}) {
    if (window->bytes.empty()) continue;
    file_.forget(offset_ + window->begin, window->bytes.size() + kReadAhead);
  }
}

void FileSlice::read(uint64_t position, std::span<std::byte> into) const {
  require<CheckpointError>(
      position <= length_ && into.size() <= length_ - position, [&] {
        return str(name(), ": ", into.size(), " bytes at ", position,
                   " do not lie in its ", length_, ".");
      });
  file_.read(offset_ + position, into);
}

std::string FileSlice::read(uint64_t position, uint64_t count) const {
  const auto window_has = [&](const Window& window) {
    return position >= window.begin &&
           position - window.begin <= window.bytes.size() &&
           count <= window.bytes.size() - (position - window.begin);
  };
  const auto fill = [&](Window& window, uint64_t begin) {
    if (!window.bytes.empty()) return;
    window.begin = begin;
    window.bytes.resize(std::min(kWindow, length_ - begin));
    read(begin, std::as_writable_bytes(std::span(window.bytes)));
  };
  if (count <= kWindow && position <= length_) {
    if (position < kWindow) fill(head_, 0);
    if (length_ - position <= kWindow) {
      fill(tail_, length_ - std::min(length_, kWindow));
    }
    for (const Window* window : {&head_, &tail_}) {
      if (window_has(*window)) {
        return window->bytes.substr(position - window->begin, count);
      }
    }
  }
  require<CheckpointError>(count <= length_, [&] {
    return str(name(), ": ", count, " bytes are more than it has.");
  });
  std::string bytes(count, '\0');
  read(position, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

}  // namespace tessera::checkpoint

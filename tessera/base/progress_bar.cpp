#include "tessera/base/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr int kCells = 20;
constexpr auto kPause = std::chrono::milliseconds(100);  // between drawings

void write_to_terminal(const std::string& text) {
  // Nobody is helped by an error about a bar that cannot be drawn.
  (void)!::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

std::string format_progress(const std::string& title, double share, double rate,
                            double seconds_left) {
  share = std::clamp(share, 0.0, 1.0);
  const auto full = static_cast<size_t>(share * kCells);
  const std::string cells =
      std::string(full, '#') + std::string(kCells - full, '.');
  const auto seconds = static_cast<int64_t>(std::clamp(
      std::isfinite(seconds_left) ? std::ceil(seconds_left) : 0.0, 0.0, 1e9));
  std::array<char, 64> numbers{};
  std::snprintf(
      numbers.data(), numbers.size(), "%3d%%  %.1f MB/s  %ld:%02ld:%02ld left",
      static_cast<int>(share * 100), rate / 1e6,
      static_cast<long>(seconds / 3600), static_cast<long>(seconds / 60 % 60),
      static_cast<long>(seconds % 60));
  return str(title, " [", cells, "] ", numbers.data());
}

ProgressBar::ProgressBar(std::string title, int64_t total)
    : title_(std::move(title)),
      total_(total),
      visible_(total > 0 && ::isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() { finish(); }

void ProgressBar::advance(int64_t units) {
  done_ += units;
  const auto now = Clock::now();
  if (visible_ && (!drawn_ || now - last_ >= kPause)) draw(now);
}

void ProgressBar::draw(Clock::time_point now) {
  last_ = now;
  drawn_ = true;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double rate = static_cast<double>(done_) / seconds;
  const double left = static_cast<double>(total_ - done_) / rate;
  const double share = static_cast<double>(done_) / static_cast<double>(total_);
  // To the start of the line; what an older line left behind is erased.
  write_to_terminal("\r" + format_progress(title_, share, rate, left) +
                    "\x1b[K");
}

void ProgressBar::finish() {
  if (visible_ && drawn_) write_to_terminal("\r\x1b[K");
  visible_ = false;
}

}  // namespace tessera

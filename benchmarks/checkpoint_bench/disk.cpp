#include "benchmarks/checkpoint_bench/disk.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <random>
#include <span>
#include <vector>

#include "tessera/checkpoint/file.h"

namespace checkpoint_bench {
namespace {

using Clock = std::chrono::steady_clock;
using tessera::checkpoint::File;

constexpr int64_t kPiece = 16 << 20;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Bytes that no disk stores smaller than they are.
std::vector<std::byte> random_piece() {
  std::mt19937_64 random(1);
  std::vector<std::byte> piece(kPiece);
  for (std::byte& byte : piece) byte = static_cast<std::byte>(random());
  return piece;
}

template <class Body>
void for_pieces(int64_t num_bytes, std::vector<std::byte>& piece, Body&& body) {
  for (int64_t at = 0; at < num_bytes; at += kPiece) {
    const auto size = static_cast<size_t>(std::min(kPiece, num_bytes - at));
    body(static_cast<uint64_t>(at), std::span(piece).first(size));
  }
}

}  // namespace

RawSpeed raw_speed(const std::string& path, int64_t num_bytes) {
  std::vector<std::byte> piece = random_piece();
  std::filesystem::remove(path);
  RawSpeed speed;
  File file = File::create(path);
  auto start = Clock::now();
  for_pieces(num_bytes, piece, [&](uint64_t at, std::span<std::byte> bytes) {
    file.write(at, bytes);
  });
  file.sync();
  speed.write_s = seconds_since(start);
  file.drop_pages();
  start = Clock::now();
  for_pieces(num_bytes, piece, [&](uint64_t at, std::span<std::byte> bytes) {
    file.read(at, bytes);
  });
  speed.read_s = seconds_since(start);
  std::filesystem::remove(path);
  return speed;
}

void drop_pages(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    File file = File::open(entry.path().string());
    file.sync();
    file.drop_pages();
  }
}

}  // namespace checkpoint_bench

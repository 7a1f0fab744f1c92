#include "tessera/train/tensorboard_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "tessera/base/crc32c.h"
#include "tessera/base/error.h"
#include "tessera/train/failure.h"

namespace tessera::train {
namespace {

// Numbers of the fields in event.proto and summary.proto.
constexpr int kEventWallTime = 1;
constexpr int kEventStep = 2;
constexpr int kEventFileVersion = 3;
constexpr int kEventSummary = 5;
constexpr int kEventSessionLog = 7;
constexpr int kSessionStatus = 1;
constexpr uint64_t kSessionStart = 1;
constexpr int kSummaryValue = 1;
constexpr int kValueTag = 1;
constexpr int kValueSimpleValue = 2;

enum class WireType { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

static_assert(std::endian::native == std::endian::little);

template <class T>
std::string little_endian(T number) {
  std::string bytes(sizeof number, '\0');
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

/// Seven bits a byte, lowest first; the high bit says that more follow.
std::string varint(uint64_t number) {
  std::string bytes;
  for (; number >= 0x80; number >>= 7) {
    bytes += static_cast<char>((number & 0x7f) | 0x80);
  }
  return bytes + static_cast<char>(number);
}

std::string field(int number, WireType type) {
  return varint(static_cast<uint64_t>(number << 3 | static_cast<int>(type)));
}

std::string bytes_field(int number, std::string_view bytes) {
  return field(number, WireType::bytes) + varint(bytes.size()) +
         std::string(bytes);
}

std::string wall_time_field(double wall_time) {
  return field(kEventWallTime, WireType::fixed64) + little_endian(wall_time);
}

std::string step_field(int64_t step) {
  return field(kEventStep, WireType::varint) +
         varint(static_cast<uint64_t>(step));
}

/// The first record of a file.
std::string version_event(double wall_time) {
  return wall_time_field(wall_time) +
         bytes_field(kEventFileVersion, "brain.Event:2");
}

double now() {
  using std::chrono::duration;
  return duration<double>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// TensorBoard reads the time out of the name, to order the files of a run.
std::string event_file_name() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  const std::string name = host[0] == '\0' ? "localhost" : host.data();
  return str("events.out.tfevents.", static_cast<int64_t>(now()), ".", name,
             ".", ::getpid());
}

/// Opens a file that was not there before; two writers of one second differ by
/// a number at the end.
int open_new(const std::string& stem, std::string& path) {
  constexpr int kTries = 1000;
  int file = -1;
  for (int number = 0; file < 0 && number < kTries; ++number) {
    path = str(stem, ".", number);
    file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0 && errno != EEXIST) break;
  }
  return file;
}

}  // namespace

uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t sum =
      crc32c(std::as_bytes(std::span(bytes.data(), bytes.size())));
  return std::rotr(sum, 15) + 0xa282ead8u;
}

std::string scalar_event(std::string_view tag, double value, int64_t step,
                         double wall_time) {
  const std::string one = bytes_field(kValueTag, tag) +
                          field(kValueSimpleValue, WireType::fixed32) +
                          little_endian(static_cast<float>(value));
  return wall_time_field(wall_time) + step_field(step) +
         bytes_field(kEventSummary, bytes_field(kSummaryValue, one));
}

std::string start_event(int64_t step, double wall_time) {
  const std::string start =
      field(kSessionStatus, WireType::varint) + varint(kSessionStart);
  return wall_time_field(wall_time) + step_field(step) +
         bytes_field(kEventSessionLog, start);
}

TensorBoardWriter::TensorBoardWriter(const std::string& folder,
                                     std::optional<int64_t> goes_on_after) {
  file_ = open_new(folder + "/" + event_file_name(), path_);
  require(file_ >= 0, ExitCode::cannot_write, [&] {
    return str("'", path_, "' cannot be written (", std::strerror(errno), ").");
  });
  write_record(version_event(now()));
  if (goes_on_after) write_record(start_event(*goes_on_after + 1, now()));
}

TensorBoardWriter::~TensorBoardWriter() {
  if (file_ >= 0) ::close(file_);
}

void TensorBoardWriter::scalar(std::string_view tag, double value,
                               int64_t step) {
  write_record(scalar_event(tag, value, step, now()));
}

void TensorBoardWriter::write_record(const std::string& event) {
  const std::string length = little_endian(uint64_t{event.size()});
  const std::string record = length + little_endian(masked_crc32c(length)) +
                             event + little_endian(masked_crc32c(event));
  const off_t start = ::lseek(file_, 0, SEEK_CUR);
  const ssize_t written = ::write(file_, record.data(), record.size());
  if (written == static_cast<ssize_t>(record.size())) return;
  if (written >= 0) errno = ENOSPC;
  const int reason = errno;
  // A part of a record would end the file for its readers.
  const bool taken_back = ::ftruncate(file_, start) == 0 &&
                          ::lseek(file_, start, SEEK_SET) == start;
  require(false, ExitCode::cannot_write, [&] {
    return str("'", path_, "' cannot be written (", std::strerror(reason), ")",
               taken_back ? "." : ", and its last record is cut.");
  });
}

}  // namespace tessera::train

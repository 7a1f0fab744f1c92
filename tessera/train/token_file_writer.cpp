#include "tessera/train/token_file_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "tessera/base/crc32c.h"
#include "tessera/base/error.h"
#include "tessera/train/failure.h"

namespace tessera::train {
namespace {

constexpr size_t kBuffer = size_t{1} << 20;

template <class T>
void narrow(std::span<const uint32_t> tokens, std::vector<std::byte>& into) {
  const size_t start = into.size();
  into.resize(start + tokens.size() * sizeof(T));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto token = static_cast<T>(tokens[i]);
    std::memcpy(into.data() + start + i * sizeof(T), &token, sizeof(T));
  }
}

void sync_folder_of(const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  const int file = ::open(folder.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return;  // not every file system lets folders be opened
  ::fsync(file);
  ::close(file);
}

}  // namespace

/// A temporary file that tokens are appended to.
class TokenFileWriter::Part {
 public:
  Part(const std::string& target, const char* kind)
      : target_(target), path_(str(target, ".", kind, ".", ::getpid())) {
    file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    require_done(file_ >= 0);
  }
  ~Part() {
    if (file_ >= 0) ::close(file_);
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  void add_tokens(std::span<const uint32_t> tokens, uint32_t token_bytes) {
    if (token_bytes == 1) narrow<uint8_t>(tokens, buffer_);
    if (token_bytes == 2) narrow<uint16_t>(tokens, buffer_);
    if (token_bytes == 4) narrow<uint32_t>(tokens, buffer_);
    if (buffer_.size() >= kBuffer) flush();
  }

  void skip(uint64_t bytes) {
    require_done(::lseek(file_, static_cast<off_t>(bytes), SEEK_SET) >= 0);
  }

  /// Also sums up the checksum.
  void flush() {
    checksum_ = crc32c(buffer_, checksum_);
    write_all(buffer_);
    buffer_.clear();
  }

  void append_all_of(Part& other) {
    other.flush();
    flush();
    other.skip(0);
    for (;;) {
      buffer_.resize(kBuffer);
      const ssize_t got = ::read(other.file_, buffer_.data(), kBuffer);
      require_done(got >= 0);
      buffer_.resize(static_cast<size_t>(got));
      if (got == 0) return;
      flush();
    }
  }

  void write_at_start(std::span<const std::byte> bytes) {
    skip(0);
    write_all(bytes);
  }

  void rename_to_target() {
    require_done(::fsync(file_) == 0);
    require_done(::rename(path_.c_str(), target_.c_str()) == 0);
    path_.clear();
    sync_folder_of(target_);
  }

  [[nodiscard]] uint32_t checksum() const { return checksum_; }

 private:
  void require_done(bool ok) const {
    require(ok, ExitCode::cannot_write, [&] {
      return str("the token file '", target_, "' cannot be written (",
                 std::strerror(errno), ").");
    });
  }

  void write_all(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(file_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      require_done(written >= 0);
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
  }

  std::string target_;
  std::string path_;  // empty once it has its final name
  int file_ = -1;
  uint32_t checksum_ = 0;
  std::vector<std::byte> buffer_;
};

TokenFileWriter::TokenFileWriter(const std::string& path,
                                 const TokenFileOptions& options)
    : path_(path),
      header_(make_token_header(options.vocab, options.separator,
                                options.tokenizer)),
      train_(std::make_unique<Part>(path, "part")),
      validation_(std::make_unique<Part>(path, "validation")) {
  train_->skip(header_.data_offset);
}

TokenFileWriter::~TokenFileWriter() = default;

void TokenFileWriter::append(Split split, std::span<const uint32_t> tokens) {
  for (const uint32_t token : tokens) {
    tessera::require<InvalidArgument>(token < header_.vocab, [&] {
      return str("token ", token, " for '", path_, "', whose vocabulary is ",
                 header_.vocab, ".");
    });
  }
  const bool is_train = split == Split::train;
  (is_train ? train_ : validation_)->add_tokens(tokens, header_.token_bytes);
  (is_train ? header_.num_train : header_.num_validation) += tokens.size();
}

TokenHeader TokenFileWriter::finish() {
  tessera::require<InvalidState>(train_ != nullptr, [&] {
    return str("TokenFileWriter: '", path_, "' was finished before.");
  });
  train_->append_all_of(*validation_);
  header_.data_checksum = train_->checksum();
  train_->write_at_start(pack(header_));
  train_->rename_to_target();
  train_.reset();
  validation_.reset();
  return header_;
}

}  // namespace tessera::train

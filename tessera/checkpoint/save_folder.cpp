#include "tessera/checkpoint/save_folder.h"

#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <random>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checksums.h"
#include "tessera/checkpoint/crc32.h"
#include "tessera/checkpoint/folders.h"
#include "tessera/checkpoint/value_pickle.h"

namespace tessera::checkpoint {
namespace {

constexpr std::string_view kLock = ".lock";

std::string random_hex(int digits) {
  std::random_device device;
  std::string text;
  while (text.size() < static_cast<size_t>(digits)) {
    std::array<char, 16> part{};
    std::snprintf(part.data(), part.size(), "%08x", device());
    text += part.data();
  }
  return text.substr(0, digits);
}

std::string random_uuid() {
  const std::string hex = random_hex(32);
  return str(hex.substr(0, 8), "-", hex.substr(8, 4), "-4", hex.substr(13, 3),
             "-8", hex.substr(17, 3), "-", hex.substr(20, 12));
}

uint32_t crc_of(std::string_view text) {
  return crc32(std::as_bytes(std::span(text)));
}

std::string encode_file(const WrittenFile& file) {
  return pickle_of(Value::tuple({file.name, file.num_bytes, file.crc,
                                 Value::bytes(encode_written(file.items))}));
}

WrittenFile decode_file(const std::string& bytes) {
  const Pickle pickle = read_pickle(bytes, "a message of another rank");
  const Value all = value_of(pickle.root(), "a message of another rank");
  const auto& parts = all.items();
  return {.name = parts.at(0).as_text(),
          .num_bytes = static_cast<uint64_t>(parts.at(1).as_int()),
          .crc = static_cast<uint32_t>(parts.at(2).as_int()),
          .items = decode_written(parts.at(3).as_bytes())};
}

}  // namespace

FolderSave::FolderSave(std::string path, const Peers& peers,
                       const std::function<Offer()>& offer,
                       const SaveFolderOptions& options)
    : path_(std::move(path)),
      what_(str("checkpoint::save to '", path_, "'")),
      rank_(peers.rank),
      options_(options) {
  std::vector<Offer> offers;
  for (const std::string& bytes :
       all_or_none(peers, what_, [&] { return encode_offer(offer()); })) {
    offers.push_back(decode_offer(bytes));
  }
  try {
    plan_ = plan_save(offers);
  } catch (const InvalidArgument& error) {  // the same on every rank
    throw InvalidArgument(str(what_, ": ", error.what()));
  }
  try {
    folder_ = all_or_none(peers, what_, [&] {
                if (rank_ == 0) prepare();
                return folder_;
              }).front();
  } catch (...) {
    abandon();
    throw;
  }
}

FolderSave::~FolderSave() {
  if (!committed_) abandon();
}

const std::vector<WriteItem>& FolderSave::own_items() const {
  return plan_.of_rank[static_cast<size_t>(rank_)];
}

void FolderSave::prepare() {
  Storage& storage = *options_.storage;
  require<InvalidArgument>(
      !base_name(path_).empty() && !base_name(path_).starts_with('.'),
      [&] { return str("the path names no folder."); });
  require<InvalidArgument>(
      options_.existing == Existing::replace || !storage.exists(path_),
      [] { return str("it exists already; give another path, or replace."); });
  const std::string parent = parent_path(path_);
  storage.make_folders(parent);
  remove_abandoned(parent, base_name(path_), storage);
  folder_ =
      join_path(parent, str(".", base_name(path_), kSaving, random_hex(12)));
  lock_ = storage.lock(folder_ + std::string(kLock));
  require<CheckpointError>(lock_ != nullptr, [&] {
    return str("cannot lock '", folder_, kLock, "'.");
  });
  storage.make_folders(folder_);
}

std::string FolderSave::write(const WriteSource& source) {
  require<CheckpointError>(options_.storage->exists(folder_), [&] {
    return str("folder '", folder_,
               "', which rank 0 made, is not there: every rank must see the "
               "same file system.");
  });
  return encode_file(write_items(*options_.storage, folder_,
                                 data_file_name(rank_), own_items(),
                                 plan_.metadata, source, options_.num_threads));
}

void FolderSave::commit(const Peers& peers,
                        const std::function<std::string()>& write) {
  try {
    const std::vector<std::string> written = all_or_none(peers, what_, write);
    (void)all_or_none(peers, what_, [&] {
      if (rank_ == 0) publish(written);
      return std::string();
    });
    committed_ = true;
    lock_.reset();
  } catch (...) {
    abandon();
    throw;
  }
}

namespace {

// A rank's note: the first byte says whether it holds a result or an error.
std::string note_name(int rank) { return str("note-", rank); }

}  // namespace

void FolderSave::write_apart(const WriteSource& source) {
  committed_ = rank_ != 0;  // from now on the folder is rank 0's affair
  const auto leave_note = [&](const std::string& note) {
    const std::string path = join_path(folder_, note_name(rank_));
    write_all(*options_.storage, path + ".part", note);
    options_.storage->rename_folder(path + ".part", path);
  };
  std::string written;
  try {
    written = write(source);
  } catch (const std::exception& error) {
    // On a full disk the note needs the room of what was written.
    remove_quietly(join_path(folder_, data_file_name(rank_)));
    try {
      leave_note(str("!", error.what()));
    } catch (const CheckpointError&) {  // the first error tells more
    }
    throw;
  }
  leave_note("=" + written);
}

void FolderSave::commit_apart(int num_ranks,
                              const std::function<bool()>& keep_waiting) {
  constexpr std::chrono::milliseconds kPause(10);
  Storage& storage = *options_.storage;
  std::vector<std::string> written;
  std::string failure;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const std::string path = join_path(folder_, note_name(rank));
    while (!storage.exists(path)) {
      require<CheckpointError>(keep_waiting(), [&] {
        return str("rank ", rank, " has not written its part in time.");
      });
      std::this_thread::sleep_for(kPause);
    }
    const std::string note = read_all(*storage.open(path), UINT32_MAX);
    storage.remove_all(path);
    if (note.starts_with('=')) {
      written.push_back(note.substr(1));
    } else if (failure.empty()) {
      failure = str("rank ", rank, ": ", note.substr(1));
    }
  }
  require<CheckpointError>(failure.empty(), [&] { return failure; });
  publish(written);
  committed_ = true;
  lock_.reset();
}

// On rank 0: checks what is there, adds `.metadata`, and renames.
void FolderSave::publish(const std::vector<std::string>& written) {
  Storage& storage = *options_.storage;
  Checksums checksums;
  Metadata metadata = plan_.metadata;
  for (const std::string& bytes : written) {
    const WrittenFile file = decode_file(bytes);
    if (file.name.empty()) continue;
    const std::string path = join_path(folder_, file.name);
    const uint64_t size = storage.open(path)->size();
    require<CheckpointError>(size == file.num_bytes, [&] {
      return str("'", path, "' has ", size, " bytes here; its rank wrote ",
                 file.num_bytes, ". Every rank must see the same file system.");
    });
    checksums[file.name] = {file.num_bytes, file.crc};
    for (const auto& [item, place] : file.items) {
      if (item.is_value) {
        metadata.values.at(item.key) = place;
      } else {
        metadata.tensors.at(item.key).boxes.at(item.box).place = place;
      }
    }
  }
  const std::string bytes =
      write_metadata(metadata, base_name(path_), random_uuid());
  checksums[std::string(kMetadataName)] = {bytes.size(), crc_of(bytes)};
  write_all(storage, join_path(folder_, kChecksumsName),
            write_checksums(checksums));
  write_all(storage, join_path(folder_, kMetadataName), bytes);
  storage.sync_folder(folder_);
  if (storage.exists(path_)) {
    require<InvalidArgument>(options_.existing == Existing::replace, [] {
      return str("another save has made it meanwhile.");
    });
    storage.exchange_folders(folder_, path_);
    storage.sync_folder(parent_path(path_));
    storage.remove_all(folder_);
  } else {
    storage.rename_folder(folder_, path_);
    storage.sync_folder(parent_path(path_));
  }
  storage.remove_all(folder_ + std::string(kLock));
}

// What cannot be removed now, the next save removes.
// All ranks clear up at once, for any may be the last that can: one may find
// what it was about to remove gone.
void FolderSave::abandon() noexcept {
  if (folder_.empty() || committed_) return;
  remove_quietly(folder_);
  if (rank_ != 0) return;
  remove_quietly(folder_ + std::string(kLock));
  lock_.reset();
}

void FolderSave::remove_quietly(const std::string& path) noexcept {
  constexpr int kAttempts = 5;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    try {
      options_.storage->remove_all(path);
      return;
    } catch (const std::exception&) {
    }
  }
}

}  // namespace tessera::checkpoint

#include "tessera/checkpoint/reader.h"

#include <algorithm>
#include <exception>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/fnv_hash.h"
#include "tessera/checkpoint/box_reads.h"
#include "tessera/checkpoint/checksums.h"
#include "tessera/checkpoint/crc32.h"

namespace tessera::checkpoint {
namespace {

constexpr uint64_t kMostMetadata = uint64_t{2} << 30;

uint32_t crc_of(std::string_view text) {
  return crc32(std::as_bytes(std::span(text)));
}

uint64_t fingerprint_of(std::string_view bytes) {
  return FnvHash().add(bytes).value();
}

// Times that another checkpoint may come between; each is a whole save.
constexpr int kMostTries = 8;

// All places with the keys that they belong to.
template <class Body>
void for_each_place(const Metadata& metadata, Body&& body) {
  for (const auto& [key, place] : metadata.values) body(key, place);
  for (const auto& [key, tensor] : metadata.tensors) {
    for (const StoredBox& stored : tensor.boxes) {
      if (!stored.place.file.empty()) body(key, stored.place);
    }
  }
}

}  // namespace

CheckpointReader::CheckpointReader(std::string path,
                                   std::shared_ptr<Storage> storage)
    : path_(std::move(path)), storage_(std::move(storage)) {
  for (int tries = 1;; ++tries) {
    std::exception_ptr failure;
    try {
      open();
    } catch (const CheckpointError&) {
      failure = std::current_exception();
    }
    const bool replaced = was_replaced(failure);
    if (failure && !replaced) std::rethrow_exception(failure);
    if (!replaced) return;
    require<CheckpointError>(tries < kMostTries, [&] {
      return str("'", path_, "' was replaced by another checkpoint ", tries,
                 " times while it was opened.");
    });
  }
}

void CheckpointReader::open() {
  fingerprint_.reset();
  files_.clear();
  read_metadata();
  check_files();
}

// Saves differ in their .metadata, and none comes back.
bool CheckpointReader::was_replaced(const std::exception_ptr& failure) const {
  const std::string name = join_path(path_, kMetadataName);
  if (!fingerprint_ || !storage_->exists(name)) return false;
  try {
    const auto now = storage_->open(name);
    return fingerprint_of(read_all(*now, kMostMetadata)) != *fingerprint_;
  } catch (const CheckpointError&) {
    if (failure) std::rethrow_exception(failure);
    throw;
  }
}

void CheckpointReader::read_metadata() {
  const std::string name = join_path(path_, kMetadataName);
  if (!storage_->exists(name)) {
    const std::vector<std::string> names = storage_->list(path_);
    const bool of_ranks = std::ranges::any_of(names, [](const auto& entry) {
      return entry.starts_with("__") && entry.ends_with(".metadata");
    });
    std::string why = "there is no such folder";
    if (of_ranks) {
      why = "it was saved by each rank for itself (use_collectives=False)";
    } else if (!names.empty()) {
      why =
          "it has no .metadata: its save did not end, or it is something else";
    } else if (storage_->exists(path_)) {
      why = "the folder is empty";
    }
    throw CheckpointError(str("'", path_, "' is no checkpoint: ", why, "."));
  }
  const std::string bytes =
      read_all(file(std::string(kMetadataName)), kMostMetadata);
  fingerprint_ = fingerprint_of(bytes);
  read_checksums();
  const auto expected = checksums_.find(std::string(kMetadataName));
  require<CheckpointError>(
      expected == checksums_.end() || expected->second.crc == crc_of(bytes),
      [&] {
        return str("'", name,
                   "' does not fit its checksum: it is damaged, "
                   "or belongs to another checkpoint.");
      });
  metadata_ = parse_metadata(bytes, name);
}

// None in a checkpoint of Python's.
void CheckpointReader::read_checksums() {
  checksums_.clear();
  const std::string name = join_path(path_, kChecksumsName);
  if (!storage_->exists(name)) return;
  checksums_ =
      parse_checksums(read_all(*storage_->open(name), kMostMetadata), name);
}

// Files that are missing or cut are found before anything is loaded.
void CheckpointReader::check_files() const {
  for_each_place(metadata_,
                 [&](const std::string& key, const ItemPlace& place) {
                   (void)slice_of(key, place);
                 });
}

const ReadableFile& CheckpointReader::file(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  auto& entry = files_[name];
  if (entry == nullptr) entry = storage_->open(join_path(path_, name));
  return *entry;
}

FileSlice CheckpointReader::slice_of(const std::string& key,
                                     const ItemPlace& place) const {
  try {
    return {file(place.file), place.offset, place.num_bytes};
  } catch (const CheckpointError& error) {
    throw CheckpointError(str("'", key, "' cannot be read: ", error.what()));
  }
}

Value CheckpointReader::read_value(const std::string& key,
                                   OnUnknown on_unknown) const {
  const ItemPlace& place = metadata_.values.at(key);
  require<Unsupported>(place.transforms.empty(), [&] {
    return str("'", key, "' of '", path_, "' is stored in the form '",
               place.transforms.front(), "', which is not read here.");
  });
  try {
    return read_value_item(slice_of(key, place), on_unknown);
  } catch (const CheckpointError& error) {
    throw CheckpointError(str("'", key, "' cannot be read: ", error.what()));
  }
}

ItemTensor CheckpointReader::read_item(const std::string& key,
                                       const StoredBox& stored) const {
  require<Unsupported>(stored.place.transforms.empty(), [&] {
    return str("'", key, "' of '", path_, "' is stored in the form '",
               stored.place.transforms.front(), "', which is not read here.");
  });
  const Dtype dtype = metadata_.tensors.at(key).dtype;
  const FileSlice slice = slice_of(key, stored.place);
  const ItemTensor item = read_tensor_item(slice);
  slice.forget_ends();
  require<CheckpointError>(item.sizes == stored.box.lengths, [&] {
    return str(
        "'", key, "': ", slice.name(),
        " has another shape than "
        ".metadata says. PyTorch writes such files for tensors that FSDP "
        "and tensor parallelism cut unevenly along one dim; where the "
        "rows belong is not recorded. Save again with sizes that divide.");
  });
  require<CheckpointError>(item.dtype == dtype, [&] {
    return str("'", key, "': ", slice.name(), " is of ",
               row_of(item.dtype).name, ", but .metadata says ",
               row_of(dtype).name, ".");
  });
  return item;
}

void CheckpointReader::read_box(const std::string& key, const Box& wanted,
                                std::span<std::byte> into) const {
  BoxReads reads(*this, key, wanted);
  for (size_t part = 0; part < reads.num_parts(); ++part) {
    reads.read(part, wanted, into);
  }
}

uint64_t CheckpointReader::verify() const {
  uint64_t num_bytes = 0;
  for (const auto& [key, place] : metadata_.values) {
    (void)read_value(key, OnUnknown::keep);
    num_bytes += place.num_bytes;
  }
  for (const auto& [key, tensor] : metadata_.tensors) {
    (void)find_overlaps(tensor.boxes, whole_box(tensor.sizes), key);
    for (const StoredBox& stored : tensor.boxes) {
      if (stored.place.file.empty()) continue;
      const FileSlice slice = slice_of(key, stored.place);
      num_bytes += verify_data(slice, read_item(key, stored));
    }
  }
  for (const auto& [name, expected] : checksums_) {
    verify_file(name, expected.num_bytes, expected.crc);
  }
  return num_bytes;
}

namespace {

constexpr uint64_t kPart = 16 << 20;

}  // namespace

uint64_t CheckpointReader::verify_data(const FileSlice& slice,
                                       const ItemTensor& item) const {
  std::vector<std::byte> part;
  uint32_t crc = 0;
  for (uint64_t at = 0; at < item.data_bytes; at += part.size()) {
    part.resize(std::min(kPart, item.data_bytes - at));
    slice.read(item.data_begin + at, part);
    crc = crc32(part, crc);
  }
  require<CheckpointError>(!item.data_crc || crc == *item.data_crc, [&] {
    return str("the data of ", slice.name(),
               " does not fit its checksum: it is damaged.");
  });
  return slice.length();
}

void CheckpointReader::verify_file(const std::string& name, uint64_t num_bytes,
                                   uint32_t crc) const {
  const ReadableFile& whole = file(name);
  require<CheckpointError>(whole.size() == num_bytes, [&] {
    return str("'", whole.path(), "' has ", whole.size(), " bytes; expected ",
               num_bytes, ".");
  });
  std::vector<std::byte> part;
  uint32_t got = 0;
  for (uint64_t at = 0; at < num_bytes; at += part.size()) {
    part.resize(std::min(kPart, num_bytes - at));
    whole.read(at, part);
    got = crc32(part, got);
  }
  require<CheckpointError>(got == crc, [&] {
    return str("'", whole.path(),
               "' does not fit its checksum: it is damaged.");
  });
}

}  // namespace tessera::checkpoint

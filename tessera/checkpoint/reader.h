// A checkpoint folder opened for reading.
//
//   const CheckpointReader reader("ckpt/step-10");
//   reader.metadata().tensors.at("model.weight").sizes;
//   reader.read_box("model.weight", box, into);
#pragma once

#include <cstddef>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "tessera/checkpoint/checksums.h"
#include "tessera/checkpoint/item.h"
#include "tessera/checkpoint/metadata.h"
#include "tessera/checkpoint/region.h"
#include "tessera/checkpoint/storage.h"

namespace tessera::checkpoint {

/// Threads may read at once.
class CheckpointReader {
 public:
  /// Opens all files, and checks `.metadata` against its checksum and the sizes
  /// of the files that it names. A save that ends meanwhile, and puts another
  /// folder in the place of this one, changes nothing: all files are of one
  /// save, and stay so.
  /// Errors: CheckpointError that says why `path` is no checkpoint, or an
  ///         incomplete or damaged one, or replaced time and again.
  explicit CheckpointReader(std::string path,
                            std::shared_ptr<Storage> storage = local_storage());

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const Metadata& metadata() const { return metadata_; }
  /// Equal for readers of one save, and different for those of two.
  [[nodiscard]] uint64_t fingerprint() const { return fingerprint_.value(); }

  /// Errors: CheckpointError for damage and for what is no plain value, unless
  ///         that is to be kept.
  [[nodiscard]] Value read_value(const std::string& key,
                                 OnUnknown on_unknown) const;

  /// Fills `into` with the bytes of `wanted`, row-major, in the stored dtype.
  /// Reads no item that the box does not need; an item that is read whole is
  /// compared with its checksum. BoxReads does the same by several threads.
  /// Errors: CheckpointError for holes, damage, and items that are not what
  ///         `.metadata` says.
  void read_box(const std::string& key, const Box& wanted,
                std::span<std::byte> into) const;

  /// What stands around the data of one box of `key`, compared with
  /// `.metadata`. Errors: CheckpointError; Unsupported for transformed items.
  [[nodiscard]] ItemTensor read_item(const std::string& key,
                                     const StoredBox& stored) const;
  /// Where an item's bytes are. Errors: CheckpointError.
  [[nodiscard]] FileSlice slice_of(const std::string& key,
                                   const ItemPlace& place) const;

  /// Compares every byte of all files with its checksum, and every item with
  /// `.metadata`; checks that each tensor is complete.
  /// Returns: the number of bytes compared.
  /// Errors:  CheckpointError at the first thing that is wrong.
  uint64_t verify() const;

 private:
  [[nodiscard]] const ReadableFile& file(const std::string& name) const;
  void open();
  void read_metadata();
  void read_checksums();
  [[nodiscard]] bool was_replaced(const std::exception_ptr& failure) const;
  void check_files() const;
  void verify_file(const std::string& name, uint64_t num_bytes,
                   uint32_t crc) const;
  uint64_t verify_data(const FileSlice& slice, const ItemTensor& item) const;

  std::string path_;
  std::shared_ptr<Storage> storage_;
  Metadata metadata_;
  std::optional<uint64_t> fingerprint_;  // of the bytes of .metadata
  Checksums checksums_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::unique_ptr<ReadableFile>> files_;
};

}  // namespace tessera::checkpoint

// Lays out one item of a checkpoint: a zip file as torch.save makes it, for
// data that is written apart from it.
//
//   | data.pkl ... byteorder | header of data/0 | data ... | the rest |
//   '-- prefix() ------------------------------'          '-- suffix(crc)
//
// Only the checksum of the data is open until it is written.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoint {

class ItemLayout {
 public:
  /// A tensor item: `pickled` is its data.pkl. Data begins at a multiple of
  /// 4096 bytes from the item's begin.
  ItemLayout(std::string pickled, uint64_t data_bytes);

  /// All before the data.
  [[nodiscard]] const std::string& prefix() const { return prefix_; }
  [[nodiscard]] uint64_t data_begin() const { return prefix_.size(); }
  [[nodiscard]] uint64_t data_bytes() const { return data_bytes_; }
  /// All behind the data, once its checksum is known.
  [[nodiscard]] std::string suffix(uint32_t data_crc) const;
  /// Bytes of the whole item.
  [[nodiscard]] uint64_t num_bytes() const { return num_bytes_; }

 private:
  struct Record {
    std::string name;
    uint64_t header = 0;
    uint64_t num_bytes = 0;
    uint32_t crc = 0;
  };

  uint64_t data_bytes_ = 0;
  uint64_t num_bytes_ = 0;
  std::string prefix_;
  std::vector<Record> records_;
};

/// The item of a plain value: a zip file without data.
[[nodiscard]] std::string value_item(std::string_view pickled);

}  // namespace tessera::checkpoint

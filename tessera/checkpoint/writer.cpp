#include "tessera/checkpoint/writer.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/crc32.h"
#include "tessera/checkpoint/item.h"
#include "tessera/checkpoint/parallel.h"
#include "tessera/checkpoint/zip_writer.h"

namespace tessera::checkpoint {
namespace {

constexpr uint64_t kAlignment = 4096;
constexpr uint64_t kPart = 16 << 20;  // bytes that one thread takes at a time

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// A tensor item under way. Threads take its parts in any order.
struct TensorJob {
  TensorJob(const WriteItem& item, const StoredTensor& tensor)
      : item(item),
        box(&tensor.boxes[item.box].box),
        num_bytes(*num_bytes_of(tensor.dtype, box->lengths)),
        layout(tensor_pickle(tensor.dtype, box->lengths), num_bytes),
        crcs(std::max<uint64_t>((num_bytes + kPart - 1) / kPart, 1)),
        parts_left(crcs.size()) {}

  const WriteItem& item;
  const Box* box;
  uint64_t num_bytes;
  ItemLayout layout;
  uint64_t offset = 0;  // of the item, in the file
  std::once_flag fetched;
  BoxBytes data;
  std::vector<uint32_t> crcs;  // of the parts
  std::atomic<size_t> parts_left;
  uint32_t item_crc = 0;
};

class ItemWriter {
 public:
  ItemWriter(WritableFile& file, const WriteSource& source)
      : file_(file), source_(source) {}

  void add_value(const WriteItem& item, WrittenFile& written) {
    const std::string bytes = source_.value(item.key);
    file_.write(at_, bytes_of(bytes));
    crc_ = crc32(bytes_of(bytes), crc_);
    written.items.push_back({item, {written.name, at_, bytes.size()}});
    at_ += bytes.size();
  }

  void add_tensor(const WriteItem& item, const StoredTensor& tensor,
                  WrittenFile& written) {
    jobs_.push_back(std::make_unique<TensorJob>(item, tensor));
    TensorJob& job = *jobs_.back();
    job.offset = (at_ + kAlignment - 1) / kAlignment * kAlignment;
    const uint64_t bytes = job.layout.num_bytes();
    written.items.push_back({item, {written.name, job.offset, bytes}});
    at_ = job.offset + bytes;
    for (size_t part = 0; part < job.crcs.size(); ++part) {
      parts_.emplace_back(&job, part);
    }
  }

  void run(size_t num_threads) {
    parallel_for(parts_.size(), num_threads, [&](size_t i) {
      write_part(*parts_[i].first, parts_[i].second);
    });
  }

  // The checksum of all that was written, gaps included.
  void finish(uint64_t end_of_values, WrittenFile& written) {
    uint64_t at = end_of_values;
    for (const auto& job : jobs_) {
      const std::string gap(job->offset - at, '\0');
      crc_ = crc32(bytes_of(gap), crc_);
      crc_ = crc32_combine(crc_, job->item_crc, job->layout.num_bytes());
      at = job->offset + job->layout.num_bytes();
    }
    written.crc = crc_;
    written.num_bytes = at;
  }

  [[nodiscard]] uint64_t position() const { return at_; }

 private:
  void write_part(TensorJob& job, size_t part) {
    std::call_once(job.fetched, [&] { fetch(job); });
    const uint64_t begin = part * kPart;
    const HostBytes host =
        job.data.part(begin, std::min(kPart, job.num_bytes - begin));
    const auto bytes = host.bytes;
    job.crcs[part] = crc32(bytes);
    file_.write(job.offset + job.layout.data_begin() + begin, bytes);
    if (--job.parts_left == 0) finish_item(job);
  }

  void fetch(TensorJob& job) {
    job.data = source_.box(job.item.key, *job.box);
    require<CheckpointError>(job.data.num_bytes == job.num_bytes, [&] {
      return str("'", job.item.key, "' gave ", job.data.num_bytes,
                 " bytes for a box of ", job.num_bytes, ".");
    });
  }

  void finish_item(TensorJob& job) {
    uint32_t data_crc = 0;
    for (size_t part = 0; part < job.crcs.size(); ++part) {
      const uint64_t bytes = std::min(kPart, job.num_bytes - part * kPart);
      data_crc = crc32_combine(data_crc, job.crcs[part], bytes);
    }
    const std::string suffix = job.layout.suffix(data_crc);
    file_.write(job.offset, bytes_of(job.layout.prefix()));
    file_.write(job.offset + job.layout.data_begin() + job.num_bytes,
                bytes_of(suffix));
    job.item_crc = crc32_combine(crc32(bytes_of(job.layout.prefix())), data_crc,
                                 job.num_bytes);
    job.item_crc = crc32(bytes_of(suffix), job.item_crc);
    job.data = {};
  }

  WritableFile& file_;
  const WriteSource& source_;
  uint64_t at_ = 0;
  uint32_t crc_ = 0;
  std::vector<std::unique_ptr<TensorJob>> jobs_;
  std::vector<std::pair<TensorJob*, size_t>> parts_;
};

}  // namespace

BoxBytes in_host_memory(HostBytes all) {
  const uint64_t num_bytes = all.bytes.size();
  return {num_bytes, [all = std::move(all)](uint64_t begin, uint64_t size) {
            return HostBytes{all.bytes.subspan(begin, size), all.keep};
          }};
}

std::string data_file_name(int rank) { return str("__", rank, "_0.distcp"); }

WrittenFile write_items(Storage& storage, const std::string& folder,
                        const std::string& name,
                        const std::vector<WriteItem>& items,
                        const Metadata& metadata, const WriteSource& source,
                        size_t num_threads) {
  WrittenFile written;
  if (items.empty()) return written;
  written.name = name;
  const auto file = storage.create(join_path(folder, name));
  ItemWriter writer(*file, source);
  for (const WriteItem& item : items) {
    if (item.is_value) writer.add_value(item, written);
  }
  const uint64_t end_of_values = writer.position();
  for (const WriteItem& item : items) {
    if (item.is_value) continue;
    writer.add_tensor(item, metadata.tensors.at(item.key), written);
  }
  writer.run(num_threads);
  writer.finish(end_of_values, written);
  file->sync();
  return written;
}

}  // namespace tessera::checkpoint

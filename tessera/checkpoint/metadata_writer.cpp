// Metadata as the pickle that torch.distributed.checkpoint reads.
#include "tessera/checkpoint/metadata.h"
#include "tessera/checkpoint/pickle.h"

namespace tessera::checkpoint {
namespace {

constexpr std::string_view kModule = "torch.distributed.checkpoint.metadata";
constexpr std::string_view kStorageModule =
    "torch.distributed.checkpoint.filesystem";

class MetadataWriter {
 public:
  explicit MetadataWriter(const Metadata& metadata) : metadata_(metadata) {}

  std::string run(const std::string& checkpoint_id,
                  const std::string& save_id) {
    begin(kModule, "Metadata");
    out_.text("state_dict_metadata");
    write_entries();
    out_.text("planner_data");
    write_paths();
    out_.text("storage_data");
    write_places();
    out_.text("storage_meta");
    begin(kModule, "StorageMeta");
    out_.text("checkpoint_id").text(checkpoint_id);
    out_.text("save_id").text(save_id);
    out_.text("load_id").none();
    out_.text("modules").empty_list();
    end();
    out_.text("version").text("1.0.0");
    end();
    return out_.finish();
  }

 private:
  void begin(std::string_view module, std::string_view name) {
    out_.global(module, name).newobj().empty_dict().mark();
  }
  void end() { out_.setitems().build(); }

  void size(const std::vector<int64_t>& sizes) {
    out_.global("torch", "Size").mark().mark();
    for (const int64_t value : sizes) out_.integer(value);
    out_.tuple().tuple().reduce();
  }

  void write_entries() {
    out_.empty_dict().mark();
    for (const auto& [key, tensor] : metadata_.tensors) {
      out_.text(key);
      write_tensor(tensor);
    }
    for (const auto& [key, place] : metadata_.values) {
      out_.text(key).global(kModule, "BytesStorageMetadata").newobj();
    }
    out_.setitems();
  }

  void write_tensor(const StoredTensor& tensor) {
    begin(kModule, "TensorStorageMetadata");
    out_.text("properties");
    out_.global(kModule, "TensorProperties").newobj().mark();
    out_.global("torch", row_of(tensor.dtype).name);
    out_.global("torch.serialization", "_get_layout");
    out_.mark().text("torch.strided").tuple().reduce();
    out_.boolean(false);
    out_.global(kModule, "_MEM_FORMAT_ENCODING");
    out_.mark().integer(0).tuple().reduce();
    out_.boolean(false).tuple().build();
    out_.text("size");
    size(tensor.sizes);
    out_.text("chunks").empty_list().mark();
    for (const StoredBox& stored : tensor.boxes) {
      begin(kModule, "ChunkStorageMetadata");
      out_.text("offsets");
      size(stored.box.offsets);
      out_.text("sizes");
      size(stored.box.lengths);
      end();
    }
    out_.appends();
    end();
  }

  void write_paths() {
    out_.empty_dict().mark();
    for (const auto& [key, path] : metadata_.paths) {
      out_.text(key).mark();
      for (const PathStep& step : path) write_step(step);
      out_.tuple();
    }
    out_.setitems();
  }

  void write_step(const PathStep& step) {
    if (const auto* index = std::get_if<int64_t>(&step)) {
      out_.integer(*index);
    } else {
      out_.text(std::get<std::string>(step));
    }
  }

  void write_places() {
    out_.empty_dict().mark();
    for (const auto& [key, tensor] : metadata_.tensors) {
      int64_t index = 0;
      for (const StoredBox& stored : tensor.boxes) {
        const int64_t own = index++;
        if (stored.place.file.empty()) continue;
        begin(kModule, "MetadataIndex");
        out_.text("fqn").text(key).text("index").integer(own).text("offset");
        size(stored.box.offsets);
        end();
        write_place(stored.place);
      }
    }
    for (const auto& [key, place] : metadata_.values) {
      begin(kModule, "MetadataIndex");
      out_.text("fqn").text(key).text("index").none();
      end();
      write_place(place);
    }
    out_.setitems();
  }

  void write_place(const ItemPlace& place) {
    begin(kStorageModule, "_StorageInfo");
    out_.text("relative_path").text(place.file);
    out_.text("offset").integer(static_cast<int64_t>(place.offset));
    out_.text("length").integer(static_cast<int64_t>(place.num_bytes));
    end();
  }

  const Metadata& metadata_;
  PickleWriter out_{PickleWriter::Memo::strings};
};

}  // namespace

std::string write_metadata(const Metadata& metadata,
                           const std::string& checkpoint_id,
                           const std::string& save_id) {
  return MetadataWriter(metadata).run(checkpoint_id, save_id);
}

}  // namespace tessera::checkpoint

// From the tree of a pickle to Metadata. Knows a few class names, looks at the
// attributes that it needs, and never at others.
#include <array>

#include "tessera/base/error.h"
#include "tessera/checkpoint/metadata.h"
#include "tessera/checkpoint/pickle.h"
#include "tessera/checkpoint/storage.h"

namespace tessera::checkpoint {
namespace {

using Kind = PickleNode::Kind;

constexpr std::string_view kModule = "torch.distributed.checkpoint.metadata ";
constexpr std::string_view kOldModule =
    "torch.distributed._shard.sharded_tensor.metadata ";
constexpr std::string_view kStorageInfo =
    "torch.distributed.checkpoint.filesystem _StorageInfo";

class MetadataReader {
 public:
  explicit MetadataReader(const std::string& path) : path_(path) {}

  Metadata run(const PickleNode& root) {
    const PickleNode& state = state_of(root, "Metadata");
    read_paths(find(state, "planner_data"));
    read_places(attribute(state, "storage_data"));
    for_each_pair(attribute(state, "state_dict_metadata"),
                  [&](const PickleNode& key, const PickleNode& entry) {
                    read_entry(text(key), entry);
                  });
    return std::move(metadata_);
  }

 private:
  [[noreturn]] void refuse(const PickleNode& node,
                           const std::string& why) const {
    throw CheckpointError(str("checkpoint metadata '", path_, "': at byte ",
                              node.offset, ": ", why, "."));
  }
  [[noreturn]] void refuse_key(const std::string& key,
                               const std::string& why) const {
    throw CheckpointError(
        str("checkpoint metadata '", path_, "': '", key, "' ", why, "."));
  }

  // --- nodes ---------------------------------------------------------------

  const std::string& text(const PickleNode& node) const {
    if (node.kind != Kind::text) refuse(node, "expected a text");
    return node.text;
  }

  int64_t integer(const PickleNode& node) const {
    if (node.kind != Kind::integer) refuse(node, "expected an integer");
    return node.integer;
  }

  uint64_t position(const PickleNode& node) const {
    const int64_t value = integer(node);
    if (value < 0) refuse(node, str("a position is ", value));
    return static_cast<uint64_t>(value);
  }

  static const std::string& class_name(const PickleNode& node) {
    static const std::string kNone = "(no class)";
    if (node.kind != Kind::object) return kNone;
    const PickleNode& named = *node.children[0];
    return named.kind == Kind::global ? named.text : kNone;
  }

  bool is_class(const PickleNode& node, std::string_view name) const {
    const std::string& got = class_name(node);
    const auto in = [&](std::string_view module) {
      return got.size() == module.size() + name.size() &&
             got.starts_with(module) && got.ends_with(name);
    };
    return in(kModule) || in(kOldModule) || got == name;
  }

  // The attributes of an object of that class.
  const PickleNode& state_of(const PickleNode& node,
                             std::string_view name) const {
    if (!is_class(node, name)) {
      const std::string got =
          node.kind == Kind::call && node.children[0]->kind == Kind::global
              ? "a call of " + node.children[0]->text
              : class_name(node);
      refuse(node, str("expected an object of ", name, ", got ", got));
    }
    if (node.children[2] == nullptr) refuse(node, "it has no attributes");
    return *node.children[2];
  }

  template <class Body>
  void for_each_pair(const PickleNode& dict, Body&& body) const {
    if (dict.kind != Kind::dict) refuse(dict, "expected a dict");
    for (size_t i = 0; i < dict.children.size(); i += 2) {
      body(*dict.children[i], *dict.children[i + 1]);
    }
  }

  const PickleNode* find(const PickleNode& dict, std::string_view name) const {
    const PickleNode* found = nullptr;
    for_each_pair(dict, [&](const PickleNode& key, const PickleNode& value) {
      if (key.kind == Kind::text && key.text == name) found = &value;
    });
    return found != nullptr && found->kind == Kind::none ? nullptr : found;
  }

  const PickleNode& attribute(const PickleNode& dict,
                              std::string_view name) const {
    const PickleNode* found = find(dict, name);
    if (found == nullptr)
      refuse(dict, str("attribute '", name, "' is missing"));
    return *found;
  }

  // torch.Size((2, 3)), or the plain tuple.
  std::vector<int64_t> sizes(const PickleNode& node) const {
    const PickleNode* tuple = &node;
    if (node.kind == Kind::call && node.children[0]->kind == Kind::global &&
        node.children[0]->text == "torch Size") {
      const auto& arguments = node.children[1]->children;
      if (arguments.size() != 1) refuse(node, "expected one tuple of sizes");
      tuple = arguments[0];
    }
    if (tuple->kind != Kind::tuple && tuple->kind != Kind::list) {
      refuse(node, "expected a torch.Size");
    }
    std::vector<int64_t> sizes;
    for (const PickleNode* size : tuple->children) {
      sizes.push_back(integer(*size));
      if (sizes.back() < 0) refuse(node, "a size is negative");
    }
    return sizes;
  }

  Dtype dtype(const PickleNode& node) const {
    const std::string_view name = node.text;
    constexpr std::string_view kTorch = "torch ";
    if (node.kind == Kind::global && name.starts_with(kTorch)) {
      const auto found =
          find_dtype(&DtypeRow::name, name.substr(kTorch.size()));
      if (found) return *found;
    }
    refuse(node, str("'", name, "' is no dtype that is known here"));
  }

  // --- what they mean ------------------------------------------------------

  void read_paths(const PickleNode* planner_data) {
    if (planner_data == nullptr) return;
    for_each_pair(*planner_data,
                  [&](const PickleNode& key, const PickleNode& steps) {
                    if (steps.kind != Kind::tuple)
                      refuse(steps, "expected a path");
                    Path path;
                    for (const PickleNode* step : steps.children) {
                      if (step->kind == Kind::integer) {
                        path.emplace_back(step->integer);
                      } else {
                        path.emplace_back(text(*step));
                      }
                    }
                    metadata_.paths[text(key)] = std::move(path);
                  });
  }

  void read_places(const PickleNode& storage_data) {
    for_each_pair(
        storage_data, [&](const PickleNode& key, const PickleNode& value) {
          const PickleNode& index = state_of(key, "MetadataIndex");
          const PickleNode* offset = find(index, "offset");
          const std::string& name = text(attribute(index, "fqn"));
          const ItemPlace place = read_place(value);
          if (offset == nullptr) {
            metadata_.values.insert_or_assign(name, place);
          } else {
            box_places_.insert_or_assign({name, sizes(*offset)}, place);
          }
        });
  }

  ItemPlace read_place(const PickleNode& node) const {
    const PickleNode& state = state_of(node, kStorageInfo);
    ItemPlace place{.file = text(attribute(state, "relative_path")),
                    .offset = position(attribute(state, "offset")),
                    .num_bytes = position(attribute(state, "length"))};
    if (!is_plain_name(place.file)) {
      refuse(node, str("file '", place.file,
                       "' is not a plain name; it would "
                       "lead out of the checkpoint"));
    }
    if (const PickleNode* list = find(state, "transform_descriptors")) {
      if (list->kind != Kind::list) refuse(*list, "expected a list");
      for (const PickleNode* name : list->children) {
        place.transforms.push_back(text(*name));
      }
    }
    return place;
  }

  void read_entry(const std::string& key, const PickleNode& entry) {
    if (is_class(entry, "BytesStorageMetadata")) {
      if (!metadata_.values.contains(key)) refuse_key(key, "has no item");
      known_values_.insert_or_assign(key, metadata_.values.at(key));
      return;
    }
    const PickleNode& state = state_of(entry, "TensorStorageMetadata");
    StoredTensor tensor;
    tensor.sizes = sizes(attribute(state, "size"));
    tensor.dtype = read_dtype(attribute(state, "properties"));
    if (!num_bytes_of(tensor.dtype, tensor.sizes)) {
      refuse_key(key, "is too large");
    }
    const PickleNode& chunks = attribute(state, "chunks");
    if (chunks.kind != Kind::list) refuse(chunks, "expected a list");
    for (const PickleNode* chunk : chunks.children) {
      tensor.boxes.push_back(read_box(key, tensor.sizes, *chunk));
    }
    metadata_.tensors.insert_or_assign(key, std::move(tensor));
  }

  Dtype read_dtype(const PickleNode& properties) const {
    const PickleNode& state = state_of(properties, "TensorProperties");
    if (state.kind != Kind::tuple || state.children.empty()) {
      refuse(state, "expected a tuple");
    }
    return dtype(*state.children[0]);
  }

  StoredBox read_box(const std::string& key, const std::vector<int64_t>& whole,
                     const PickleNode& chunk) const {
    const PickleNode& state = state_of(chunk, "ChunkStorageMetadata");
    StoredBox stored{
        {sizes(attribute(state, "offsets")), sizes(attribute(state, "sizes"))}};
    const Box& box = stored.box;
    bool inside = box.offsets.size() == whole.size() &&
                  box.lengths.size() == whole.size();
    for (size_t dim = 0; inside && dim < whole.size(); ++dim) {
      inside = box.offsets[dim] <= whole[dim] &&
               box.lengths[dim] <= whole[dim] - box.offsets[dim];
    }
    if (!inside) refuse_key(key, "has a box that lies outside of it");
    const auto place = box_places_.find({key, box.offsets});
    if (place != box_places_.end()) {
      stored.place = place->second;
    } else if (box.numel() > 0) {
      refuse_key(key, "has a box without an item");
    }
    return stored;
  }

 public:
  /// Values that storage_data names and state_dict_metadata does not, dropped.
  void keep_known_values(Metadata& metadata) {
    metadata.values = std::move(known_values_);
  }

 private:
  const std::string& path_;
  Metadata metadata_;
  std::map<std::string, ItemPlace> known_values_;
  std::map<std::pair<std::string, std::vector<int64_t>>, ItemPlace> box_places_;
};

}  // namespace

Metadata parse_metadata(std::string_view bytes, const std::string& path) {
  require<CheckpointError>(!bytes.empty(), [&] {
    return str("checkpoint metadata '", path,
               "': it is empty; the save did not end, or the disk lost it.");
  });
  const Pickle pickle = read_pickle(bytes, "'" + path + "'");
  MetadataReader reader(path);
  Metadata metadata = reader.run(pickle.root());
  reader.keep_known_values(metadata);
  return metadata;
}

}  // namespace tessera::checkpoint

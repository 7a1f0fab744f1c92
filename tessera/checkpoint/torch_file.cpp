#include "tessera/checkpoint/torch_file.h"

#include <algorithm>
#include <map>
#include <memory>
#include <span>

#include "tessera/base/error.h"
#include "tessera/checkpoint/item.h"
#include "tessera/checkpoint/item_data.h"
#include "tessera/checkpoint/region.h"
#include "tessera/checkpoint/storage.h"
#include "tessera/checkpoint/value_pickle.h"
#include "tessera/checkpoint/zip_file_writer.h"
#include "tessera/checkpoint/zip_reader.h"

namespace tessera::checkpoint {
namespace {

using Kind = PickleNode::Kind;

constexpr uint64_t kMostPickle = uint64_t{1} << 30;

// An open file; tensors are read from it later.
struct OpenFile {
  std::unique_ptr<ReadableFile> file;
  std::unique_ptr<FileSlice> slice;
  std::vector<ZipRecord> records;
};

std::vector<std::byte> read_tensor(const OpenFile& open, const ItemTensor& item,
                                   const std::string& key) {
  std::vector<std::byte> bytes(*num_bytes_of(item.dtype, item.sizes));
  const Box whole = whole_box(item.sizes);
  ItemReads reads(item, whole, whole);
  for (size_t part = 0; part < reads.parts().size(); ++part) {
    reads.read(*open.slice, part, whole, bytes, key);
  }
  return bytes;
}

// Turns the pickled tree into leaves.
class Walk {
 public:
  Walk(std::shared_ptr<const OpenFile> open, Contents& contents)
      : open_(std::move(open)), contents_(contents) {}

  void run(const PickleNode& root) {
    require<CheckpointError>(is_dict(root), [&] {
      return str("'", contents_.where,
                 "' holds no dict of names, so nothing in it has a name.");
    });
    visit(root, {});
  }

 private:
  static std::string callable_of(const PickleNode& node) {
    const bool named =
        node.kind == Kind::call && node.children[0]->kind == Kind::global;
    return named ? node.children[0]->text : "";
  }

  static bool is_ordered_dict(const PickleNode& node) {
    return callable_of(node) == "collections OrderedDict" &&
           node.children[1]->children.empty();
  }

  static bool is_dict(const PickleNode& node) {
    return node.kind == Kind::dict || is_ordered_dict(node);
  }

  // A parameter is a tensor with flags of autograd.
  static const PickleNode& without_parameter(const PickleNode& node) {
    const std::string name = callable_of(node);
    const bool parameter = name == "torch._utils _rebuild_parameter" ||
                           name == "torch._utils _rebuild_parameter_with_state";
    if (!parameter || node.children[1]->children.empty()) return node;
    return *node.children[1]->children[0];
  }

  static bool holds_names(const PickleNode& node) {
    const PickleNode& inner = without_parameter(node);
    if (is_dict(inner) || is_tensor_node(inner)) return true;
    return node.kind == Kind::list &&
           std::ranges::any_of(node.children, [](const PickleNode* child) {
             return holds_names(*child);
           });
  }

  void visit(const PickleNode& node, const Path& path) {
    const PickleNode& inner = without_parameter(node);
    if (is_tensor_node(inner)) {
      add_tensor(inner, path);
    } else if (is_dict(node)) {
      // Of an OrderedDict the class, arguments and attributes come first.
      const size_t first = node.kind == Kind::dict ? 0 : 3;
      for (size_t i = first; i + 1 < node.children.size(); i += 2) {
        visit(*node.children[i + 1], path / name_of(*node.children[i], path));
      }
    } else if (holds_names(node)) {
      for (size_t i = 0; i < node.children.size(); ++i) {
        visit(*node.children[i], path / static_cast<int64_t>(i));
      }
    } else {
      contents_.values.push_back({path, named_value(node, path)});
    }
  }

  [[nodiscard]] std::string name_of(const PickleNode& key,
                                    const Path& path) const {
    if (key.kind == Kind::text) return key.text;
    require<CheckpointError>(key.kind == Kind::integer, [&] {
      return str("'", contents_.where, "': below '", key_of(path),
                 "' a key is neither text nor a number.");
    });
    return str(key.integer);
  }

  [[nodiscard]] Value named_value(const PickleNode& node,
                                  const Path& path) const {
    try {
      return value_of(node, "'" + contents_.where + "'");
    } catch (const CheckpointError& error) {
      throw CheckpointError(
          str("'", key_of(path), "' cannot be read: ", error.what()));
    }
  }

  void add_tensor(const PickleNode& node, const Path& path) {
    const ItemTensor item =
        read_tensor_node(*open_->slice, open_->records, node);
    const std::string key = key_of(path);
    contents_.tensors.push_back(
        {path, item.dtype, item.sizes,
         [open = open_, item, key] { return read_tensor(*open, item, key); }});
  }

  std::shared_ptr<const OpenFile> open_;
  Contents& contents_;
};

// --- writing -----------------------------------------------------------------

// The pickle of nested leaves. Each tensor's record has its number.
class Program {
 public:
  explicit Program(const Contents& contents) {
    for (size_t i = 0; i < contents.tensors.size(); ++i) {
      leaves_.push_back({&contents.tensors[i].path, &contents.tensors[i], i});
    }
    for (const ContentValue& value : contents.values) {
      leaves_.push_back({&value.path, nullptr, 0, &value.value});
    }
  }

  std::string run() {
    std::vector<const Leaf*> all;
    for (const Leaf& leaf : leaves_) all.push_back(&leaf);
    put(all, 0);
    return out_.finish();
  }

 private:
  struct Leaf {
    const Path* path;
    const ContentTensor* tensor;
    size_t record;
    const Value* value = nullptr;
  };
  using Leaves = std::vector<const Leaf*>;

  // What stands at the first `depth` steps that all of `leaves` share.
  void put(const Leaves& leaves, size_t depth) {
    if (leaves.empty()) {
      out_.empty_dict();
      return;
    }
    const bool leaf = std::ranges::any_of(
        leaves, [&](const Leaf* one) { return one->path->size() == depth; });
    if (leaf) {
      require<InvalidArgument>(leaves.size() == 1, [&] {
        return str("'", key_of(*leaves[0]->path),
                   "' is there twice, or is the name of other entries too.");
      });
      put_leaf(*leaves[0]);
      return;
    }
    const bool list =
        std::holds_alternative<int64_t>((*leaves.front()->path)[depth]);
    list ? put_list(leaves, depth) : put_dict(leaves, depth);
  }

  void put_leaf(const Leaf& leaf) {
    if (leaf.tensor != nullptr) {
      write_tensor(out_, leaf.tensor->dtype, leaf.tensor->sizes,
                   str(leaf.record));
      return;
    }
    try {
      write_value(out_, *leaf.value);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(str("'", key_of(*leaf.path), "': ", error.what()));
    }
  }

  void put_dict(const Leaves& leaves, size_t depth) {
    std::vector<std::string> names;
    std::map<std::string, Leaves> below;
    for (const Leaf* leaf : leaves) {
      const PathStep& step = (*leaf->path)[depth];
      const std::string name =
          std::visit([](const auto& s) { return str(s); }, step);
      Leaves& list = below[name];
      if (list.empty()) names.push_back(name);
      list.push_back(leaf);
    }
    out_.empty_dict().mark();
    for (const std::string& name : names) {
      out_.text(name);
      put(below.at(name), depth + 1);
    }
    out_.setitems();
  }

  // Positions that nothing has are None.
  void put_list(const Leaves& leaves, size_t depth) {
    std::map<int64_t, Leaves> below;
    for (const Leaf* leaf : leaves) {
      const auto* position = std::get_if<int64_t>(&(*leaf->path)[depth]);
      require<InvalidArgument>(
          position != nullptr && *position >= 0 && *position < kMostPositions,
          [&] {
            return str("'", key_of(*leaf->path),
                       "' is neither in a list nor in a "
                       "dict.");
          });
      below[*position].push_back(leaf);
    }
    out_.empty_list().mark();
    int64_t next = 0;
    for (const auto& [position, list] : below) {
      for (; next < position; ++next) out_.none();
      put(list, depth + 1);
      ++next;
    }
    out_.appends();
  }

  static constexpr int64_t kMostPositions = 1'000'000;

  std::vector<Leaf> leaves_;
  PickleWriter out_;
};

void write_records(const Contents& contents, WritableFile& file,
                   const Progress& progress) {
  uint64_t all = 0;
  for (const ContentTensor& tensor : contents.tensors) all += bytes_of(tensor);
  const std::string program = Program(contents).run();
  ZipFileWriter zip(file);
  zip.add("data.pkl", program);
  zip.add(".format_version", "1");
  zip.add(".storage_alignment", "64");
  zip.add("byteorder", "little");
  uint64_t done = 0;
  for (size_t i = 0; i < contents.tensors.size(); ++i) {
    const std::vector<std::byte> bytes = contents.tensors[i].read();
    zip.add(str("data/", i), bytes);
    progress(done += bytes.size(), all);
  }
  zip.add("version", "3\n");
  zip.add(".data/serialization_id", std::string(40, '0'));
  zip.finish();
}

}  // namespace

Contents open_torch_file(const std::string& path) {
  auto open = std::make_shared<OpenFile>();
  open->file = local_storage()->open(path);
  open->slice = std::make_unique<FileSlice>(*open->file, 0, open->file->size());
  require<Unsupported>(
      open->slice->length() < 2 || open->slice->read(0, 2) != "\x80\x02", [&] {
        return str("'", path,
                   "' was written by PyTorch before 1.6, or without its zip "
                   "form. Load it in Python and save it again.");
      });
  open->records = read_zip_directory(*open->slice);
  const ZipRecord* program = find_record(open->records, "data.pkl");
  require<CheckpointError>(program != nullptr, [&] {
    return str("'", path, "' is no file of torch.save: it has no data.pkl.");
  });
  require<Unsupported>(
      find_record(open->records, "constants.pkl") == nullptr, [&] {
        return str("'", path,
                   "' is a TorchScript module, not a file of tensors.");
      });
  check_byte_order(*open->slice, open->records);
  const Pickle pickle =
      read_pickle(read_record(*open->slice, *program, kMostPickle), path);
  Contents contents{.where = path};
  Walk(open, contents).run(pickle.root());
  return contents;
}

void write_torch_file(const Contents& contents, const std::string& path,
                      const Progress& progress) {
  const auto storage = local_storage();
  replace_by(*storage, path, [&](WritableFile& file) {
    write_records(contents, file, progress);
  });
}

}  // namespace tessera::checkpoint

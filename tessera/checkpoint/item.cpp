#include "tessera/checkpoint/item.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/checkpoint/value_pickle.h"
#include "tessera/checkpoint/zip_writer.h"

namespace tessera::checkpoint {
namespace {

using Kind = PickleNode::Kind;

constexpr uint64_t kMostPickle = uint64_t{1} << 30;
constexpr std::string_view kStoragePrefix = "torch ";
constexpr std::string_view kTensor = "torch._utils _rebuild_tensor_v2";
constexpr std::string_view kNewTensor = "torch._utils _rebuild_tensor_v3";

class TensorReader {
 public:
  explicit TensorReader(const FileSlice& slice) : slice_(slice) {}

  ItemTensor run(const std::vector<ZipRecord>& records,
                 const PickleNode& node) {
    read_tensor(node);
    const ZipRecord& data = record(records, "data/" + storage_key_);
    if (data.num_bytes != storage_bytes_) {
      refuse(str("its data has ", data.num_bytes, " bytes; expected ",
                 storage_bytes_));
    }
    tensor_.data_begin = data.data_begin;
    tensor_.data_bytes = data.num_bytes;
    tensor_.data_crc = data.crc;
    check_extent();
    return tensor_;
  }

  const ZipRecord& record(const std::vector<ZipRecord>& records,
                          const std::string& name) const {
    const ZipRecord* found = find_record(records, name);
    if (found == nullptr) refuse(str("record '", name, "' is missing"));
    return *found;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw CheckpointError(str(slice_.name(), ": ", why, "."));
  }

  static std::string global_name(const PickleNode& node) {
    return node.kind == Kind::global ? node.text : "(no name)";
  }

  std::vector<int64_t> numbers(const PickleNode& node) const {
    if (node.kind != Kind::tuple) refuse("expected a tuple of numbers");
    std::vector<int64_t> numbers;
    for (const PickleNode* child : node.children) {
      numbers.push_back(number(*child));
    }
    return numbers;
  }

  int64_t number(const PickleNode& node) const {
    if (node.kind != Kind::integer || node.integer < 0) {
      refuse("expected a number of 0 or more");
    }
    return node.integer;
  }

  void read_tensor(const PickleNode& root) {
    const PickleNode* callable =
        root.kind == Kind::call ? root.children[0] : &root;
    const std::string name = global_name(*callable);
    const bool v2 = name == kTensor;
    const bool v3 = name == kNewTensor;
    if (root.kind != Kind::call || (!v2 && !v3)) {
      refuse(
          str("it holds '", name, "', which is no tensor that is read here"));
    }
    const auto& arguments = root.children[1]->children;
    const size_t most = v2 ? 7 : 8;
    if (arguments.size() + 1 < most || arguments.size() > most) {
      refuse("its tensor has another number of arguments than known");
    }
    const uint64_t count = read_storage(*arguments[0], v3);
    tensor_.storage_offset = number(*arguments[1]);
    tensor_.sizes = numbers(*arguments[2]);
    tensor_.strides = numbers(*arguments[3]);
    if (v3) read_new_dtype(*arguments[6]);
    const auto width = static_cast<uint64_t>(row_of(tensor_.dtype).num_bytes);
    if (count > (uint64_t{1} << 60) / width) refuse("its data is too large");
    storage_bytes_ = v3 ? count : count * width;
    if (arguments.size() == most) read_flags(*arguments.back());
  }

  // ("storage", class, key, device, count): elements, or bytes if untyped.
  uint64_t read_storage(const PickleNode& node, bool untyped) {
    if (node.kind != Kind::persistent_id ||
        node.children[0]->kind != Kind::tuple ||
        node.children[0]->children.size() != 5) {
      refuse("its tensor has no storage");
    }
    const auto& parts = node.children[0]->children;
    if (parts[0]->text != "storage" || parts[2]->kind != Kind::text) {
      refuse("its storage is described in an unknown way");
    }
    storage_key_ = parts[2]->text;
    const std::string name = global_name(*parts[1]);
    if (untyped) {
      if (name != "torch.storage UntypedStorage") {
        refuse(str("its storage is a '", name, "'"));
      }
      return static_cast<uint64_t>(number(*parts[4]));
    }
    const auto dtype =
        name.starts_with(kStoragePrefix)
            ? find_dtype(&DtypeRow::storage_class,
                         std::string_view(name).substr(kStoragePrefix.size()))
            : std::nullopt;
    if (!dtype) refuse(str("its storage is a '", name, "'"));
    tensor_.dtype = *dtype;
    return static_cast<uint64_t>(number(*parts[4]));
  }

  void read_new_dtype(const PickleNode& node) {
    const std::string name = global_name(node);
    const auto dtype =
        name.starts_with(kStoragePrefix)
            ? find_dtype(&DtypeRow::name,
                         std::string_view(name).substr(kStoragePrefix.size()))
            : std::nullopt;
    if (!dtype) refuse(str("its dtype is '", name, "'"));
    tensor_.dtype = *dtype;
  }

  void read_flags(const PickleNode& node) {
    if (node.kind != Kind::dict) refuse("expected a dict of flags");
    for (size_t i = 0; i < node.children.size(); i += 2) {
      const PickleNode& key = *node.children[i];
      const PickleNode& value = *node.children[i + 1];
      if (value.kind != Kind::boolean) refuse("a flag is no bool");
      if (key.text == "conj") {
        tensor_.conjugate = value.integer != 0;
      } else if (key.text == "neg") {
        tensor_.negative = value.integer != 0;
      } else {
        refuse(str("its tensor has a flag '", key.text, "'"));
      }
    }
  }

  // The last element must lie in the data.
  void check_extent() const {
    const ItemTensor& t = tensor_;
    if (t.sizes.size() != t.strides.size()) {
      refuse("it has another number of strides than of sizes");
    }
    if (!num_bytes_of(t.dtype, t.sizes)) refuse("its tensor is too large");
    if (std::ranges::find(t.sizes, 0) != t.sizes.end()) return;
    const auto width = static_cast<uint64_t>(row_of(t.dtype).num_bytes);
    const uint64_t held = t.data_bytes / width;
    uint64_t left = held;
    const auto spend = [&](uint64_t count, uint64_t each) {
      if (count != 0 && each > left / count)
        refuse("it reaches beyond its data");
      left -= count * each;
    };
    spend(1, 1);
    spend(1, static_cast<uint64_t>(t.storage_offset));
    for (size_t dim = 0; dim < t.sizes.size(); ++dim) {
      spend(static_cast<uint64_t>(t.sizes[dim] - 1),
            static_cast<uint64_t>(t.strides[dim]));
    }
  }

  const FileSlice& slice_;
  ItemTensor tensor_;
  std::string storage_key_;
  uint64_t storage_bytes_ = 0;
};

}  // namespace

void check_byte_order(const FileSlice& slice,
                      const std::vector<ZipRecord>& records) {
  const ZipRecord* record = find_record(records, "byteorder");
  if (record == nullptr) return;
  const std::string order = read_record(slice, *record, 16);
  require<Unsupported>(order == "little", [&] {
    return str(slice.name(), ": its byte order is '", order,
               "'; only little is read.");
  });
}

std::vector<int64_t> row_major_strides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t dim = sizes.size(); dim-- > 1;) {
    strides[dim - 1] = strides[dim] * std::max<int64_t>(sizes[dim], 1);
  }
  return strides;
}

bool ItemTensor::is_contiguous() const {
  const std::vector<int64_t> expected = row_major_strides(sizes);
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] > 1 && strides[dim] != expected[dim]) return false;
  }
  return true;
}

void write_tensor(PickleWriter& out, Dtype dtype,
                  const std::vector<int64_t>& sizes,
                  const std::string& record) {
  const DtypeRow& row = row_of(dtype);
  const bool legacy = !row.storage_class.empty();
  const uint64_t bytes = num_bytes_of(dtype, sizes).value();
  const uint64_t count = legacy ? bytes / row.num_bytes : bytes;
  out.global("torch._utils",
             legacy ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  out.mark().mark().text("storage");
  if (legacy) {
    out.global("torch", row.storage_class);
  } else {
    out.global("torch.storage", "UntypedStorage");
  }
  out.text(record).text("cpu").integer(static_cast<int64_t>(count));
  out.tuple().persistent_id().integer(0).mark();
  for (const int64_t size : sizes) out.integer(size);
  out.tuple().mark();
  for (const int64_t stride : row_major_strides(sizes)) out.integer(stride);
  out.tuple().boolean(false);
  out.global("collections", "OrderedDict").empty_tuple().reduce();
  if (!legacy) out.global("torch", row.name);
  out.tuple().reduce();
}

std::string tensor_pickle(Dtype dtype, const std::vector<int64_t>& sizes) {
  PickleWriter out;
  write_tensor(out, dtype, sizes, "0");
  return out.finish();
}

ItemTensor read_tensor_item(const FileSlice& slice) {
  const std::vector<ZipRecord> records = read_zip_directory(slice);
  check_byte_order(slice, records);
  const ZipRecord& program = TensorReader(slice).record(records, "data.pkl");
  const Pickle pickle =
      read_pickle(read_record(slice, program, kMostPickle), slice.name());
  return read_tensor_node(slice, records, pickle.root());
}

bool is_tensor_node(const PickleNode& node) {
  if (node.kind != Kind::call || node.children[0]->kind != Kind::global) {
    return false;
  }
  const std::string& name = node.children[0]->text;
  return name == kTensor || name == kNewTensor;
}

ItemTensor read_tensor_node(const FileSlice& slice,
                            const std::vector<ZipRecord>& records,
                            const PickleNode& node) {
  return TensorReader(slice).run(records, node);
}

Value read_value_item(const FileSlice& slice, OnUnknown on_unknown) {
  const std::vector<ZipRecord> records = read_zip_directory(slice);
  const ZipRecord& program = TensorReader(slice).record(records, "data.pkl");
  const std::string bytes = read_record(slice, program, kMostPickle);
  try {
    const Pickle pickle = read_pickle(bytes, slice.name());
    return value_of(pickle.root(), slice.name());
  } catch (const CheckpointError& error) {
    if (on_unknown == OnUnknown::refuse) throw;
    return Value(Value::Variant(
        Value::Opaque{slice.read(0, slice.length()), error.what()}));
  }
}

std::string write_value_item(const Value& value) {
  if (const auto* opaque = value.get<Value::Opaque>()) return opaque->item;
  return value_item(pickle_of(value));
}

}  // namespace tessera::checkpoint

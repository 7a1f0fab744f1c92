#include "tessera/checkpoint/contents.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

#include "tessera/base/error.h"
#include "tessera/checkpoint/metadata.h"
#include "tessera/checkpoint/reader.h"
#include "tessera/checkpoint/safetensors_contents.h"
#include "tessera/checkpoint/save_folder.h"
#include "tessera/checkpoint/torch_file.h"

namespace tessera::checkpoint {
namespace {

Contents open_checkpoint(const std::string& path) {
  const auto reader = std::make_shared<const CheckpointReader>(path);
  const Metadata& metadata = reader->metadata();
  const auto path_of = [&](const std::string& key) {
    const auto found = metadata.paths.find(key);
    return found == metadata.paths.end() ? Path{key} : found->second;
  };
  Contents contents{.where = path};
  for (const auto& [key, tensor] : metadata.tensors) {
    contents.tensors.push_back(
        {path_of(key), tensor.dtype, tensor.sizes, [reader, key = key] {
           const StoredTensor& stored = reader->metadata().tensors.at(key);
           std::vector<std::byte> bytes(
               *num_bytes_of(stored.dtype, stored.sizes));
           reader->read_box(key, whole_box(stored.sizes), bytes);
           return bytes;
         }});
  }
  for (const auto& [key, place] : metadata.values) {
    contents.values.push_back(
        {path_of(key), reader->read_value(key, OnUnknown::keep)});
  }
  return contents;
}

// Drops the steps of `prefix` from the front, if the path begins with them. A
// step may have dots itself.
bool remove_prefix(Path& path, const std::string& prefix) {
  Path front;
  for (size_t i = 0; i + 1 < path.size(); ++i) {
    front.push_back(path[i]);
    if (key_of(front) != prefix) continue;
    path.erase(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(i + 1));
    return true;
  }
  // In files without nesting all of a name is one step.
  auto* name = path.size() == 1 ? std::get_if<std::string>(&path[0]) : nullptr;
  if (name == nullptr || !name->starts_with(prefix + ".")) return false;
  *name = name->substr(prefix.size() + 1);
  return true;
}

template <class Entry>
void keep_below(std::vector<Entry>& entries, const std::string& prefix) {
  std::erase_if(entries, [&](Entry& entry) {
    return !remove_prefix(entry.path, prefix);
  });
}

}  // namespace

Form form_of(const std::string& path) {
  const auto storage = local_storage();
  require<CheckpointError>(storage->exists(path),
                           [&] { return str("'", path, "' is not there."); });
  if (!is_folder(path)) {
    return path.ends_with(".safetensors") ? Form::safetensors
                                          : Form::torch_file;
  }
  if (storage->exists(join_path(path, kMetadataName))) return Form::checkpoint;
  const std::vector<std::string> names = storage->list(path);
  const bool weights = std::ranges::any_of(
      names, [](const auto& name) { return name.ends_with(".safetensors"); });
  // A folder that is no checkpoint says why when it is opened.
  return weights ? Form::safetensors : Form::checkpoint;
}

Contents open_contents(const std::string& path) {
  switch (form_of(path)) {
    case Form::checkpoint:
      return open_checkpoint(path);
    case Form::torch_file:
      return open_torch_file(path);
    default:
      return open_safetensors(path);
  }
}

Contents below(Contents contents, const std::string& prefix) {
  if (!prefix.empty()) {
    keep_below(contents.tensors, prefix);
    keep_below(contents.values, prefix);
  }
  require<InvalidArgument>(!contents.tensors.empty(), [&] {
    return str("'", contents.where, "' has no tensors below '", prefix, "'.");
  });
  return contents;
}

Contents under(Contents contents, const std::string& name) {
  if (name.empty()) return contents;
  const auto put = [&](auto& entries) {
    for (auto& entry : entries) entry.path.insert(entry.path.begin(), name);
  };
  put(contents.tensors);
  put(contents.values);
  return contents;
}

uint64_t bytes_of(const ContentTensor& tensor) {
  return *num_bytes_of(tensor.dtype, tensor.sizes);
}

void write_checkpoint(const Contents& contents, const std::string& path,
                      const Progress& progress) {
  Offer offer;
  std::map<std::string, const ContentTensor*> tensors;
  std::map<std::string, const Value*> values;
  uint64_t all = 0;
  for (const ContentTensor& tensor : contents.tensors) {
    const std::string key = key_of(tensor.path);
    offer.tensors.push_back({key,
                             tensor.path,
                             tensor.dtype,
                             tensor.sizes,
                             {whole_box(tensor.sizes)}});
    tensors[key] = &tensor;
    all += bytes_of(tensor);
  }
  for (const ContentValue& value : contents.values) {
    const std::string key = key_of(value.path);
    offer.values.push_back({key, value.path, "", ""});
    values[key] = &value.value;
  }
  std::mutex mutex;
  uint64_t done = 0;
  const auto read = [&](const std::string& key, const Box&) {
    const auto keep =
        std::make_shared<std::vector<std::byte>>(tensors.at(key)->read());
    const std::lock_guard lock(mutex);
    progress(done += keep->size(), all);
    return in_host_memory({*keep, keep});
  };
  const Peers alone;
  FolderSave save(path, alone, [&] { return offer; }, {});
  save.commit(alone, [&] {
    return save.write({.value =
                           [&](const std::string& key) {
                             return write_value_item(*values.at(key));
                           },
                       .box = read});
  });
}

}  // namespace tessera::checkpoint

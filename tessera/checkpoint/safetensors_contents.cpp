#include "tessera/checkpoint/safetensors_contents.h"

#include <map>
#include <memory>
#include <set>
#include <span>

#include "tessera/base/error.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/safetensors_format.h"
#include "tessera/checkpoint/storage.h"

namespace tessera::checkpoint {
namespace {

using Tensors = std::vector<const ContentTensor*>;

// Counts bytes for a Progress.
class Counter {
 public:
  Counter(const Progress& progress, uint64_t all)
      : progress_(progress), all_(all) {}

  void add(uint64_t bytes) { progress_(done_ += bytes, all_); }

 private:
  const Progress& progress_;
  uint64_t all_;
  uint64_t done_ = 0;
};

uint64_t bytes_of_all(const Contents& contents) {
  uint64_t all = 0;
  for (const ContentTensor& tensor : contents.tensors) all += bytes_of(tensor);
  return all;
}

void write_file(const std::string& path, const Tensors& tensors,
                Counter& counter) {
  std::vector<safetensors::Entry> entries;
  std::map<std::string, const ContentTensor*> by_name;
  for (const ContentTensor* tensor : tensors) {
    entries.push_back({key_of(tensor->path), tensor->dtype, tensor->sizes});
    by_name[entries.back().name] = tensor;
  }
  const std::string header = safetensors::lay_out(entries, {{"format", "pt"}});
  const auto storage = local_storage();
  replace_by(*storage, path, [&](WritableFile& file) {
    file.write(0, std::as_bytes(std::span(header)));
    for (const safetensors::Entry& entry : entries) {
      const std::vector<std::byte> bytes = by_name.at(entry.name)->read();
      file.write(entry.begin, bytes);
      counter.add(bytes.size());
    }
  });
}

// The files of a folder: those of the index, or the one that has no number.
std::set<std::string> files_of(const std::string& folder) {
  const std::string index = join_path(folder, safetensors::kIndexName);
  if (!local_storage()->exists(index)) return {safetensors::file_name(0, 1)};
  std::set<std::string> names;
  const std::string json = read_file(index, safetensors::kMostHeaderBytes);
  for (const auto& [tensor, file] :
       safetensors::parse_index(json, index).file_of) {
    names.insert(file);
  }
  return names;
}

void add_file(Contents& contents, const std::string& path) {
  const auto file = std::make_shared<const File>(File::open(path));
  for (const safetensors::Entry& entry :
       safetensors::read_header(path).tensors) {
    contents.tensors.push_back(
        {{entry.name}, entry.dtype, entry.sizes, [file, entry] {
           std::vector<std::byte> bytes(entry.end - entry.begin);
           file->read(entry.begin, bytes);
           return bytes;
         }});
  }
}

}  // namespace

Contents open_safetensors(const std::string& path) {
  Contents contents{.where = path};
  if (path.ends_with(".safetensors") && !is_folder(path)) {
    add_file(contents, path);
    return contents;
  }
  for (const std::string& name : files_of(path)) {
    add_file(contents, join_path(path, name));
  }
  return contents;
}

void write_safetensors_file(const Contents& contents, const std::string& path,
                            const Progress& progress) {
  Counter counter(progress, bytes_of_all(contents));
  Tensors tensors;
  for (const ContentTensor& tensor : contents.tensors) {
    tensors.push_back(&tensor);
  }
  write_file(path, tensors, counter);
}

void write_safetensors_folder(const Contents& contents,
                              const std::string& folder,
                              uint64_t most_file_bytes,
                              const Progress& progress) {
  std::vector<uint64_t> sizes;
  for (const ContentTensor& tensor : contents.tensors) {
    sizes.push_back(bytes_of(tensor));
  }
  const auto file_of = safetensors::divide_into_files(sizes, most_file_bytes);
  std::vector<Tensors> files(file_of.back() + 1);
  const uint64_t all = bytes_of_all(contents);
  safetensors::Index index{.total_bytes = all};
  for (size_t i = 0; i < contents.tensors.size(); ++i) {
    files[file_of[i]].push_back(&contents.tensors[i]);
    index.file_of[key_of(contents.tensors[i].path)] =
        safetensors::file_name(file_of[i], files.size());
  }
  local_storage()->make_folders(folder);
  Counter counter(progress, all);
  for (size_t i = 0; i < files.size(); ++i) {
    write_file(join_path(folder, safetensors::file_name(i, files.size())),
               files[i], counter);
  }
  const std::string index_path = join_path(folder, safetensors::kIndexName);
  if (files.size() > 1) {
    replace_file(index_path, safetensors::write_index(index));
  } else {
    local_storage()->remove_all(index_path);
  }
  sync_folder(folder);
}

}  // namespace tessera::checkpoint

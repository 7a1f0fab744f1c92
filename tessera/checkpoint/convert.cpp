#include "tessera/checkpoint/convert.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "tessera/base/error.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/safetensors_format.h"
#include "tessera/checkpoint/save_folder.h"

namespace tessera::checkpoint {
namespace {

// Counts bytes for a Progress, from several threads.
class Counter {
 public:
  Counter(const Progress& progress, uint64_t all)
      : progress_(progress), all_(all) {}

  void add(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    done_ += bytes;
    progress_(done_, all_);
  }

 private:
  const Progress& progress_;
  uint64_t all_;
  std::mutex mutex_;
  uint64_t done_ = 0;
};

std::vector<std::byte> read_whole(const CheckpointReader& reader,
                                  const std::string& key) {
  const StoredTensor& tensor = reader.metadata().tensors.at(key);
  std::vector<std::byte> bytes(*num_bytes_of(tensor.dtype, tensor.sizes));
  reader.read_box(key, whole_box(tensor.sizes), bytes);
  return bytes;
}

// Tensors that lie in one safetensors file.
struct OutputFile {
  std::vector<safetensors::Entry> entries;
};

std::vector<safetensors::Entry> entries_below(const CheckpointReader& reader,
                                              const std::string& prefix) {
  const std::string start = prefix.empty() ? "" : prefix + ".";
  std::vector<safetensors::Entry> entries;
  for (const auto& [key, tensor] : reader.metadata().tensors) {
    if (!key.starts_with(start)) continue;
    entries.push_back({key.substr(start.size()), tensor.dtype, tensor.sizes});
  }
  require<InvalidArgument>(!entries.empty(), [&] {
    return str("'", reader.path(), "' has no tensors below '", prefix, "'.");
  });
  return entries;
}

void write_file(const CheckpointReader& reader, const std::string& path,
                OutputFile& output, const std::string& prefix,
                Counter& counter) {
  const std::string header =
      safetensors::lay_out(output.entries, {{"format", "pt"}});
  const auto keep = local_storage();
  Storage& storage = *keep;
  const std::string temporary = path + ".part";
  storage.remove_all(temporary);
  {
    const auto file = storage.create(temporary);
    file->write(0, std::as_bytes(std::span(header)));
    for (const safetensors::Entry& entry : output.entries) {
      const auto bytes = read_whole(
          reader, prefix.empty() ? entry.name : prefix + "." + entry.name);
      file->write(entry.begin, bytes);
      counter.add(bytes.size());
    }
    file->sync();
  }
  storage.remove_all(path);
  storage.rename_folder(temporary, path);
}

// Saves `offer` as the only rank.
void save_alone(const std::string& path, const Offer& offer,
                const WriteSource& source) {
  const Peers alone;
  FolderSave save(path, alone, [&] { return offer; }, {});
  save.commit(alone, [&] { return save.write(source); });
}

BoxBytes owned(std::vector<std::byte> bytes) {
  auto keep = std::make_shared<std::vector<std::byte>>(std::move(bytes));
  return {*keep, keep};
}

// The files of a safetensors folder, and where each tensor lies.
struct Input {
  std::map<std::string, File> files;
  std::map<std::string, std::pair<std::string, safetensors::Entry>> tensors;
};

Input open_safetensors(const std::string& folder) {
  std::set<std::string> names;
  const std::string index = join_path(folder, safetensors::kIndexName);
  if (local_storage()->exists(index)) {
    for (const auto& [tensor, file] :
         safetensors::parse_index(
             read_file(index, safetensors::kMostHeaderBytes), index)
             .file_of) {
      names.insert(file);
    }
  } else {
    names.insert(safetensors::file_name(0, 1));
  }
  Input input;
  for (const std::string& name : names) {
    const std::string path = join_path(folder, name);
    for (const auto& entry : safetensors::read_header(path).tensors) {
      input.tensors[entry.name] = {name, entry};
    }
    input.files.emplace(name, File::open(path));
  }
  return input;
}

}  // namespace

void export_safetensors(const CheckpointReader& reader,
                        const std::string& folder,
                        const ConvertOptions& options) {
  const auto entries = entries_below(reader, options.prefix);
  std::vector<uint64_t> sizes;
  uint64_t all = 0;
  for (const auto& entry : entries) {
    sizes.push_back(*num_bytes_of(entry.dtype, entry.sizes));
    all += sizes.back();
  }
  const auto file_of =
      safetensors::divide_into_files(sizes, options.most_file_bytes);
  std::vector<OutputFile> outputs(file_of.back() + 1);
  safetensors::Index index{.total_bytes = all};
  for (size_t i = 0; i < entries.size(); ++i) {
    outputs[file_of[i]].entries.push_back(entries[i]);
    index.file_of[entries[i].name] =
        safetensors::file_name(file_of[i], outputs.size());
  }
  local_storage()->make_folders(folder);
  Counter counter(options.progress, all);
  for (size_t i = 0; i < outputs.size(); ++i) {
    write_file(reader,
               join_path(folder, safetensors::file_name(i, outputs.size())),
               outputs[i], options.prefix, counter);
  }
  if (outputs.size() > 1) {
    replace_file(join_path(folder, safetensors::kIndexName),
                 safetensors::write_index(index));
  }
  sync_folder(folder);
}

void import_safetensors(const std::string& folder, const std::string& path,
                        const ConvertOptions& options) {
  const Input input = open_safetensors(folder);
  Offer offer;
  std::map<std::string, std::string> name_of;  // by key
  uint64_t all = 0;
  for (const auto& [name, place] : input.tensors) {
    const auto& entry = place.second;
    const Path steps =
        options.prefix.empty() ? Path{name} : Path{options.prefix, name};
    offer.tensors.push_back({key_of(steps),
                             steps,
                             entry.dtype,
                             entry.sizes,
                             {whole_box(entry.sizes)}});
    name_of[key_of(steps)] = name;
    all += entry.end - entry.begin;
  }
  Counter counter(options.progress, all);
  save_alone(path, offer,
             {.value = {}, .box = [&](const std::string& key, const Box&) {
                const auto& [file, entry] = input.tensors.at(name_of.at(key));
                std::vector<std::byte> bytes(entry.end - entry.begin);
                input.files.at(file).read(entry.begin, bytes);
                counter.add(bytes.size());
                return owned(std::move(bytes));
              }});
}

void consolidate(const CheckpointReader& reader, const std::string& path,
                 const ConvertOptions& options) {
  const Metadata& metadata = reader.metadata();
  const auto path_of = [&](const std::string& key) {
    const auto found = metadata.paths.find(key);
    return found == metadata.paths.end() ? Path{key} : found->second;
  };
  Offer offer;
  uint64_t all = 0;
  for (const auto& [key, tensor] : metadata.tensors) {
    offer.tensors.push_back({key,
                             path_of(key),
                             tensor.dtype,
                             tensor.sizes,
                             {whole_box(tensor.sizes)}});
    all += *num_bytes_of(tensor.dtype, tensor.sizes);
  }
  for (const auto& [key, place] : metadata.values) {
    offer.values.push_back({key, path_of(key), "", ""});
  }
  Counter counter(options.progress, all);
  save_alone(
      path, offer,
      {.value =
           [&](const std::string& key) {
             return write_value_item(reader.read_value(key, OnUnknown::keep));
           },
       .box =
           [&](const std::string& key, const Box&) {
             auto bytes = read_whole(reader, key);
             counter.add(bytes.size());
             return owned(std::move(bytes));
           }});
}

}  // namespace tessera::checkpoint

#include "tessera/checkpoint/safetensors.h"

#include <ATen/ops/empty.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>
#include <span>

#include "tessera/base/error.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/torch_dtype.h"

namespace tessera::safetensors {
namespace {

using checkpoint::File;

at::Tensor plain_of(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

std::vector<Entry> entries_of(const NamedTensors& tensors) {
  std::vector<Entry> entries;
  for (const auto& [name, tensor] : tensors) {
    require<InvalidArgument>(tensor.defined(), [&] {
      return str("safetensors: tensor '", name, "' is undefined.");
    });
    entries.push_back({name, checkpoint::dtype_of(tensor.scalar_type()),
                       tensor.sizes().vec()});
  }
  return entries;
}

void write_tensors(const std::string& path, const NamedTensors& tensors,
                   const Metadata& metadata) {
  std::vector<Entry> entries = entries_of(tensors);
  const std::string header = lay_out(entries, metadata);
  std::map<std::string, at::Tensor> by_name(tensors.begin(), tensors.end());
  File file = File::create(path);
  file.write(0, std::as_bytes(std::span(header)));
  for (const Entry& entry : entries) {
    const at::Tensor plain = plain_of(by_name.at(entry.name));
    file.write(entry.begin, bytes_of(plain));
  }
  file.sync();
}

void read_tensors(const std::string& path, NamedTensors& into) {
  const Header header = read_header(path);
  const File file = File::open(path);
  for (const Entry& entry : header.tensors) {
    at::Tensor tensor =
        at::empty(entry.sizes, checkpoint::scalar_type_of(entry.dtype));
    file.read(entry.begin, bytes_of(tensor));
    into.emplace_back(entry.name, std::move(tensor));
  }
}

std::string join(const std::string& folder, std::string_view name) {
  return (std::filesystem::path(folder) / name).string();
}

void check_promised(const Index& index, const NamedTensors& tensors,
                    const std::string& path) {
  std::set<std::string> found;
  for (const auto& [name, tensor] : tensors) found.insert(name);
  for (const auto& [name, file] : index.file_of) {
    require<CheckpointError>(found.contains(name), [&] {
      return str("'", path, "' promises tensor '", name, "' in '", file,
                 "', which does not hold it.");
    });
  }
}

// Files of an earlier save of another size would be read along by tools that
// list the folder.
void remove_other_files(const std::string& folder,
                        const std::set<std::string>& written) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool ours = name == kIndexName || (name.starts_with("model") &&
                                             name.ends_with(".safetensors"));
    if (ours && !written.contains(name)) std::filesystem::remove(entry);
  }
}

}  // namespace

void save(const std::string& path, const NamedTensors& tensors,
          const Metadata& metadata) {
  const std::string temporary = str(path, ".tmp-", ::getpid());
  std::error_code ignored;
  std::filesystem::remove(temporary, ignored);
  try {
    write_tensors(temporary, tensors, metadata);
    if (std::rename(temporary.c_str(), path.c_str()) != 0) {
      checkpoint::raise_errno("rename to", path);
    }
  } catch (...) {
    std::filesystem::remove(temporary, ignored);
    throw;
  }
}

NamedTensors load(const std::string& path) {
  NamedTensors tensors;
  read_tensors(path, tensors);
  return tensors;
}

void save_folder(const std::string& folder, const NamedTensors& tensors,
                 uint64_t most_bytes, const Metadata& metadata) {
  std::vector<uint64_t> sizes;
  for (const auto& [name, tensor] : tensors) sizes.push_back(tensor.nbytes());
  const std::vector<size_t> file_of = divide_into_files(sizes, most_bytes);
  const size_t num_files = file_of.empty() ? 1 : file_of.back() + 1;
  std::vector<NamedTensors> files(num_files);
  Index index;
  std::set<std::string> written;
  for (size_t i = 0; i < tensors.size(); ++i) {
    files[file_of[i]].push_back(tensors[i]);
    index.file_of[tensors[i].first] = file_name(file_of[i], num_files);
    index.total_bytes += sizes[i];
  }
  require<InvalidArgument>(index.file_of.size() == tensors.size(), [] {
    return str("safetensors::save_folder: two tensors have the same name.");
  });
  for (size_t i = 0; i < num_files; ++i) {
    written.insert(file_name(i, num_files));
    save(join(folder, file_name(i, num_files)), files[i], metadata);
  }
  if (num_files > 1) {
    written.insert(std::string(kIndexName));
    checkpoint::replace_file(join(folder, kIndexName), write_index(index));
  }
  remove_other_files(folder, written);
  checkpoint::sync_folder(folder);
}

NamedTensors load_folder(const std::string& folder) {
  const std::string index_path = join(folder, kIndexName);
  if (!std::filesystem::exists(index_path)) {
    return load(join(folder, file_name(0, 1)));
  }
  const Index index = parse_index(
      checkpoint::read_file(index_path, kMostHeaderBytes), index_path);
  std::set<std::string> files;
  for (const auto& [name, file] : index.file_of) files.insert(file);
  NamedTensors tensors;
  for (const std::string& file : files)
    read_tensors(join(folder, file), tensors);
  check_promised(index, tensors, index_path);
  return tensors;
}

}  // namespace tessera::safetensors

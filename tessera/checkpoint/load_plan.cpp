#include "tessera/checkpoint/load_plan.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

std::string show(const std::vector<int64_t>& sizes) {
  std::string out = "[";
  for (const int64_t size : sizes) {
    out += (out.size() > 1 ? ", " : "") + str(size);
  }
  return out + "]";
}

std::string first_name(const Metadata& metadata, const std::string& key) {
  const auto path = metadata.paths.find(key);
  if (path == metadata.paths.end() || path->second.empty()) {
    return key.substr(0, key.find('.'));
  }
  const auto* name = std::get_if<std::string>(&path->second.front());
  return name == nullptr ? "" : *name;
}

}  // namespace

KeyReport compare_keys(const Metadata& metadata,
                       const std::vector<std::string>& wanted,
                       const std::set<std::string>& names) {
  KeyReport report;
  const std::set<std::string> all(wanted.begin(), wanted.end());
  for (const std::string& key : all) {
    if (!metadata.tensors.contains(key) && !metadata.values.contains(key)) {
      report.missing.push_back(key);
    }
  }
  for (const auto& [key, tensor] : metadata.tensors) {
    if (!all.contains(key) && names.contains(first_name(metadata, key))) {
      report.unexpected.push_back(key);
    }
  }
  return report;
}

void check_wanted(const Metadata& metadata, const WantedTensor& wanted) {
  const auto stored = metadata.tensors.find(wanted.key);
  require<CheckpointError>(stored != metadata.tensors.end(), [&] {
    return str("'", wanted.key,
               "' is a tensor here, but a value in the "
               "checkpoint.");
  });
  require<CheckpointError>(stored->second.sizes == wanted.sizes, [&] {
    return str("'", wanted.key, "' has size ", show(wanted.sizes),
               " here, but ", show(stored->second.sizes),
               " in the checkpoint.");
  });
}

}  // namespace tessera::checkpoint

#include "tessera/checkpoint/checksums.h"

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/checkpoint/storage.h"

namespace tessera::checkpoint {

using nlohmann::json;

std::string write_checksums(const Checksums& checksums) {
  json files = json::object();
  for (const auto& [name, checksum] : checksums) {
    std::array<char, 16> crc{};
    std::snprintf(crc.data(), crc.size(), "%08x", checksum.crc);
    files[name] = {{"bytes", checksum.num_bytes}, {"crc32", crc.data()}};
  }
  return json({{"version", 1}, {"files", files}}).dump(2) + "\n";
}

Checksums parse_checksums(std::string_view text, const std::string& path) {
  try {
    const json object = json::parse(text);
    Checksums checksums;
    for (const auto& [name, entry] : object.at("files").items()) {
      require<CheckpointError>(is_plain_name(name), [&] {
        return str("file '", name,
                   "' is not a plain name; it would lead out of the "
                   "checkpoint");
      });
      const std::string crc = entry.at("crc32");
      checksums[name] = {entry.at("bytes").get<uint64_t>(),
                         static_cast<uint32_t>(std::stoul(crc, nullptr, 16))};
    }
    return checksums;
  } catch (const std::exception& error) {
    throw CheckpointError(
        str("checksums '", path, "' cannot be read: ", error.what(), "."));
  }
}

}  // namespace tessera::checkpoint

#include "tessera/train/train_data.h"

#include <string>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

TokenFile open(const std::string& path, const TrainConfig& config,
               Checksum checksum) {
  TokenFile file = TokenFile::open(path);
  file.require_vocab(config.model.vocab);
  if (config.data.verify && checksum == Checksum::compared) file.verify();
  return file;
}

TokenBatches batches_of(const TokenFile& file, Split split, int64_t seq) {
  file.require_windows(split, seq);
  return {file.tokens(split), seq};
}

Split held_out_split(const TokenFile& file) {
  return file.tokens(Split::validation).size() > 0 ? Split::validation
                                                   : Split::train;
}

const std::string& held_out_path(const TrainConfig& config) {
  return config.data.held_out.empty() ? config.data.tokens
                                      : config.data.held_out;
}

}  // namespace

HeldOut::HeldOut(const TrainConfig& config, Checksum checksum)
    : file_(open(held_out_path(config), config, checksum)),
      batches_(batches_of(file_, held_out_split(file_), config.model.seq)) {}

TrainData::TrainData(const TrainConfig& config, Checksum checksum)
    : file_(open(config.data.tokens, config, checksum)),
      batches_(batches_of(file_, Split::train, config.model.seq)) {
  if (!config.data.held_out.empty()) {
    held_out_.emplace(config, checksum);
  } else if (file_.tokens(Split::validation).size() > 0) {
    held_out_.emplace(config);
  }
}

std::string TrainData::text_id() const {
  return str(file_.header().num_train, " tokens, checksum ",
             file_.header().data_checksum);
}

}  // namespace tessera::train

// The texts of a run, opened and checked.
#pragma once

#include <optional>
#include <string>

#include "tessera/train/token_batches.h"
#include "tessera/train/token_file.h"
#include "tessera/train/train_config.h"

namespace tessera::train {

/// Whether the checksum of the tokens is compared (config.data.verify allowing
/// it): one rank does it for all.
enum class Checksum { compared, trusted };

/// The text that a run is measured on: data.held_out, or else the validation
/// part of data.tokens. Of a file without validation part, all tokens.
class HeldOut {
 public:
  /// Errors: Failure, as TrainData.
  explicit HeldOut(const TrainConfig& config,
                   Checksum checksum = Checksum::trusted);
  HeldOut(const HeldOut&) = delete;
  HeldOut& operator=(const HeldOut&) = delete;

  [[nodiscard]] const TokenBatches& batches() const { return batches_; }

 private:
  TokenFile file_;
  TokenBatches batches_;
};

class TrainData {
 public:
  /// Errors: Failure: missing_data, damaged_data, small_vocabulary, or
  ///         short_data when a text has not one sequence of model.seq.
  TrainData(const TrainConfig& config, Checksum checksum);
  TrainData(const TrainData&) = delete;
  TrainData& operator=(const TrainData&) = delete;

  [[nodiscard]] const TokenBatches& train() const { return batches_; }
  /// Null when data.held_out is empty and data.tokens has no validation part.
  [[nodiscard]] const TokenBatches* held_out() const {
    return held_out_ ? &held_out_->batches() : nullptr;
  }
  /// The same for files with the same training tokens, and those alone.
  [[nodiscard]] std::string text_id() const;
  [[nodiscard]] const Tokenizer& tokenizer() const { return file_.tokenizer(); }

 private:
  TokenFile file_;
  TokenBatches batches_;
  std::optional<HeldOut> held_out_;
};

}  // namespace tessera::train

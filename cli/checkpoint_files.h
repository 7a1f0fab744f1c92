// What `tessera checkpoint` does with whole files: convert, export, import,
// consolidate. Each shows its progress on a terminal and returns an exit code.
#pragma once

#include <string>

namespace tessera::cli {

struct FileFlags {
  std::string from;
  std::string to;
  // convert
  std::string form = "auto";
  std::string from_prefix;
  std::string to_prefix;
  // export, import
  std::string model_prefix = "model";
  std::string format = "hf";
  std::string config;
  // import into a run folder
  bool run = false;
  std::string tokens = "tokens.bin";
  std::string tokenizer;
};

int convert_files(const FileFlags& flags);
int export_model(const FileFlags& flags);
int import_model(const FileFlags& flags);
int consolidate_files(const FileFlags& flags);

}  // namespace tessera::cli

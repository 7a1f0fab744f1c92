// `tessera train` as real processes on a tiny model: what its tests share.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/train/metrics_file.h"
#include "tessera/train/token_file_writer.h"
#include "tests/launch/running_program.h"

namespace tessera::train {

using launch::RunningProgram;
using Words = std::vector<std::string>;
using Names = std::vector<std::string>;

inline std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

struct Ended {
  int code = 0;
  std::string output, error;
};

/// A folder with a token file of a simple text and a config, for one test.
class Program : public testing::Test {
 protected:
  void SetUp() override {
    // As `tessera run` sets it: threads that wait for each other are slow on
    // busy cores.
    ::setenv("OMP_NUM_THREADS", "1", /*replace=*/0);
    folder_ = testing::TempDir() + str("trainer_", ::getpid(), "_", next());
    std::filesystem::create_directories(folder_);
    write_tokens(path("text.tok"), 256, 40);
    std::ofstream(path("train.toml")) << R"(
[data]
tokens = ")" << path("text.tok") << R"("
[model]
dim = 16
layers = 1
heads = 2
ffn = 24
seq = 8
[train]
steps = 12
batch = 6
tokens_per_step = 96
[optimizer]
lr = 1e-2
[evaluation]
every = 5
[output]
folder = ")" << path("run") << R"("
print_every = 4
)";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string path(const std::string& name) const {
    return folder_ + "/" + name;
  }

  static void write_tokens(const std::string& path, uint64_t vocab,
                           int repeats) {
    const std::string line = "the cat sat on the mat. ";
    const std::vector<uint32_t> tokens(line.begin(), line.end());
    TokenFileWriter writer(path, {.vocab = vocab});
    for (int i = 0; i < repeats; ++i) {
      writer.append(i % 8 == 7 ? Split::validation : Split::train, tokens);
    }
    writer.finish();
  }

  [[nodiscard]] Words train_words(const Words& more = {}) const {
    Words words = {TESSERA_PROGRAM, "train", path("train.toml")};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  static Words on_ranks(int ranks, const Words& words) {
    Words all = {TESSERA_PROGRAM, "run", "-n", std::to_string(ranks),
                 "--kill-after",  "30",  "--"};
    all.insert(all.end(), words.begin(), words.end());
    return all;
  }

  static Ended end(RunningProgram& program) {
    Ended ended;
    ended.code = program.wait();
    ended.output = program.output();
    ended.error = program.error();
    return ended;
  }
  static Ended run(const Words& words) {
    RunningProgram program(words);
    return end(program);
  }

  [[nodiscard]] std::vector<double> losses(const std::string& run,
                                           const char* name = "loss") const {
    std::vector<double> values;
    for (const MetricsRow& row : read_metrics(path(run) + "/metrics.jsonl")) {
      if (row.contains(name)) values.push_back(row.at(name));
    }
    return values;
  }

  /// What stands in a folder, hidden names too.
  [[nodiscard]] Names names_in(const std::string& folder) const {
    Names names;
    for (const auto& entry :
         std::filesystem::directory_iterator(path(folder))) {
      names.push_back(entry.path().filename().string());
    }
    std::ranges::sort(names);
    return names;
  }

  [[nodiscard]] std::vector<double> steps_of(const std::string& run) const {
    std::vector<double> steps;
    for (const MetricsRow& row : read_metrics(path(run) + "/metrics.jsonl")) {
      if (row.contains("loss")) steps.push_back(row.at("step"));
    }
    return steps;
  }

  /// 1, 2, ..., last
  static std::vector<double> steps_to(double last) {
    std::vector<double> steps;
    for (double step = 1; step <= last; ++step) steps.push_back(step);
    return steps;
  }

  static int next() {
    static int number = 0;
    return number++;
  }

  std::string folder_;
};

}  // namespace tessera::train

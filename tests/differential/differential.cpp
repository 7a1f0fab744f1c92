// Trains cases (cases.py says what one is) by Tessera and by plain LibTorch.
//
//   differential CASES.json OUT.json
//
// OUT.json holds, by seed, {"tessera": OUTCOME, "plain": OUTCOME}, where an
// outcome is that of outcome.h, or {"error": text}.
#include <ATen/Parallel.h>

#include <cstdio>
#include <fstream>

#include "tests/differential/train.h"

namespace {

using Json = nlohmann::json;

Json outcome_or_error(Json (*train)(const Json&), const Json& test_case) {
  try {
    return train(test_case);
  } catch (const std::exception& error) {
    return {{"error", error.what()}};
  }
}

void run(const std::string& cases, const std::string& out) {
  Json results = Json::object();
  for (const Json& one : Json::parse(std::ifstream(cases))) {
    results[one["seed"].dump()] = {
        {"tessera", outcome_or_error(differential::train_sharded, one)},
        {"plain", outcome_or_error(differential::train_plain, one)}};
  }
  std::ofstream(out) << results;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr,
                 "differential: got %d arguments; give the cases and the file "
                 "to write.\n",
                 argc - 1);
    return 2;
  }
  at::set_num_threads(1);
  try {
    run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "differential: %s\n", error.what());
    return 1;
  }
  return 0;
}

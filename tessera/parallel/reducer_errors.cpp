#include "tessera/parallel/reducer_errors.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::reducer_errors {

namespace {

constexpr const char* kWho = "DistributedDataParallel: ";
constexpr size_t kMostNames = 8;

/// "'a', 'b' and 7 more"
std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMostNames); ++i) {
    text += str(i == 0 ? "'" : ", '", names[i], "'");
  }
  const size_t more = names.size() - std::min(names.size(), kMostNames);
  return more == 0 ? text : str(text, " and ", more, " more");
}

}  // namespace

void raise_missing(const std::vector<std::string>& names,
                   Expectation expectation) {
  throw InvalidState(
      str(kWho, "backward gave no gradient to ", listed(names),
          expectation == Expectation::one_each
              ? "; give unused_parameters = UnusedParameters::find, or use all "
                "of them in each forward."
              : ", which had one in the first pass; with StaticGraph::yes all "
                "passes are alike."));
}

void raise_again(const std::string& name, int64_t count, int64_t expected) {
  throw InvalidState(
      str(kWho, "'", name, "' got gradient ", count,
          " of one backward; expected ", expected,
          ". It is used in several recomputed regions, or in another way than "
          "before: give static_graph = StaticGraph::yes where all steps are "
          "alike."));
}

void raise_by_name(const std::string& name) {
  throw Unsupported(str(kWho, "'", name,
                        "' got a gradient in a backward for some inputs only; "
                        "call backward without them."));
}

void raise_stray(const std::string& name) {
  throw InvalidState(
      str(kWho, "'", name,
          "' got a gradient that no forward of the wrapper led to, and that "
          "would stay on this rank; call the wrapper instead of the module, "
          "within NoSync where that is meant."));
}

void raise_changed(const std::string& name, const char* how) {
  throw InvalidState(
      str(kWho, "'", name, "' ", how,
          " when it was wrapped; freeze, move and cast parameters before, or "
          "wrap the model anew."));
}

}  // namespace tessera::reducer_errors

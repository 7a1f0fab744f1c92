#include "tessera/comm/text_agreement.h"

#include <algorithm>
#include <sstream>

namespace tessera {

namespace {

std::string next_line(std::istringstream& in, const char* at_end) {
  std::string line;
  return std::getline(in, line) ? line : at_end;
}

}  // namespace

std::optional<TextDifference> first_difference(
    const std::vector<std::string>& texts, const char* at_end) {
  const auto unlike = std::ranges::find_if(
      texts, [&](const std::string& text) { return text != texts[0]; });
  if (unlike == texts.end()) return std::nullopt;
  std::istringstream of_first(texts[0]);
  std::istringstream of_other(*unlike);
  TextDifference difference{.other_rank =
                                static_cast<int>(unlike - texts.begin())};
  do {
    difference.first = next_line(of_first, at_end);
    difference.other = next_line(of_other, at_end);
  } while (difference.first == difference.other);
  return difference;
}

}  // namespace tessera

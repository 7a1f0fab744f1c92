#include "tessera/base/nearest_name.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace tessera {
namespace {

bool same_letter(char a, char b) {
  return std::tolower(static_cast<unsigned char>(a)) ==
         std::tolower(static_cast<unsigned char>(b));
}

int farthest_that_is_near(std::string_view name) {
  return std::max(2, static_cast<int>(name.size()) / 3);
}

}  // namespace

int edit_distance(std::string_view a, std::string_view b) {
  // rows[i][j]: from the first i letters of a to the first j of b.
  std::vector<std::vector<int>> rows(a.size() + 1,
                                     std::vector<int>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) rows[i][0] = static_cast<int>(i);
  for (size_t j = 0; j <= b.size(); ++j) rows[0][j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const int replaced = same_letter(a[i - 1], b[j - 1]) ? 0 : 1;
      rows[i][j] = std::min({rows[i - 1][j] + 1, rows[i][j - 1] + 1,
                             rows[i - 1][j - 1] + replaced});
      if (i > 1 && j > 1 && same_letter(a[i - 1], b[j - 2]) &&
          same_letter(a[i - 2], b[j - 1])) {
        rows[i][j] = std::min(rows[i][j], rows[i - 2][j - 2] + 1);
      }
    }
  }
  return rows[a.size()][b.size()];
}

std::string nearest_name(std::string_view wrong,
                         std::span<const std::string> names) {
  std::string nearest;
  int least = farthest_that_is_near(wrong) + 1;
  for (const std::string& name : names) {
    const int distance = edit_distance(wrong, name);
    // All letters changed: two short names that have nothing in common.
    if (distance < least && distance < static_cast<int>(name.size())) {
      least = distance;
      nearest = name;
    }
  }
  return nearest;
}

}  // namespace tessera

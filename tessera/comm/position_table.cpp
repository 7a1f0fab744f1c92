#include "tessera/comm/position_table.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iomanip>
#include <map>
#include <sstream>
#include <tuple>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr char kSeparator = '\x1f';  // ASCII's own, in no name
constexpr size_t kFields = 16;
constexpr size_t kColumns = 8;
using Row = std::array<std::string, kColumns>;

std::vector<std::string> split(std::string_view record) {
  std::vector<std::string> fields = {""};
  for (const char c : record) {
    if (c == kSeparator) {
      fields.emplace_back();
    } else {
      fields.back().push_back(c);
    }
  }
  return fields;
}

int64_t to_number(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  require<InvalidArgument>(
      error == std::errc() && end == text.data() + text.size(),
      [&] { return str("position record: '", text, "' is not a number."); });
  return value;
}

// What must be equal for two ranks to stand at one place.
auto place_of(const RankPosition& position) {
  const CollectiveEntry& last = position.last;
  return std::tuple(last.sequence, last.communicator, last.kind, last.unit,
                    last.numel, last.dtype, last.reduction, last.root,
                    last.waited, last.finished);
}

std::vector<int> ranks_where(std::span<const RankPosition> positions,
                             auto&& predicate) {
  std::vector<int> ranks;
  for (const RankPosition& position : positions) {
    if (predicate(position)) ranks.push_back(position.rank);
  }
  return ranks;
}

// Among ranks that answered and stand at two places or more.
std::vector<int> odd_of_divided(const std::vector<RankPosition>& positions) {
  std::map<decltype(place_of(positions[0])), size_t> counts;
  for (const RankPosition& position : positions) ++counts[place_of(position)];
  const auto most = std::max_element(
      counts.begin(), counts.end(),
      [](const auto& a, const auto& b) { return a.second < b.second; });
  if (2 * most->second > positions.size()) {
    return ranks_where(positions, [&](const RankPosition& p) {
      return place_of(p) != most->first;
    });
  }
  auto idle = ranks_where(positions, [](const RankPosition& p) {
    return !p.last.waited || p.last.finished || p.last.kind == kGoodbye;
  });
  if (!idle.empty() && idle.size() < positions.size()) return idle;
  const auto [low, high] =
      std::minmax_element(positions.begin(), positions.end(),
                          [](const RankPosition& a, const RankPosition& b) {
                            return a.last.sequence < b.last.sequence;
                          });
  return ranks_where(positions, [&](const RankPosition& p) {
    return low->last.sequence == high->last.sequence ||
           p.last.sequence == low->last.sequence;
  });
}

std::string seconds(int64_t milliseconds) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(1)
      << static_cast<double>(milliseconds) / 1000 << " s";
  return out.str();
}

std::string state_of(const RankPosition& position) {
  const std::string age = seconds(position.age_ms);
  if (position.last.sequence == 0) return "no collective yet";
  if (position.last.finished) return str("finished ", age, " ago");
  return position.last.waited ? str("waiting ", age)
                              : str("issued ", age, " ago, not waited for");
}

std::string or_dash(const std::string& text) {
  return text.empty() ? "-" : text;
}

Row row_of(const RankPosition& position) {
  const CollectiveEntry& last = position.last;
  if (!position.answered) {
    return {str(position.rank),
            "-",
            "-",
            "-",
            "-",
            "-",
            "-",
            "no answer: its process has ended, or is stopped"};
  }
  return {str(position.rank),  str(last.sequence),  or_dash(last.kind),
          or_dash(last.unit),  or_dash(last.phase), or_dash(last.op),
          str(last.num_bytes), state_of(position)};
}

std::string name_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += str(i == 0 ? "" : ", ", ranks[i]);
  }
  return text;
}

}  // namespace

std::string to_record(const RankPosition& position) {
  const CollectiveEntry& last = position.last;
  std::ostringstream out;
  const char s = kSeparator;
  out << position.rank << s << position.age_ms << s << last.sequence << s
      << last.communicator << s << last.kind << s << last.unit << s
      << last.phase << s << last.op << s << last.numel << s << last.dtype << s
      << last.num_bytes << s << static_cast<int>(last.finished) << s
      << static_cast<int>(last.waited) << s << last.index << s << last.reduction
      << s << last.root;
  return out.str();
}

RankPosition from_record(std::string_view record) {
  const std::vector<std::string> fields = split(record);
  require<InvalidArgument>(fields.size() == kFields, [&] {
    return str("position record: got ", fields.size(), " fields; expected ",
               kFields, ".");
  });
  RankPosition position;
  position.rank = static_cast<int>(to_number(fields[0]));
  position.answered = true;
  position.age_ms = to_number(fields[1]);
  position.last.sequence = static_cast<uint64_t>(to_number(fields[2]));
  position.last.communicator = fields[3];
  position.last.kind = fields[4];
  position.last.unit = fields[5];
  position.last.phase = fields[6];
  position.last.op = fields[7];
  position.last.numel = to_number(fields[8]);
  position.last.dtype = fields[9];
  position.last.num_bytes = to_number(fields[10]);
  position.last.finished = to_number(fields[11]) != 0;
  position.last.waited = to_number(fields[12]) != 0;
  position.last.index = to_number(fields[13]);
  position.last.reduction = fields[14];
  position.last.root = static_cast<int>(to_number(fields[15]));
  return position;
}

std::vector<int> odd_ranks(std::span<const RankPosition> positions) {
  std::vector<RankPosition> answered;
  std::copy_if(positions.begin(), positions.end(), std::back_inserter(answered),
               [](const RankPosition& p) { return p.answered; });
  if (answered.size() < positions.size()) {
    return ranks_where(positions,
                       [](const RankPosition& p) { return !p.answered; });
  }
  const bool divided =
      std::any_of(answered.begin(), answered.end(), [&](const RankPosition& p) {
        return place_of(p) != place_of(answered[0]);
      });
  return divided ? odd_of_divided(answered) : std::vector<int>{};
}

bool contradict(const RankPosition& a, const RankPosition& b) {
  const auto call = [](const CollectiveEntry& entry) {
    return std::tie(entry.kind, entry.unit, entry.numel, entry.dtype,
                    entry.reduction, entry.root);
  };
  return a.last.waited && b.last.waited && !a.last.finished &&
         !b.last.finished && a.last.communicator == b.last.communicator &&
         a.last.index == b.last.index && call(a.last) != call(b.last);
}

std::string position_table(std::span<const RankPosition> positions) {
  std::vector<Row> rows = {
      {"rank", "seq", "kind", "unit", "phase", "operator", "bytes", "state"}};
  for (const RankPosition& position : positions) {
    rows.push_back(row_of(position));
  }
  Row::size_type column = 0;
  std::array<size_t, kColumns> widths{};
  for (; column < kColumns; ++column) {
    for (const Row& row : rows) {
      widths[column] = std::max(widths[column], row[column].size());
    }
  }
  const std::vector<int> odd = odd_ranks(positions);
  std::ostringstream out;
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool marked =
        i > 0 && std::count(odd.begin(), odd.end(), positions[i - 1].rank) > 0;
    out << (marked ? "  > " : "    ");
    for (size_t c = 0; c + 1 < kColumns; ++c) {
      out << std::left << std::setw(static_cast<int>(widths[c])) << rows[i][c]
          << "  ";
    }
    out << rows[i].back() << '\n';
  }
  out << (odd.empty() ? "All ranks stand at the same collective: look at the "
                        "network, and at the hosts."
                      : str("Out of step: ", name_ranks(odd), "."));
  return out.str();
}

}  // namespace tessera

#include "tessera/comm/flight_report.h"

#include <algorithm>
#include <cstdint>
#include <iomanip>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/base/error.h"

namespace tessera {
namespace {

using Records = std::span<const FlightRecord>;

// The calls of each rank on one communicator.
struct Line {
  FlightGroup group;
  std::map<int, std::map<int64_t, FlightCall>> calls;  // by rank and index
  std::map<int, double> written;                       // by rank

  [[nodiscard]] const FlightCall* find(int rank, int64_t index) const {
    const auto of_rank = calls.find(rank);
    if (of_rank == calls.end()) return nullptr;
    const auto found = of_rank->second.find(index);
    return found == of_rank->second.end() ? nullptr : &found->second;
  }
  [[nodiscard]] const FlightCall* last(int rank) const {
    const auto of_rank = calls.find(rank);
    return of_rank == calls.end() ? nullptr : &of_rank->second.rbegin()->second;
  }
  [[nodiscard]] int64_t last_index(int rank) const {
    const FlightCall* call = last(rank);
    return call == nullptr ? 0 : call->entry.index;
  }
};

// Groups of one name on other ranks are other groups; calls that belong to no
// group are those that all ranks make.
FlightGroup group_of(const FlightRecord& record, const std::string& name) {
  for (const FlightGroup& group : record.groups) {
    const bool member =
        std::count(group.ranks.begin(), group.ranks.end(), record.rank) > 0;
    if (group.name == name && member) return group;
  }
  FlightGroup all{name, std::vector<int>(record.world_size)};
  std::iota(all.ranks.begin(), all.ranks.end(), 0);
  return all;
}

std::vector<Line> lines_of(Records records) {
  std::map<std::pair<std::string, std::vector<int>>, Line> lines;
  for (const FlightRecord& record : records) {
    for (const FlightCall& call : record.calls) {
      const FlightGroup group = group_of(record, call.entry.communicator);
      Line& line = lines[{group.name, group.ranks}];
      line.group = group;
      line.calls[record.rank][call.entry.index] = call;
    }
  }
  std::vector<Line> result;
  for (auto& [key, line] : lines) {
    for (const FlightRecord& record : records) {
      line.written[record.rank] = record.written;
    }
    result.push_back(std::move(line));
  }
  return result;
}

std::string call_text(const CollectiveEntry& entry) {
  std::string text = str(entry.kind, " #", entry.index);
  if (!entry.reduction.empty()) text += str(" by ", entry.reduction);
  if (entry.root >= 0) text += str(" with root ", entry.root);
  if (!entry.unit.empty()) text += str(", unit '", entry.unit, "'");
  if (!entry.phase.empty()) text += str(", ", entry.phase);
  if (!entry.op.empty()) text += str(", ", entry.op);
  if (!entry.dtype.empty()) text += str(", ", entry.numel, " ", entry.dtype);
  return text;
}

auto call_of(const FlightCall& call) {
  return std::tie(call.entry.kind, call.entry.unit, call.entry.numel,
                  call.entry.dtype, call.entry.reduction, call.entry.root);
}

std::string in_seconds(double value) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(1) << value << " s";
  return out.str();
}

std::string join_ranks(const std::vector<int>& ranks, const char* between) {
  std::string text;
  for (const int rank : ranks) text += str(text.empty() ? "" : between, rank);
  return text;
}

// What is wrong with one collective, most telling first.
enum class Wrong { unlike, missing, incomplete, nothing };

Wrong judge(const Line& line, int64_t index) {
  const FlightCall* first = nullptr;
  bool missing = false;
  bool incomplete = false;
  for (const int rank : line.group.ranks) {
    if (!line.written.contains(rank)) continue;
    const FlightCall* call = line.find(rank, index);
    if (call == nullptr) {
      // Behind; or so far ahead that its record no longer holds it.
      missing = missing || line.last_index(rank) < index;
      continue;
    }
    if (first != nullptr && call_of(*first) != call_of(*call)) {
      return Wrong::unlike;
    }
    first = call;
    incomplete = incomplete || !call->entry.finished;
  }
  if (missing) return Wrong::missing;
  return incomplete ? Wrong::incomplete : Wrong::nothing;
}

struct Finding {
  const Line* line = nullptr;
  int64_t index = 0;
  Wrong wrong = Wrong::nothing;
};

Finding first_finding(const Line& line) {
  std::set<int64_t> indexes;
  for (const auto& [rank, calls] : line.calls) {
    for (const auto& [index, call] : calls) indexes.insert(index);
  }
  for (const int64_t index : indexes) {
    const Wrong wrong = judge(line, index);
    if (wrong != Wrong::nothing) return {&line, index, wrong};
  }
  return {};
}

// `written`: when the record of this rank was.
std::string state_of(const FlightCall& call, double written) {
  const std::string age = in_seconds(written - call.since());
  if (call.entry.finished) {
    return str("completed ", age, " before, in ",
               in_seconds(call.ended - call.called));
  }
  return call.entry.waited ? str("waiting ", age)
                           : str("issued ", age, " before");
}

std::string state_text(const Line& line, int rank, int64_t index) {
  if (!line.written.contains(rank)) return "no record";
  const FlightCall* call = line.find(rank, index);
  if (call == nullptr) {
    const FlightCall* last = line.last(rank);
    if (last == nullptr) return "missing; it has none on this communicator";
    return str("missing; its last is ", call_text(last->entry), ", ",
               state_of(*last, line.written.at(rank)));
  }
  return state_of(*call, line.written.at(rank));
}

// The ranks that keep a collective from completing.
std::vector<int> culprits(const Finding& finding) {
  const Line& line = *finding.line;
  std::vector<int> ranks;
  for (const int rank : line.group.ranks) {
    const FlightCall* call = line.find(rank, finding.index);
    const bool missing =
        call == nullptr && line.last_index(rank) < finding.index;
    if (missing || (call != nullptr && finding.wrong == Wrong::unlike)) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

const FlightCall& any_call(const Finding& finding) {
  for (const auto& [rank, calls] : finding.line->calls) {
    const FlightCall* call = finding.line->find(rank, finding.index);
    if (call != nullptr) return *call;
  }
  throw InvalidState("flight report: a finding without a call.");
}

void write_finding(std::ostream& out, const Finding& finding) {
  const Line& line = *finding.line;
  const std::vector<int> odd = culprits(finding);
  out << "'" << line.group.name << "', ranks "
      << join_ranks(line.group.ranks, " ") << ": "
      << (finding.wrong == Wrong::unlike ? "unlike calls at #"
                                         : "not complete is #")
      << finding.index;
  if (finding.wrong != Wrong::unlike) {
    out << ", " << call_text(any_call(finding).entry);
  }
  out << '\n';
  for (const int rank : line.group.ranks) {
    const bool marked = std::count(odd.begin(), odd.end(), rank) > 0;
    out << (marked ? "  > " : "    ") << "rank " << rank << "  ";
    const FlightCall* call = line.find(rank, finding.index);
    if (finding.wrong == Wrong::unlike && call != nullptr) {
      out << call_text(call->entry) << ", ";
    }
    out << state_text(line, rank, finding.index) << '\n';
  }
}

std::string name_as_subject(const std::vector<int>& ranks) {
  return str(ranks.size() == 1 ? "Rank " : "Ranks ", join_ranks(ranks, ", "));
}

std::string verdict(const Finding& finding) {
  const Line& line = *finding.line;
  const CollectiveEntry& entry = any_call(finding).entry;
  const std::string where = str(entry.kind, " #", finding.index, " of unit '",
                                entry.unit, "' on '", line.group.name, "'");
  std::vector<int> silent;  // without a record
  std::vector<int> behind;
  for (const int rank : culprits(finding)) {
    (line.written.contains(rank) ? behind : silent).push_back(rank);
  }
  if (finding.wrong == Wrong::unlike) {
    return str(name_as_subject(behind), " mean unlike calls by #",
               finding.index, " on '", line.group.name, "'.");
  }
  std::string text;
  if (!behind.empty()) {
    text = str(name_as_subject(behind), behind.size() == 1 ? " is" : " are",
               " missing ", where, ".");
  }
  if (!silent.empty()) {
    text += str(text.empty() ? "" : " ", name_as_subject(silent),
                " left no record; ", where, " may be missing there.");
  }
  return text.empty() ? str("All ranks have issued ", where, ".") : text;
}

// What a rank has done since is no collective: the slow one of many has been at
// it for longest.
std::string last_end(const FlightRecord& record) {
  double last = 0;
  for (const FlightCall& call : record.calls) last = std::max(last, call.ended);
  if (last == 0) return "none of them ended";
  return str("the last ended ", in_seconds(record.written - last), " before");
}

void write_heads(std::ostream& out, Records records) {
  std::set<int> missing;
  for (int rank = 0; rank < records[0].world_size; ++rank) missing.insert(rank);
  for (const FlightRecord& record : records) {
    missing.erase(record.rank);
    const std::string cause = record.cause.substr(0, record.cause.find('\n'));
    out << "rank " << record.rank << ": " << record.calls.size()
        << " collectives, " << last_end(record) << "; " << cause << '\n';
  }
  for (const int rank : missing) {
    out << "rank " << rank << ": no record: it was killed or stopped, or "
        << "wrote to another folder\n";
  }
}

}  // namespace

std::string flight_report(Records records) {
  if (records.empty()) return "";
  std::ostringstream out;
  write_heads(out, records);
  const std::vector<Line> lines = lines_of(records);
  std::vector<Finding> findings;
  for (const Line& line : lines) {
    const Finding finding = first_finding(line);
    if (finding.line != nullptr) findings.push_back(finding);
  }
  std::stable_sort(
      findings.begin(), findings.end(),
      [](const Finding& a, const Finding& b) { return a.wrong < b.wrong; });
  for (const Finding& finding : findings) {
    out << '\n';
    write_finding(out, finding);
  }
  out << '\n'
      << (findings.empty() ? "All recorded collectives completed."
                           : verdict(findings.front()))
      << '\n';
  return out.str();
}

}  // namespace tessera

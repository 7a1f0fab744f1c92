#include "cli/launch/log_options.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

int bit_of(Stream stream) { return stream == Stream::output ? 1 : 2; }

int parse_number(const std::string& option, const std::string& text,
                 const std::string& word, int highest) {
  int number = -1;
  const char* end = word.data() + word.size();
  const auto [parsed, error] = std::from_chars(word.data(), end, number);
  require(
      error == std::errc() && parsed == end && number >= 0 && number <= highest,
      [&] {
        return str(option, " is '", text, "'; '", word,
                   "' is not a number from 0 to ", highest,
                   ", as in 3 or 0:3,1:2");
      });
  return number;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) {
    parts.push_back(part);
  }
  return parts;
}

constexpr int kBoth = 3;
constexpr int kMostRanks = 1 << 20;

}  // namespace

bool StreamChoice::has(int local_rank, Stream stream) const {
  const auto found = of_rank.find(local_rank);
  return ((found == of_rank.end() ? all : found->second) & bit_of(stream)) != 0;
}

bool StreamChoice::empty() const {
  return all == 0 && std::ranges::all_of(of_rank, [](const auto& entry) {
           return entry.second == 0;
         });
}

StreamChoice parse_stream_choice(const std::string& option,
                                 const std::string& text) {
  StreamChoice choice;
  if (text.find(':') == std::string::npos) {
    choice.all = parse_number(option, text, text, kBoth);
    return choice;
  }
  for (const std::string& entry : split(text, ',')) {
    const size_t colon = std::min(entry.find(':'), entry.size() - 1);
    const int rank =
        parse_number(option, text, entry.substr(0, colon), kMostRanks);
    choice.of_rank[rank] =
        parse_number(option, text, entry.substr(colon + 1), kBoth);
  }
  return choice;
}

std::set<int> parse_local_ranks(const std::string& option,
                                const std::string& text) {
  std::set<int> ranks;
  for (const std::string& word : split(text, ',')) {
    ranks.insert(parse_number(option, text, word, kMostRanks));
  }
  require(!ranks.empty(), [&] {
    return str(option, " names no rank; give local ranks, as in 0,2");
  });
  return ranks;
}

bool LogOptions::writes_files() const {
  return !redirects.empty() || !tee.empty();
}

Route route_of(const LogOptions& options, int local_rank, Stream stream) {
  using Console = Route::Console;
  Route route;
  const bool teed = options.tee.has(local_rank, stream);
  route.file = teed || options.redirects.has(local_rank, stream);
  if (teed || (!route.file && options.output == OutputMode::tagged)) {
    route.console = Console::tagged;
  } else {
    route.console = route.file ? Console::none : Console::as_is;
  }
  if (options.shown && !options.shown->contains(local_rank)) {
    route.console = Console::none;
  }
  return route;
}

}  // namespace tessera::launch

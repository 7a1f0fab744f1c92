#include "tessera/comm/flight_record.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>

#include "tessera/base/error.h"

namespace tessera {
namespace {

using json = nlohmann::ordered_json;
using std::filesystem::path;
using Steady = std::chrono::steady_clock;

constexpr int kFlightVersion = 2;
constexpr char kFilePrefix[] = "flight_rank_";

double unix_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

const char* state_name(const FlightCall& call) {
  if (call.entry.finished) return "completed";
  return call.entry.waited ? "waiting" : "issued";
}

json to_object(const FlightCall& call) {
  const CollectiveEntry& entry = call.entry;
  return {{"sequence", entry.sequence},   {"communicator", entry.communicator},
          {"index", entry.index},         {"kind", entry.kind},
          {"unit", entry.unit},           {"phase", entry.phase},
          {"operator", entry.op},         {"numel", entry.numel},
          {"dtype", entry.dtype},         {"bytes", entry.num_bytes},
          {"reduction", entry.reduction}, {"root", entry.root},
          {"state", state_name(call)},    {"called", call.called},
          {"waited", call.waited},        {"ended", call.ended}};
}

FlightCall to_call(const json& object) {
  FlightCall call;
  CollectiveEntry& entry = call.entry;
  entry.sequence = object.at("sequence").get<uint64_t>();
  entry.communicator = object.at("communicator").get<std::string>();
  entry.index = object.at("index").get<int64_t>();
  entry.kind = object.at("kind").get<std::string>();
  entry.unit = object.at("unit").get<std::string>();
  entry.phase = object.at("phase").get<std::string>();
  entry.op = object.at("operator").get<std::string>();
  entry.numel = object.at("numel").get<int64_t>();
  entry.dtype = object.at("dtype").get<std::string>();
  entry.num_bytes = object.at("bytes").get<int64_t>();
  entry.reduction = object.at("reduction").get<std::string>();
  entry.root = object.at("root").get<int>();
  call.called = object.at("called").get<double>();
  call.waited = object.at("waited").get<double>();
  call.ended = object.at("ended").get<double>();
  entry.waited = call.waited > 0;
  entry.finished = call.ended > 0;
  return call;
}

FlightRecord record_of(const json& object) {
  FlightRecord record;
  record.rank = object.at("rank").get<int>();
  record.world_size = object.at("world_size").get<int>();
  record.cause = object.at("cause").get<std::string>();
  record.written = object.at("written").get<double>();
  for (const json& group : object.at("groups")) {
    record.groups.push_back({group.at("name").get<std::string>(),
                             group.at("ranks").get<std::vector<int>>()});
  }
  for (const json& call : object.at("collectives")) {
    record.calls.push_back(to_call(call));
  }
  return record;
}

bool is_record(const path& file) {
  return file.filename().string().starts_with(kFilePrefix) &&
         file.extension() == ".json";
}

FlightRecord read_record(const path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  try {
    return flight_record_from_json(text.str());
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(str(file.string(), ": ", error.what()));
  }
}

}  // namespace

double FlightCall::since() const {
  if (ended > 0) return ended;
  return waited > 0 ? waited : called;
}

FlightRecord make_flight_record(std::span<const CollectiveEntry> entries) {
  FlightRecord record;
  record.written = unix_now();
  const auto now = Steady::now();
  const auto on_clock = [&](Steady::time_point point) {
    return record.written - std::chrono::duration<double>(now - point).count();
  };
  for (const CollectiveEntry& entry : entries) {
    record.calls.push_back(
        {.entry = entry,
         .called = on_clock(entry.called),
         .waited = entry.waited ? on_clock(entry.started) : 0,
         .ended = entry.finished ? on_clock(entry.ended) : 0});
  }
  return record;
}

std::string to_json(const FlightRecord& record) {
  json groups = json::array();
  for (const FlightGroup& group : record.groups) {
    groups.push_back({{"name", group.name}, {"ranks", group.ranks}});
  }
  json calls = json::array();
  for (const FlightCall& call : record.calls) calls.push_back(to_object(call));
  const json object = {{"version", kFlightVersion},
                       {"rank", record.rank},
                       {"world_size", record.world_size},
                       {"cause", record.cause},
                       {"written", record.written},
                       {"groups", groups},
                       {"collectives", calls}};
  // Names are the user's: what is no UTF-8 in them must not cost the record.
  return object.dump(1, ' ', false, json::error_handler_t::replace);
}

FlightRecord flight_record_from_json(const std::string& text) {
  try {
    const json object = json::parse(text);
    const int version = object.at("version").get<int>();
    require<InvalidArgument>(version == kFlightVersion, [&] {
      return str("flight record: version ", version, "; this program reads ",
                 kFlightVersion, ".");
    });
    return record_of(object);
  } catch (const json::exception& error) {
    throw InvalidArgument(str("flight record: ", error.what()));
  }
}

path write_flight_record(const path& folder, const FlightRecord& record) {
  std::filesystem::create_directories(folder);
  const path file = folder / str(kFilePrefix, record.rank, ".json");
  const path part = folder / str(".", kFilePrefix, record.rank, ".part");
  errno = 0;
  {
    std::ofstream out(part, std::ios::trunc);
    out << to_json(record) << '\n' << std::flush;
    if (!out) {
      throw std::system_error(errno, std::generic_category(), part.string());
    }
  }
  std::filesystem::rename(part, file);
  return file;
}

std::vector<FlightRecord> read_flight_records(const path& folder) {
  std::vector<FlightRecord> records;
  std::error_code error;
  for (const auto& item : std::filesystem::directory_iterator(folder, error)) {
    if (is_record(item.path())) records.push_back(read_record(item.path()));
  }
  require<InvalidArgument>(!records.empty(), [&] {
    return str("'", folder.string(), "' holds no file ", kFilePrefix, "R.json",
               error ? str(" (", error.message(), ")") : std::string(),
               "; give the folder that TESSERA_FLIGHT_FOLDER named.");
  });
  std::sort(records.begin(), records.end(),
            [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return records;
}

}  // namespace tessera

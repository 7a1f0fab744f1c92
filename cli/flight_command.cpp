// `tessera flight`: options and help; the work is in comm/flight_report.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "cli/command.h"
#include "tessera/comm/flight_report.h"

namespace tessera::cli {
namespace {

constexpr const char* kFooter = R"(
Ranks write their last collectives, flight_rank_R.json, when their job fails and
TESSERA_FLIGHT_FOLDER names a folder. This lines them up, and says which rank is
missing which collective:

  TESSERA_FLIGHT_FOLDER=flight tessera run -n 4 -- ./train
  tessera flight flight)";

}  // namespace

std::function<int()> add_flight_command(CLI::App& app,
                                        const WordsAfterDashes& words) {
  const auto folder = std::make_shared<std::string>();
  app.footer(kFooter);
  app.add_option("folder", *folder, "Folder of the records of one job")
      ->type_name("FOLDER")
      ->required();
  return [folder, words] {
    refuse_words_after_dashes("flight", words);
    std::cout << flight_report(read_flight_records(*folder));
    return 0;
  };
}

}  // namespace tessera::cli

// `tessera doctor`: options and help; the work is in cli/doctor.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/command.h"
#include "cli/doctor/job_checks.h"
#include "cli/doctor/machine_checks.h"
#include "cli/doctor/rank_checks.h"
#include "tessera/base/environment.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/comm/launch.h"
#include "tessera/comm/world.h"

namespace tessera::cli {
namespace {

using namespace doctor;

constexpr const char* kFooter = R"(
Alone it looks at this machine, and trains on two ranks inside this process. As a
job it looks at all ranks of it, over the network and devices that training uses:
  tessera run -n 2 -- tessera doctor
Under torchrun, srun or mpirun likewise. Its exit code is 0, or that of the first
check that failed; docs/doctor.md has the list. Put what it prints into a bug
report.)";

constexpr auto kTimeout = std::chrono::seconds(60);

struct DoctorOptions {
  bool json = false;
  std::string store;
};

void add_rank_checks(const World& world, Report& report) {
  report.checks.push_back(check_ranks(world));
  report.checks.push_back(check_bandwidth(world));
  report.checks.push_back(check_step(world));
  for (Check& check : check_rules(world)) {
    report.checks.push_back(std::move(check));
  }
}

// The checks of ranks, or the one that says why there are none.
void examine_ranks(const Job& job, Report& report) {
  try {
    if (job.world_size > 1) {
      add_rank_checks(init_distributed({.timeout = kTimeout}), report);
      return;
    }
    Report of_first;
    run_ranks(
        2,
        [&](const World& world) {
          Report own;
          add_rank_checks(world, own);
          if (world.rank() == 0) of_first = std::move(own);
        },
        kTimeout);
    for (Check& check : of_first.checks) {
      report.checks.push_back(std::move(check));
    }
  } catch (const std::exception& error) {
    report.checks.push_back(
        {.name = "ranks",
         .exit_code = kExitRanks,
         .status = Status::failed,
         .text = error.what(),
         .remedy = "All ranks must start, and reach each other."});
  }
}

Report examine(const DoctorOptions& options) {
  Report report;
  report.checks = {check_versions(), check_launcher(),
                   check_devices(),  check_machine(),
                   check_limits(),   check_shared_memory(),
                   check_clock(),    check_gloo(),
                   check_nccl(),     check_store(options.store)};
  const bool launched = report.checks[1].status == Status::ok;
  if (launched) examine_ranks(find_job(environment::launch()), report);
  return report;
}

bool speaks() {
  try {
    return find_job(environment::launch()).rank == 0;
  } catch (const InvalidArgument&) {
    return true;
  }
}

int run_doctor(const DoctorOptions& options) {
  const Report report = examine(options);
  if (!speaks()) return report.exit_code();
  if (options.json) {
    std::cout << to_json(report) << "\n";
    return report.exit_code();
  }
  std::cout << "--- tessera doctor: copy from here ---\n"
            << to_text(report) << "--- to here ---\n"
            << (report.exit_code() == 0 ? "Nothing stands in the way."
                                        : "See the lines marked FAILED.")
            << "\n";
  return report.exit_code();
}

}  // namespace

std::function<int()> add_doctor_command(CLI::App& app,
                                        const WordsAfterDashes& words) {
  auto options = std::make_shared<DoctorOptions>();
  app.add_flag("--json", options->json, "Print one JSON object instead");
  app.add_option("--store", options->store,
                 "Try to reach the store at this address (a job's MASTER_ADDR "
                 "and MASTER_PORT) instead of one of its own")
      ->type_name("HOST:PORT");
  app.footer(kFooter);
  return [options, words] {
    refuse_words_after_dashes("doctor", words);
    return run_doctor(*options);
  };
}

}  // namespace tessera::cli

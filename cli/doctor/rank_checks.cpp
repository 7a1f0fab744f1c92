#include "cli/doctor/rank_checks.h"

#include <torch/torch.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <iomanip>
#include <map>
#include <numeric>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"

namespace tessera::cli::doctor {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kBytes = 16 << 20;  // of the whole, on each rank
constexpr int kRounds = 3;
constexpr int64_t kWorstSkewMs = 2000;

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

int64_t wall_clock_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Ranks by what they say.
std::map<std::string, std::vector<int>> group(
    const std::vector<std::string>& texts) {
  std::map<std::string, std::vector<int>> ranks;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    ranks[texts[rank]].push_back(static_cast<int>(rank));
  }
  return ranks;
}

std::string join(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += str(text.empty() ? "" : ", ", rank);
  return text;
}

// The texts come over a store that answers in milliseconds, all after a
// barrier.
int64_t clock_skew_ms(const World& world) {
  world.barrier();
  const auto times =
      world.exchange("doctor/clock", std::to_string(wall_clock_ms()));
  int64_t low = INT64_MAX;
  int64_t high = 0;
  for (const std::string& time : times) {
    low = std::min<int64_t>(low, std::stoll(time));
    high = std::max<int64_t>(high, std::stoll(time));
  }
  return high - low;
}

void take_places(const World& world, Check& check) {
  const std::string host = host_name();
  const auto hosts = group(world.exchange("doctor/host", host));
  const auto places = group(
      world.exchange("doctor/place", tessera::str(host, " ", world.device())));
  for (const auto& [place, ranks] : places) {
    check.text +=
        str(check.text.empty() ? "" : "; ",
            ranks.size() == 1 ? "rank " : "ranks ", join(ranks), " on ", place);
    if (!world.device().is_cuda() || ranks.size() == 1) continue;
    check.status = Status::failed;
    check.remedy =
        "these ranks share one CUDA device: LOCAL_RANK must differ on each, "
        "or start fewer ranks.";
  }
  check.text =
      str(world.size(), " ranks on ", hosts.size(),
          hosts.size() == 1 ? " machine: " : " machines: ", check.text);
}

// What started this rank, without the variables, which differ by rank.
std::string launcher_name(const World& world) {
  return world.launcher().substr(0, world.launcher().find(" ("));
}

void compare_launchers(const World& world, Check& check) {
  const auto launchers =
      group(world.exchange("doctor/launcher", launcher_name(world)));
  check.text += str("; found by ", world.launcher());
  if (launchers.size() == 1) return;
  check.status = Status::warning;
  for (const auto& [name, ranks] : launchers) {
    check.remedy +=
        str(check.remedy.empty() ? "" : ", ",
            ranks.size() == 1 ? "rank " : "ranks ", join(ranks), " by ", name);
  }
  check.remedy += ": unset what is left over from another launcher.";
}

double gigabytes_a_second(const World& world, const at::Tensor& read_last,
                          const std::function<void()>& call) {
  call();  // the first opens connections
  static_cast<void>(read_last.view({-1})[0].item<float>());
  world.barrier();
  const auto begin = Clock::now();
  for (int round = 0; round < kRounds; ++round) call();
  static_cast<void>(read_last.view({-1})[0].item<float>());  // CUDA has ended
  const double seconds =
      std::chrono::duration<double>(Clock::now() - begin).count();
  return kRounds * static_cast<double>(kBytes) / seconds / 1e9;
}

}  // namespace

Check check_ranks(const World& world) {
  return run_check("ranks", kExitRanks, "", [&](Check& check) {
    take_places(world, check);
    compare_launchers(world, check);
    const int64_t skew = clock_skew_ms(world);
    check.text += str("; clocks within ", skew, " ms");
    if (skew > kWorstSkewMs && check.status == Status::ok) {
      check.status = Status::warning;
      check.remedy =
          "the clocks of the machines differ; logs and files will "
          "have times that mislead. Use NTP.";
    }
  });
}

Check check_bandwidth(const World& world) {
  return run_check(
      "bandwidth", kExitBandwidth, "See what the message says of the peers.",
      [&](Check& check) {
        std::vector<int> ranks(world.size());
        std::iota(ranks.begin(), ranks.end(), 0);
        const auto all =
            world.make_communicator(str("doctor/", world.next_id()), ranks);
        const int64_t part = kBytes / 4 / world.size();
        const auto whole = torch::zeros({part * world.size()}, world.device());
        const auto own = torch::ones({part}, world.device());
        const GatherCall gather{whole, own};
        const ReduceCall reduce{own, whole};
        const CallLabel label{.phase = "doctor"};
        std::ostringstream text;
        text << std::fixed << std::setprecision(2) << "all_gather "
             << gigabytes_a_second(
                    world, whole,
                    [&] {
                      all->all_gather({&gather, 1}, label).wait();
                    })
             << ", reduce_scatter "
             << gigabytes_a_second(
                    world, own,
                    [&] {
                      all->reduce_scatter({&reduce, 1}, label).wait();
                    })
             << ", all_reduce " << gigabytes_a_second(world, whole, [&] {
                  all->all_reduce(whole, ReduceOp::max, label).wait();
                });
        check.text =
            str(text.str(), " GB/s of whole tensors of ", kBytes >> 20, " MiB");
      });
}

}  // namespace tessera::cli::doctor

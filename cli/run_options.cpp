#include "cli/run_options.h"

#include <charconv>
#include <sstream>
#include <utility>

#include "cli/launch/local_address.h"
#include "cli/launch/processors.h"
#include "cli/launch/signal_queue.h"
#include "cli/rendezvous_settings.h"
#include "cli/tcp_node_store.h"
#include "tessera/base/error.h"

namespace tessera::cli {
namespace {

using launch::Endpoint;
using launch::JobOptions;
using std::chrono::milliseconds;

constexpr int kStaticPort = 29500;
constexpr int kC10dPort = 29400;

std::optional<int> whole_number(const std::string& text) {
  int number = 0;
  const char* end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || parsed != end) return std::nullopt;
  return number;
}

int ranks_per_node(const RunFlags& flags,
                   const launch::Environment& environment) {
  const std::string& text = flags.ranks_per_node;
  if (text.empty()) return 1;
  const int num_devices = launch::num_cuda_devices(
      launch::find_variable(environment, "CUDA_VISIBLE_DEVICES"));
  if (text == "cpu" || (text == "auto" && num_devices == 0)) {
    return launch::num_usable_processors();
  }
  if (text == "auto" || text == "gpu") {
    require(num_devices > 0, [] {
      return str(
          "--nproc-per-node is gpu, but this machine shows no CUDA device; "
          "give a number, or cpu");
    });
    return num_devices;
  }
  const std::optional<int> number = whole_number(text);
  require(number.has_value(), [&] {
    return str("--nproc-per-node (-n) is '", text,
               "'; give a number, or auto, cpu or gpu");
  });
  return *number;
}

struct NodeRange {
  int least = 1;
  int most = 1;
};

NodeRange num_nodes(const RunFlags& flags) {
  const std::string& text = flags.num_nodes;
  const size_t colon = text.find(':');
  const std::optional<int> least = whole_number(text.substr(0, colon));
  const std::optional<int> most =
      colon == std::string::npos ? least : whole_number(text.substr(colon + 1));
  require(least && most && *least >= 1 && *least <= *most, [&] {
    return str("--nnodes is '", text,
               "'; give the number of nodes, 1 or more, or MIN:MAX");
  });
  return {*least, *most};
}

milliseconds duration(const std::string& option, double seconds) {
  constexpr double kLongest_s = 1e9;
  require(seconds >= 0 && seconds <= kLongest_s, [&] {
    return str(option, " is ", seconds, "; give seconds, from 0 to ",
               kLongest_s);
  });
  return milliseconds(static_cast<long long>(seconds * 1000));
}

launch::LogOptions log_options(const RunFlags& flags) {
  launch::LogOptions logs;
  logs.folder = flags.log_folder;
  logs.redirects = launch::parse_stream_choice("--redirects", flags.redirects);
  logs.tee = launch::parse_stream_choice("--tee", flags.tee);
  if (flags.tag_output) logs.output = launch::OutputMode::tagged;
  if (!flags.shown_ranks.empty()) {
    logs.shown =
        launch::parse_local_ranks("--local-ranks-filter", flags.shown_ranks);
  }
  return logs;
}

bool is_c10d(const RunFlags& flags) {
  const std::string& backend = flags.rendezvous_backend;
  require(backend == "static" || backend == "c10d", [&] {
    return str("--rdzv-backend is '", backend, "'; give static or c10d");
  });
  return backend == "c10d";
}

// What the user has said of where to meet; the host may be empty.
Endpoint endpoint_of(const RunFlags& flags, bool c10d) {
  if (!flags.rendezvous_endpoint.empty()) {
    return launch::parse_endpoint("--rdzv-endpoint", flags.rendezvous_endpoint,
                                  c10d ? kC10dPort : kStaticPort);
  }
  constexpr int kMaxPort = 65535;
  const int port = flags.master_port.value_or(0);
  require(port >= 0 && port <= kMaxPort, [&] {
    return str("--master-port is ", port, "; give 1 to ", kMaxPort);
  });
  return {flags.master_address, port};
}

void place_on_one_node(const RunFlags& flags, JobOptions& job) {
  if (flags.standalone) return;
  const Endpoint endpoint = endpoint_of(flags, is_c10d(flags));
  if (endpoint.port != 0) job.master_port = endpoint.port;
  if (endpoint.host.empty()) return;
  require(launch::is_this_machine(endpoint.host), [&] {
    return str("'", endpoint.host,
               "' is not this machine, but the job has "
               "one node; give --nnodes, or leave the address out");
  });
  job.master_address = endpoint.host;
}

StoreRole c10d_role(const RunFlags& flags, const RendezvousSettings& settings,
                    const Endpoint& endpoint) {
  if (settings.is_host) {
    return *settings.is_host ? StoreRole::host : StoreRole::join;
  }
  const bool here = endpoint.host == flags.local_address ||
                    launch::is_this_machine(endpoint.host);
  return here ? StoreRole::either : StoreRole::join;
}

// Static: node 0 holds the store, and each node knows its rank.
StoreRole static_role(const RunFlags& flags, launch::NodeGroupOptions& group) {
  group.node_rank = flags.node_rank.value_or(0);
  return *group.node_rank == 0 ? StoreRole::host : StoreRole::join;
}

Endpoint endpoint_of_nodes(const RunFlags& flags, bool c10d) {
  Endpoint endpoint = endpoint_of(flags, c10d);
  require(!endpoint.host.empty(), [&] {
    return c10d ? str("--rdzv-endpoint is missing; give HOST:PORT of one of "
                      "the nodes, the same on all")
                : str("--master-addr is missing; give the address of node 0, "
                      "the same on all nodes");
  });
  const bool default_port =
      flags.rendezvous_endpoint.empty() && !flags.master_port;
  if (default_port) endpoint.port = c10d ? kC10dPort : kStaticPort;
  require(endpoint.port != 0, [&] {
    return str("the port of ", endpoint.host,
               " is 0; several nodes need one that all know");
  });
  return endpoint;
}

void place_on_nodes(const RunFlags& flags, NodeRange range, JobOptions& job) {
  require(!flags.standalone, [&] {
    return str("--standalone is for one node, but --nnodes is ",
               flags.num_nodes);
  });
  const bool c10d = is_c10d(flags);
  require(c10d || range.least == range.most, [&] {
    return str("--nnodes is ", flags.num_nodes,
               ", but with --rdzv-backend static the number of nodes is fixed; "
               "give one number, or --rdzv-backend c10d");
  });
  const auto settings = parse_rendezvous_settings(flags.rendezvous_settings);
  const Endpoint endpoint = endpoint_of_nodes(flags, c10d);
  launch::NodeLinkOptions nodes;
  nodes.address = endpoint.text();
  nodes.poll_interval =
      duration("--monitor-interval", flags.monitor_interval_s);
  launch::NodeGroupOptions& group = nodes.group;
  group.job = job.run_id.value_or("none");
  group.num_nodes = range.most;
  group.min_nodes = range.least;
  group.node_rank = flags.node_rank;
  group.ranks_per_node = job.num_ranks;
  group.max_restarts = job.max_restarts;
  group.host_name = launch::host_name();
  settings.apply_to(group);
  const StoreRole role =
      c10d ? c10d_role(flags, settings, endpoint) : static_role(flags, group);
  require(!group.node_rank ||
              (*group.node_rank >= 0 && *group.node_rank < range.most),
          [&] {
            return str("--node-rank is ", *group.node_rank, "; expected 0 to ",
                       range.most - 1, " as --nnodes is ", flags.num_nodes);
          });
  nodes.open = tcp_node_store(endpoint, role);
  job.run_id = group.job;
  job.master_address = endpoint.host;
  job.master_port = endpoint.port;
  job.nodes = std::move(nodes);
}

}  // namespace

JobOptions job_options(const RunFlags& flags, const WordsAfterDashes& command,
                       const launch::Environment& environment) {
  JobOptions job;
  job.num_ranks = ranks_per_node(flags, environment);
  job.command = command;
  job.environment = environment;
  job.logs = log_options(flags);
  job.kill_after = duration("--kill-after", flags.kill_after_s);
  require(flags.max_restarts >= 0, [&] {
    return str("--max-restarts is ", flags.max_restarts, "; give 0 or more");
  });
  job.max_restarts = flags.max_restarts;
  job.role = flags.role;
  if (!flags.rendezvous_id.empty()) job.run_id = flags.rendezvous_id;
  job.ending_signals =
      launch::parse_signals("--signals-to-handle", flags.signals);
  if (flags.own_device) job.devices = launch::DeviceView::own;
  const NodeRange nodes = num_nodes(flags);
  if (nodes.most == 1) {
    place_on_one_node(flags, job);
  } else {
    place_on_nodes(flags, nodes, job);
  }
  return job;
}

}  // namespace tessera::cli

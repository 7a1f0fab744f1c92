// A plan in words and in JSON.
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/train/plan.h"
#include "tessera/train/progress_line.h"

namespace tessera::train {
namespace {

struct MemoryRow {
  const char* key;
  const char* words;
  int64_t MemoryPlan::*bytes;
};

constexpr std::array kMemoryRows = {
    MemoryRow{"parameters", "parameters (shards, fp32)",
              &MemoryPlan::parameters},
    MemoryRow{"gradients", "gradients (of the shards, fp32)",
              &MemoryPlan::gradients},
    MemoryRow{"optimizer", "optimizer (AdamW, two moments)",
              &MemoryPlan::optimizer},
    MemoryRow{"copies", "copy of the shards for gathers", &MemoryPlan::copies},
    MemoryRow{"windows", "windows for copies between GPUs",
              &MemoryPlan::windows},
    MemoryRow{"tables", "tables of rotary positions", &MemoryPlan::tables},
    MemoryRow{"gathered", "gathered parameters, at once",
              &MemoryPlan::gathered},
    MemoryRow{"parts", "parts of them that are kept until backward",
              &MemoryPlan::parts},
    MemoryRow{"travelling", "what a gather in float8 takes beside them",
              &MemoryPlan::travelling},
    MemoryRow{"reducing", "what backward adds to all these, at most",
              &MemoryPlan::reducing},
    MemoryRow{"waiting", "gradients of earlier micro-batches",
              &MemoryPlan::waiting},
    MemoryRow{"activations", "activations", &MemoryPlan::activations},
    MemoryRow{"logits", "logits and their gradients", &MemoryPlan::logits},
    MemoryRow{"peak", "peak", &MemoryPlan::peak},
    MemoryRow{"host", "of these in host memory, not in the peak",
              &MemoryPlan::host},
    MemoryRow{"host_activations", "activations in host memory meanwhile",
              &MemoryPlan::host_activations},
};

std::string padded(const std::string& text, size_t width) {
  return text + std::string(width > text.size() ? width - text.size() : 0, ' ');
}

std::string right(const std::string& text, size_t width) {
  return std::string(width > text.size() ? width - text.size() : 0, ' ') + text;
}

std::string bytes_text(int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

std::string teraflops(double flops) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g", flops / 1e12);
  return text.data();
}

int64_t sequence_of(const PlanOptions& o) {
  return o.seq == 0 ? o.model.seq : o.seq;
}

std::string replicas_text(const PlanOptions& o) {
  const ShardShape shape = shard_shape(o.shard, o.ranks);
  return shape.replicas == 1 ? ""
                             : str(" (", shape.replicas, " replicas over ",
                                   shape.ranks, " each)");
}

/// Rows of what this layout does not have are left out.
bool is_there(const MemoryRow& row, const MemoryPlan& memory) {
  const bool only_of_some =
      row.bytes == &MemoryPlan::parts || row.bytes == &MemoryPlan::copies ||
      row.bytes == &MemoryPlan::travelling ||
      row.bytes == &MemoryPlan::windows || row.bytes == &MemoryPlan::host ||
      row.bytes == &MemoryPlan::host_activations;
  return !only_of_some || memory.*row.bytes > 0;
}

std::string heading(const PlanOptions& o, const Plan& plan) {
  return str(name_of(o.model.architecture), " of ",
             with_commas(plan.num_parameters), " parameters on ", o.ranks,
             o.ranks == 1 ? " rank" : " ranks", replicas_text(o),
             "; a step: ", o.batch, " x ", sequence_of(o), " tokens x ",
             o.micro_batches, " micro-batches a rank, ",
             with_commas(plan.tokens_per_step), " tokens, ",
             teraflops(plan.flops_per_step), " TFLOP a rank\n");
}

/// Of no memory on a CPU.
std::string outside_row(const Plan& plan) {
  if (plan.memory.outside == 0) return "";
  const CommunicatorPlan& of = plan.communicators;
  const int64_t all = of.of_tensors + of.of_numbers;
  const std::string words = str("not in it, about: CUDA and ", all,
                                all == 1 ? " communicator" : " communicators");
  return str("  ", padded(words, 42),
             right(bytes_text(plan.memory.outside), 10), "\n");
}

std::string unit_rows(const Plan& plan) {
  std::string text = "\nunit             count      parameters   of one rank\n";
  for (const UnitPlan& unit : plan.units) {
    text += str(padded(unit.name, 16), right(std::to_string(unit.count), 6),
                right(with_commas(unit.numel), 16),
                right(with_commas(unit.shard_numel), 14), "\n");
  }
  return text;
}

}  // namespace

std::string plan_text(const PlanOptions& options, const Plan& plan) {
  std::string text = heading(options, plan) + unit_rows(plan);
  text += "\nmemory of one rank\n";
  for (const MemoryRow& row : kMemoryRows) {
    if (!is_there(row, plan.memory)) continue;
    text += str("  ", padded(row.words, 42),
                right(bytes_text(plan.memory.*row.bytes), 10), "\n");
  }
  text += outside_row(plan);
  if (plan.collectives.empty()) return text + "\nno collectives: one rank\n";
  text += "\na step's collectives   ranks  calls   sent by one rank\n";
  for (const CollectivePlan& each : plan.collectives) {
    text +=
        str("  ", padded(each.name, 20), right(std::to_string(each.ranks), 6),
            right(std::to_string(each.calls), 7),
            right(bytes_text(each.bytes_sent), 19), "\n");
  }
  return text;
}

std::string plan_json(const PlanOptions& options, const Plan& plan) {
  using json = nlohmann::ordered_json;
  json out = {{"architecture", name_of(options.model.architecture)},
              {"num_parameters", plan.num_parameters},
              {"ranks", options.ranks},
              {"replicas", options.shard.replicas},
              {"batch", options.batch},
              {"seq", sequence_of(options)},
              {"micro_batches", options.micro_batches},
              {"tokens_per_step", plan.tokens_per_step},
              {"flops_per_step", plan.flops_per_step}};
  for (const UnitPlan& unit : plan.units) {
    out["units"].push_back({{"name", unit.name},
                            {"count", unit.count},
                            {"numel", unit.numel},
                            {"full_numel", unit.full_numel},
                            {"shard_numel", unit.shard_numel}});
  }
  for (const MemoryRow& row : kMemoryRows) {
    out["memory_bytes"][row.key] = plan.memory.*row.bytes;
  }
  out["memory_bytes"]["outside_allocator"] = plan.memory.outside;
  out["communicators"] = {{"of_tensors", plan.communicators.of_tensors},
                          {"of_numbers", plan.communicators.of_numbers}};
  out["collectives"] = json::array();
  for (const CollectivePlan& each : plan.collectives) {
    out["collectives"].push_back({{"name", each.name},
                                  {"ranks", each.ranks},
                                  {"calls", each.calls},
                                  {"bytes", each.bytes},
                                  {"bytes_sent", each.bytes_sent}});
  }
  return out.dump(2) + "\n";
}

}  // namespace tessera::train

#include "tessera/train/shard_config.h"

#include <string>

#include "tessera/base/error.h"
#include "tessera/train/config_file.h"

namespace tessera::train {
namespace {

std::string ranks_text(int64_t ranks) {
  return str(ranks, ranks == 1 ? " rank" : " ranks");
}

void read_dtypes(ConfigReader& reader, ShardConfig& shard) {
  reader.get(
      "shard.param_dtype", shard.param_dtype,
      {{"float32", Precision::float32}, {"bfloat16", Precision::bfloat16}});
  reader.get(
      "shard.reduce_dtype", shard.reduce_dtype,
      {{"float32", Precision::float32}, {"bfloat16", Precision::bfloat16}});
  reader.get("shard.gather_dtype", shard.gather_dtype,
             {{"param_dtype", GatherDtype::param_dtype},
              {"float8", GatherDtype::float8}});
  require<InvalidArgument>(
      shard.param_dtype == Precision::bfloat16 ||
          shard.reduce_dtype == Precision::float32,
      [&] {
        return str(reader.where("shard.reduce_dtype"),
                   ": shard.reduce_dtype is bfloat16 and shard.param_dtype is "
                   "float32; compute in bfloat16 too, or reduce in float32.");
      });
}

/// A replica on every rank gathers nothing.
void refuse_with_replicate(const ConfigReader& reader, const char* key,
                           bool is_set) {
  require<InvalidArgument>(!is_set, [&] {
    return str(reader.where(key), ": ", key,
               " is set, but shard.strategy is replicate, where every rank "
               "holds the whole model; use fully_shard, or leave it out.");
  });
}

void read_gather_copy(ConfigReader& reader, ShardConfig& shard) {
  reader.get("shard.gather_copy", shard.gather_copy,
             {{"none", CopyForGathers::none}, {"kept", CopyForGathers::kept}});
  const bool sent = shard.param_dtype != Precision::float32 &&
                    shard.gather_dtype == GatherDtype::param_dtype &&
                    shard.offload == Offload::none;
  require<InvalidArgument>(
      shard.gather_copy == CopyForGathers::none || sent, [&] {
        return str(reader.where("shard.gather_copy"),
                   ": shard.gather_copy is kept, but gathers would not send "
                   "the copy: that takes shard.param_dtype = \"bfloat16\", no "
                   "float8 and no offload.");
      });
}

}  // namespace

void read_shard(ConfigReader& reader, ShardConfig& shard) {
  reader.get("shard.strategy", shard.strategy,
             {{"fully_shard", Strategy::fully_shard},
              {"replicate", Strategy::replicate}});
  reader.get("shard.replicas", shard.replicas, {.min = 1});
  reader.get("shard.reshard", shard.reshard, shard.reshard_ranks,
             {{"auto", ReshardPolicy::automatic},
              {"always", ReshardPolicy::always},
              {"never", ReshardPolicy::never}},
             {.min = 1});
  reader.get("shard.prefetch", shard.prefetch, "auto", {.min = 0});
  reader.get(
      "shard.backward_overlap", shard.backward_overlap,
      {{"full", BackwardOverlap::full}, {"tight", BackwardOverlap::tight}});
  read_dtypes(reader, shard);
  reader.get("shard.offload", shard.offload,
             {{"off", Offload::none},
              {"pinned", Offload::pinned},
              {"pageable", Offload::pageable}});
  read_gather_copy(reader, shard);
  if (shard.strategy == Strategy::fully_shard) return;
  refuse_with_replicate(reader, "shard.replicas", shard.replicas > 1);
  refuse_with_replicate(reader, "shard.reshard", shard.reshard_ranks > 0);
  refuse_with_replicate(reader, "shard.prefetch", shard.prefetch.has_value());
  refuse_with_replicate(reader, "shard.backward_overlap",
                        shard.backward_overlap == BackwardOverlap::tight);
  refuse_with_replicate(reader, "shard.gather_copy",
                        shard.gather_copy == CopyForGathers::kept);
  refuse_with_replicate(reader, "shard.gather_dtype",
                        shard.gather_dtype == GatherDtype::float8);
}

ShardShape shard_shape(const ShardConfig& shard, int64_t world_size) {
  require<InvalidArgument>(world_size % shard.replicas == 0, [&] {
    return str("shard.replicas is ", shard.replicas, ", which does not divide ",
               ranks_text(world_size), "; give a number that does.");
  });
  const int64_t ranks = world_size / shard.replicas;
  require<InvalidArgument>(
      shard.reshard_ranks == 0 || ranks % shard.reshard_ranks == 0, [&] {
        return str("shard.reshard is ", shard.reshard_ranks,
                   ", which does not divide the ", ranks_text(ranks),
                   " that hold one copy of the model; give a number that does, "
                   "or \"auto\".");
      });
  return {.replicas = shard.replicas, .ranks = ranks};
}

}  // namespace tessera::train

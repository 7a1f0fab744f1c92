// Tessera: multi-GPU training in C++, on LibTorch. The table of contents.
#pragma once

#include "tessera/base/error.h"              // the five errors
#include "tessera/base/version.h"            // which Tessera, which LibTorch
#include "tessera/checkpoint/async_saver.h"  // AsyncSaver
#include "tessera/checkpoint/checkpoint.h"   // checkpoint::save, load, latest
#include "tessera/checkpoint/safetensors.h"  // safetensors::save, load
#include "tessera/comm/distributed.h"        // distributed::all_reduce, ...
#include "tessera/comm/join.h"               // join
#include "tessera/comm/stores.h"             // hash_store, tcp_store, ...
#include "tessera/comm/world.h"              // init_distributed, World
#include "tessera/graph/graphed_step.h"      // GraphedStep
#include "tessera/kernels/cross_entropy.h"   // linear_cross_entropy, ...
#include "tessera/kernels/linear_each.h"     // linear_each
#include "tessera/kernels/rms_norm.h"        // rms_norm, add_rms_norm
#include "tessera/kernels/rope.h"            // rope
#include "tessera/kernels/swiglu.h"          // swiglu
#include "tessera/mesh/device_mesh.h"        // init_device_mesh, DeviceMesh
#include "tessera/module/host_offload.h"     // HostOffload
#include "tessera/module/initializers.h"     // Initializable
#include "tessera/module/on_meta.h"          // on_meta
#include "tessera/module/recompute.h"        // recompute(region, ...)
#include "tessera/optim/adamw.h"             // AdamW, fused over flat ranges
#include "tessera/optim/clip_grad_norm.h"    // clip_grad_norm_
#include "tessera/optim/grad_scaler.h"       // GradScaler, for fp16
#include "tessera/optim/lr_schedule.h"       // learning-rate schedules
// ZeroRedundancyOptimizer
#include "tessera/optim/zero_redundancy_optimizer.h"
// DistributedDataParallel, NoSync, comm_hooks
#include "tessera/parallel/distributed_data_parallel.h"
#include "tessera/shard/call.h"              // call(module, inputs...)
#include "tessera/shard/float8_gather.h"     // float8_gather()
#include "tessera/shard/full_parameters.h"   // FullParameters
#include "tessera/shard/fully_shard.h"       // fully_shard and its methods
#include "tessera/shard/fully_shard_auto.h"  // fully_shard_auto, policies
#include "tessera/shard/materialize.h"       // materialize
#include "tessera/shard/options.h"           // FullyShardOptions
#include "tessera/state/get_state_dict.h"    // get_model_state_dict, ...
#include "tessera/state/scaler_state.h"      // scaler_state, for checkpoints
#include "tessera/state/set_state_dict.h"    // set_model_state_dict, ...
#include "tessera/state/state.h"             // state_of, State
#include "tessera/tensor/spread.h"           // local(shard)

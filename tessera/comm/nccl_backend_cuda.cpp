#include <ATen/Context.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/backend_factory.h"

namespace tessera {

bool nccl_is_available() { return c10::cuda::device_count() > 0; }

c10::Device choose_cuda_device(std::optional<int> local_rank, int world_size) {
  const int num_devices = c10::cuda::device_count();
  require<InvalidArgument>(
      local_rank || num_devices == 1 || world_size == 1, [&] {
        return tessera::str("init_distributed: LOCAL_RANK is unset and this ",
                            "machine has ", num_devices,
                            " CUDA devices; set it to the device of each rank, "
                            "or start the ranks by torchrun or tessera run.");
      });
  const int index = local_rank.value_or(0);
  require<InvalidArgument>(index < num_devices, [&] {
    return tessera::str("init_distributed: LOCAL_RANK is ", index,
                        ", but this process sees ", num_devices,
                        " CUDA devices; start as many ranks as devices, or "
                        "look at CUDA_VISIBLE_DEVICES.");
  });
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
  c10::cuda::set_device(device.index());
  // The allocator and NCCL's streams come before the first CUDA tensor here.
  at::globalContext().lazyInitDevice(c10::kCUDA);
  return device;
}

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendPlace& place,
                                                    c10::Device device) {
  auto options = c10d::ProcessGroupNCCL::Options::create(
      place.stream_priority == StreamPriority::high);
  options->timeout = place.timeout;
  // One channel does for these. NCCL keeps buffers of device memory for each.
  if (moves_numbers_only(place.name)) options->config.maxCTAs = 1;
  options->group_name = place.name;
  options->global_ranks_in_group.assign(place.world_ranks.begin(),
                                        place.world_ranks.end());
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      place.store, place.rank, place.size, std::move(options));
  backend->setBoundDeviceId(device);
  backend->eagerConnectSingleDevice(device);
  return backend;
}

}  // namespace tessera

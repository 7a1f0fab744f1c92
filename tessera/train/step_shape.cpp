#include "tessera/train/step_shape.h"

#include <algorithm>

#include "tessera/train/failure.h"

namespace tessera::train {

StepShape step_shape(const TrainConfig& config, int world_size) {
  StepShape shape{.batch = config.train.batch,
                  .seq = config.model.seq,
                  .world_size = world_size};
  const int64_t wanted = config.train.tokens_per_step;
  if (wanted == 0) return shape;
  const int64_t once = shape.tokens();
  require(wanted % once == 0, ExitCode::uneven_batch, [&] {
    const int64_t near = std::max<int64_t>(1, wanted / once) * once;
    return str("train.tokens_per_step is ", wanted, ", but train.batch ",
               shape.batch, " x model.seq ", shape.seq, " x ", world_size,
               world_size == 1 ? " rank" : " ranks", " is ", once,
               " tokens, which do not divide it; give ", near,
               ", or another train.batch.");
  });
  shape.micro_batches = wanted / once;
  return shape;
}

}  // namespace tessera::train

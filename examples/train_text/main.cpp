// Trains a Llama-type model on the bytes of a text, sharded over all ranks.
//
//   tools/fetch_corpus data/text
//   tessera run -n 2 -- train_text --data data/text
//
// model.h is the model, text.h and window_order.h are the data, train.cpp is
// the loop. What sharding adds to a plain LibTorch program stands in
// build_model.cpp and in `run` below.
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "examples/train_text/build_model.h"
#include "examples/train_text/evaluate.h"
#include "examples/train_text/options.h"
#include "examples/train_text/sample.h"
#include "examples/train_text/train.h"
#include "tessera/comm/error_file.h"
#include "tessera/comm/world.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/shard/full_parameters.h"

namespace {

using namespace train_text;

std::string sample_text(Llama& model, const Options& options) {
  // All bytes come from the same weights: gather them once, not once a byte.
  const tessera::FullParameters whole(*model, tessera::Write::discard);
  return sample(model, {.prompt = options.prompt,
                        .num_bytes = options.sample_bytes,
                        .window = options.model.seq,
                        .temperature = options.temperature,
                        .seed = options.seed});
}

void write_result(const Options& options, int world_size,
                  const TrainResult& trained, double held_out,
                  const std::string& text) {
  const nlohmann::json result = {
      {"world_size", world_size},
      {"steps", trained.steps},
      {"tokens", trained.steps * options.batch * options.model.seq},
      {"train_seconds", trained.seconds},
      {"losses", trained.losses},
      {"held_out_nats_per_byte", held_out},
      {"sample", text}};
  std::filesystem::create_directories(options.out);
  std::ofstream file(std::filesystem::path(options.out) / "result.json");
  // The sample may hold half a character: bytes are drawn one at a time.
  file << result.dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
       << "\n";
}

void run(const Options& options) {
  const auto world = tessera::init_distributed();
  validate(options, world.size());
  const auto mesh = tessera::init_device_mesh(
      world, {.shape = {world.size()}, .axes = {"dp_shard"}});
  const auto text = Text::from_file(options.data + "/train.txt");
  const auto held_out = Text::from_file(options.data + "/heldout.txt");

  Llama model = options.strategy == Strategy::plain
                    ? plain_model(options)
                    : sharded_model(options, mesh);
  const auto trained = train(model, text, held_out, mesh, options);
  const double loss =
      held_out_loss(model, held_out, mesh, {.seq = options.model.seq});
  const auto continuation = sample_text(model, options);

  if (world.rank() == 0) {
    std::printf(
        "trained %ld steps in %.1f s on %d ranks\n"
        "held-out loss %.4f nats a byte\nsample:\n%s%s\n",
        static_cast<long>(trained.steps), trained.seconds, world.size(), loss,
        options.prompt.c_str(), continuation.c_str());
    if (!options.out.empty()) {
      write_result(options, world.size(), trained, loss, continuation);
    }
  }
  world.finish();
}

}  // namespace

int main(int argc, char** argv) {
  const auto options = train_text::parse_options(argc, argv);
  if (!options) {
    return 2;
  }
  try {
    run(*options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_text: %s\n", error.what());
    tessera::write_error_file("train_text", error.what());
    return 1;
  }
  return 0;
}

// print_activations ARCHITECTURE VOCAB DIM LAYERS HEADS KV_HEADS FFN SEQ BATCH:
// the bytes that the plan says autograd keeps, with fp32 on a CPU.
#include <cstdlib>
#include <iostream>
#include <string>

#include "tessera/train/plan_model.h"

int main(int argc, char** argv) {
  using namespace tessera::train;
  if (argc != 10) return 2;
  const auto number = [&](int i) { return std::atoll(argv[i]); };
  const ModelConfig model{.architecture = argv[1] == std::string("gpt2")
                                              ? Architecture::gpt2
                                              : Architecture::llama,
                          .vocab = number(2),
                          .dim = number(3),
                          .layers = number(4),
                          .heads = number(5),
                          .kv_heads = number(6),
                          .ffn = number(7),
                          .seq = number(8)};
  std::cout << activation_bytes(model, {.batch = number(9),
                                        .seq = model.seq,
                                        .kernels = Kernels::cpu})
            << "\n";
}

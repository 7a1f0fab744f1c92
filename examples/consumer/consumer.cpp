// A layer, sharded and trained for one step, in a project of its own. Under
// `tessera run -n 2` it is spread over two processes.
#include <tessera/tessera.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  tessera::World world = tessera::init_distributed();
  tessera::DeviceMesh mesh = tessera::init_device_mesh(
      world, {.shape = {world.size()}, .axes = {"dp_shard"}});

  torch::manual_seed(0);
  torch::nn::Linear layer(3, 2);
  torch::Tensor input = torch::randn({4, 3});
  torch::Tensor expected = layer(input).detach();

  tessera::fully_shard(*layer, {.mesh = mesh});
  bool at_rest = layer->weight.data_ptr() == nullptr;  // nothing is gathered
  torch::Tensor output = layer(input);                 // gathers on use
  bool right = torch::equal(output.detach(), expected);

  torch::optim::AdamW optimizer(layer->parameters(), 1e-2);
  output.square().mean().backward();
  optimizer.step();
  bool learned = !torch::equal(layer(input).detach(), expected);

  std::cout << "consumer: Tessera " << tessera::version() << ", at rest "
            << at_rest << ", right " << right << ", learned " << learned
            << std::endl;
  world.finish();
  return at_rest && right && learned ? 0 : 1;
}

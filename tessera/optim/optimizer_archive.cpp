#include "tessera/optim/optimizer_archive.h"

#include <torch/serialize/archive.h>

#include <sstream>

namespace tessera {
namespace {

std::string bytes_of(torch::serialize::OutputArchive& archive) {
  std::ostringstream stream;
  archive.save_to(stream);
  return std::move(stream).str();
}

void read(torch::serialize::InputArchive& archive, const std::string& bytes,
          std::optional<c10::Device> device) {
  archive.load_from(bytes.data(), bytes.size(), device);
}

}  // namespace

std::string archive_of(const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  return bytes_of(archive);
}

void load_archive(torch::optim::Optimizer& optimizer, const std::string& bytes,
                  std::optional<c10::Device> device) {
  torch::serialize::InputArchive archive;
  read(archive, bytes, device);
  optimizer.load(archive);
}

std::unique_ptr<torch::optim::OptimizerParamState> copy_on(
    const torch::optim::OptimizerParamState& state, c10::Device device) {
  torch::serialize::OutputArchive written;
  state.serialize(written);
  torch::serialize::InputArchive archive;
  const std::string bytes = bytes_of(written);
  read(archive, bytes, device);
  auto copy = state.clone();
  copy->serialize(archive);
  return copy;
}

}  // namespace tessera

#include "tests/fsdp2_fixtures/fixture.h"

#include <cmath>
#include <fstream>
#include <stdexcept>

namespace fsdp2_fixtures {

namespace {

using Json = nlohmann::json;

Json read_json(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error("cannot open " + path);
  return Json::parse(in);
}

Tensor tensor_of(const Json& golden) {
  return torch::tensor(golden["data"].get<std::vector<double>>(),
                       torch::kDouble)
      .to(torch::kFloat)
      .view(golden["shape"].get<std::vector<int64_t>>());
}

// Rows of numbers, integers or not.
Tensor matrix_of(const Json& rows) {
  std::vector<double> values;
  for (const Json& row : rows) {
    for (const Json& value : row) values.push_back(value.get<double>());
  }
  const auto height = static_cast<int64_t>(rows.size());
  return torch::tensor(values, torch::kDouble).view({height, -1});
}

}  // namespace

Fixture::Fixture(std::string folder, const std::string& name)
    : folder_(std::move(folder)),
      json_(read_json(folder_ + "/" + name + ".json")) {}

Tensors Fixture::initial_weights() const {
  const Json& init = json_["init"];
  if (init.is_string())
    return read_safetensors(folder_ + "/" + init.get<std::string>());
  Tensors weights;
  for (const auto& [key, golden] : init.items()) {
    weights[key] = tensor_of(golden);
  }
  return weights;
}

Tensor Fixture::batch(int64_t step, const std::string& field, int64_t first,
                      int64_t count) const {
  const Json& golden = json_["batches"][step][field];
  const Tensor all = golden.is_object() ? tensor_of(golden).to(torch::kDouble)
                                        : matrix_of(golden);
  const Tensor rows = all.narrow(0, first, count);
  return rows.to(field == "tokens" ? torch::kLong : torch::kFloat);
}

Tolerance tolerance(const std::string& folder, const std::string& precision) {
  const Json row =
      read_json(folder + "/index.json")["suggested_tolerance"][precision];
  return {row["losses_rel"], row["grad_norms_rel"], row["final_abs"]};
}

double distance(const Tensor& tensor, const Json& golden) {
  if (tensor.sizes().vec() != golden["shape"].get<std::vector<int64_t>>()) {
    return INFINITY;
  }
  if (golden.contains("data")) {
    return (tensor - tensor_of(golden)).abs().max().item<double>();
  }
  const Tensor flat = tensor.flatten();
  double worst = 0;
  for (size_t i = 0; i < golden["at"].size(); ++i) {
    const double value = flat[golden["at"][i].get<int64_t>()].item<double>();
    worst =
        std::max(worst, std::abs(value - golden["values"][i].get<double>()));
  }
  return worst;
}

Tensors read_safetensors(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot open " + path);
  uint64_t header_bytes = 0;
  in.read(reinterpret_cast<char*>(&header_bytes), sizeof header_bytes);
  std::string header(header_bytes, '\0');
  in.read(header.data(), static_cast<std::streamsize>(header.size()));
  const Json entries = Json::parse(header);
  Tensors tensors;
  for (const auto& [name, entry] : entries.items()) {
    if (name == "__metadata__") continue;
    Tensor tensor = torch::empty(entry["shape"].get<std::vector<int64_t>>());
    const uint64_t begin = entry["data_offsets"][0];
    in.seekg(static_cast<std::streamoff>(8 + header_bytes + begin));
    in.read(static_cast<char*>(tensor.data_ptr()),
            static_cast<std::streamsize>(tensor.nbytes()));
    tensors[name] = tensor;
  }
  if (!in) throw std::runtime_error(path + " ends early");
  return tensors;
}

}  // namespace fsdp2_fixtures

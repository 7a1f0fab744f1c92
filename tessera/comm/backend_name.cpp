#include "tessera/comm/backend_name.h"

#include <algorithm>
#include <cctype>
#include <sstream>

#include "tessera/base/error.h"

namespace tessera {
namespace {

std::string in_lower_case(std::string text) {
  for (char& c : text) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

void check_available(const std::string& backend,
                     const std::vector<std::string>& available) {
  if (std::count(available.begin(), available.end(), backend) > 0) return;
  std::string names;
  for (const std::string& name : available) {
    names += str(names.empty() ? "" : ", ", name);
  }
  const bool known = backend == "mpi" || backend == "ucc" ||
                     backend == "xccl" || backend == "nccl";
  throw Unsupported(
      str("backend '", backend, "' ",
          known ? "is not in this build" : "is unknown", "; here are: ", names,
          ". One of your own is made known by register_backend."));
}

BackendChoice parse_pair(const std::string& text, const std::string& pair) {
  const size_t colon = pair.find(':');
  const BackendChoice choice = {
      pair.substr(0, colon),
      colon == std::string::npos ? "" : pair.substr(colon + 1)};
  require<InvalidArgument>(
      (choice.device == "cpu" || choice.device == "cuda") &&
          !choice.backend.empty(),
      [&] {
        return str("backend '", text, "': '", pair,
                   "' is not DEVICE:BACKEND with cpu or cuda; write for "
                   "example cpu:gloo,cuda:nccl.");
      });
  return choice;
}

}  // namespace

std::vector<BackendChoice> choose_backends(
    const std::string& text, const std::string& world_device,
    const std::vector<std::string>& available) {
  const std::string name = in_lower_case(text);
  std::vector<BackendChoice> choices;
  if (name.empty()) {
    choices = {{world_device, world_device == "cuda" ? "nccl" : "gloo"}};
  } else if (name == "nccl") {
    choices = {{"cuda", name}};
  } else if (name.find(':') == std::string::npos) {
    choices = {{"cpu", name}, {"cuda", name}};
  } else {
    std::istringstream pairs(name);
    for (std::string pair; std::getline(pairs, pair, ',');) {
      choices.push_back(parse_pair(text, pair));
    }
  }
  std::sort(choices.begin(), choices.end(),
            [](const auto& a, const auto& b) { return a.device < b.device; });
  for (size_t i = 0; i < choices.size(); ++i) {
    check_available(choices[i].backend, available);
    require<InvalidArgument>(
        i == 0 || choices[i].device != choices[i - 1].device, [&] {
          return str("backend '", text, "': ", choices[i].device,
                     " stands there twice.");
        });
  }
  return choices;
}

}  // namespace tessera

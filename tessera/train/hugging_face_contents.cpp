#include "tessera/train/hugging_face_contents.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/state/key_report.h"
#include "tessera/train/functions.h"
#include "tessera/train/hugging_face.h"

namespace tessera::train {
namespace {

using checkpoint::Contents;
using checkpoint::ContentTensor;
using Rename = std::optional<std::string> (*)(std::string_view);
using LeftOut = std::function<bool(const std::string&)>;

Contents renamed(Contents contents, Rename rename, const LeftOut& left_out) {
  std::vector<std::string> unknown;
  std::erase_if(contents.tensors, [&](ContentTensor& tensor) {
    const std::string name = key_of(tensor.path);
    if (left_out(name)) return true;
    const auto other = rename(name);
    if (!other) unknown.push_back(name);
    tensor.path = {other.value_or(name)};
    return false;
  });
  require<InvalidArgument>(unknown.empty(), [&] {
    return str("'", contents.where, "' has ", show_keys(unknown),
               ", which a Llama-type model has not.");
  });
  contents.values.clear();
  return contents;
}

ContentTensor table(const std::string& name, const at::Tensor& values) {
  std::vector<std::byte> bytes(values.nbytes());
  std::memcpy(bytes.data(), values.const_data_ptr(), bytes.size());
  return {
      {name}, Dtype::float32, values.sizes().vec(), [bytes] { return bytes; }};
}

}  // namespace

Contents to_hugging_face(Contents contents) {
  return renamed(
      std::move(contents),
      [](std::string_view name) { return to_hugging_face(name); },
      [](const std::string& name) { return name == "cos" || name == "sin"; });
}

Contents from_hugging_face(Contents contents, const ModelConfig& model) {
  Contents ours = renamed(
      std::move(contents),
      [](std::string_view name) { return from_hugging_face(name); },
      // Files of a tied head may hold it all the same.
      [&](const std::string& name) {
        return name.ends_with(".inv_freq") ||
               (model.tied && name == "lm_head.weight");
      });
  return with_tables(std::move(ours), model);
}

bool has_hugging_face_names(const Contents& contents) {
  return std::ranges::any_of(contents.tensors, [](const ContentTensor& tensor) {
    return key_of(tensor.path).find(".self_attn.q_proj.") != std::string::npos;
  });
}

Contents with_tables(Contents contents, const ModelConfig& model) {
  if (model.architecture != Architecture::llama) return contents;
  const Rotary rotary =
      make_rotary(model.seq, model.dim / model.heads, model.rope_base);
  contents.tensors.push_back(table("cos", rotary.cos));
  contents.tensors.push_back(table("sin", rotary.sin));
  return contents;
}

}  // namespace tessera::train

#include "tessera/checkpoint/convert.h"

#include <algorithm>
#include <array>

#include "tessera/checkpoint/safetensors_contents.h"
#include "tessera/checkpoint/torch_file.h"

namespace tessera::checkpoint {
namespace {

constexpr std::string_view kSafetensors = ".safetensors";

void write(const Contents& contents, const std::string& to, Form form,
           const ConvertOptions& options) {
  switch (form) {
    case Form::checkpoint:
      write_checkpoint(contents, to, options.progress);
      return;
    case Form::torch_file:
      write_torch_file(contents, to, options.progress);
      return;
    case Form::safetensors:
      if (to.ends_with(kSafetensors)) {
        write_safetensors_file(contents, to, options.progress);
      } else {
        write_safetensors_folder(contents, to, options.most_file_bytes,
                                 options.progress);
      }
  }
}

}  // namespace

Form form_for(const std::string& path) {
  if (path.ends_with(kSafetensors)) return Form::safetensors;
  constexpr std::array<std::string_view, 4> kTorch = {".pt", ".pth", ".bin",
                                                      ".ckpt"};
  const bool torch = std::ranges::any_of(
      kTorch, [&](std::string_view end) { return path.ends_with(end); });
  return torch ? Form::torch_file : Form::checkpoint;
}

Converted convert(const std::string& from, const std::string& to, Form form,
                  const ConvertOptions& options) {
  const Contents contents =
      under(below(open_contents(from), options.from_prefix), options.to_prefix);
  write(contents, to, form, options);
  Converted result{.num_tensors = contents.tensors.size(),
                   .num_values = contents.values.size()};
  if (form == Form::safetensors)
    std::swap(result.num_values, result.num_left_out);
  return result;
}

}  // namespace tessera::checkpoint

// The norm over all gradients of a model, and clipping by it.
//
//   loss.backward();
//   at::Tensor norm = clip_grad_norm_(model->parameters(), 1.0);
//   optimizer.step();
//
// `torch::nn::utils::clip_grad_norm_` sees this rank's part of a sharded
// gradient only: every rank would scale by another factor. These functions sum
// each parameter's part once over the ranks among which it is cut; a parameter
// that every rank holds whole counts once. Plain parameters, shards, and shards
// over different sets of ranks may stand in one list.
//
// Norms are taken in fp32 for fp32, bf16 and fp16 gradients, in fp64 for fp64;
// they are combined in fp64, so the order and number of ranks hardly matters.
// The result is fp64 when a parameter is fp64, else fp32.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera {

/// What to do when the norm is NaN or infinite.
enum class NonFinite {
  scale,  // scale by the NaN or 0 that follows; nothing waits
  raise   // wait for the device, and raise on every rank, gradients untouched
};

struct ClipOptions {
  double norm_type = 2.0;  // above 0; infinity for the largest magnitude
  NonFinite on_nonfinite = NonFinite::scale;
};

/// The p-norm over the gradients of `parameters`, which stand in the same order
/// on every rank; parameters without gradient count as zero.
///
/// Returns: a 0-dim tensor on the device of the first parameter, equal on all
///          ranks. 0 when there is no gradient.
/// Cost:    one all-reduce of one number for each communicator among the
///          parameters, whether or not this rank holds a gradient. The host
///          does not wait on CUDA.
/// Errors:  InvalidArgument for norm_type <= 0, Unsupported for sparse
///          gradients, InvalidState by `NonFinite::raise`.
[[nodiscard]] at::Tensor get_total_norm(
    const std::vector<at::Tensor>& parameters, const ClipOptions& options = {});

/// Multiplies the gradients of `parameters` in place by
/// min(1, max_norm / (norm + 1e-6)), and returns the norm before that, as
/// `get_total_norm` does.
///
/// Errors:  those of `get_total_norm`; InvalidArgument for max_norm < 0.
at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters,
                           double max_norm, const ClipOptions& options = {});

/// What clipping multiplies gradients by: min(1, max_norm / (total_norm +
/// 1e-6)), a 0-dim tensor. `who` stands in errors, which are those of
/// clip_grads_with_norm_.
[[nodiscard]] at::Tensor clip_factor(const at::Tensor& total_norm,
                                     double max_norm, const char* who);

/// The second half of `clip_grad_norm_`: multiplies the gradients in place by
/// min(1, max_norm / (total_norm + 1e-6)). For a norm over more than these
/// parameters, such as those of several pipeline stages or several models:
///
///   at::Tensor norm = get_total_norm(all_parameters);
///   clip_grads_with_norm_(encoder->parameters(), 1.0, norm);
///   clip_grads_with_norm_(decoder->parameters(), 1.0, norm);
///
/// total_norm: one number, on any device, equal on all ranks. Nothing is
///             communicated, and the host does not wait.
/// Errors:     InvalidArgument for max_norm < 0 or another total_norm,
///             Unsupported for sparse gradients.
void clip_grads_with_norm_(const std::vector<at::Tensor>& parameters,
                           double max_norm, const at::Tensor& total_norm);

}  // namespace tessera

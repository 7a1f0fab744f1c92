#include "tessera/kernels/cross_entropy.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "tessera/kernels/function_scope.h"
#include "tessera/kernels/operators.h"

namespace tessera {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static Tensor forward(AutogradContext* context, const Tensor& logits,
                        const Tensor& targets, int64_t ignore_index,
                        bool records_graph) {
    const internal::ForwardScope scope(records_graph);
    const Tensor rows = logits.reshape({-1, logits.size(-1)});
    const Tensor flat = targets.reshape({-1});
    if (!records_graph) {
      return operators::cross_entropy(rows, flat, ignore_index).sum();
    }
    const Tensor gradient = at::empty_like(rows);
    const Tensor losses =
        operators::cross_entropy_gradient(rows, flat, ignore_index, gradient);
    context->save_for_backward({gradient.view(logits.sizes())});
    return losses.sum();
  }

  static variable_list backward(AutogradContext* context,
                                const variable_list& gradients) {
    const internal::BackwardScope scope("cross_entropy");
    return {context->get_saved_variables()[0] * gradients[0], {}, {}, {}};
  }
};

/// Which gradients are wanted.
struct Wanted {
  bool hidden, weight;
};

/// hidden [T, D] times weight [V, D], loss and gradients, part by part.
class LinearLoss {
 public:
  LinearLoss(const Tensor& hidden, const Tensor& weight, Wanted wanted,
             int64_t parts)
      : hidden_(hidden), weight_(weight), wanted_(wanted), parts_(parts) {
    if (wanted.hidden) dhidden_ = at::empty_like(hidden);
  }

  void add(int64_t start, int64_t count, const Tensor& targets,
           int64_t ignore_index) {
    const Tensor rows = hidden_.narrow(0, start, count);
    const Tensor logits = operators::product(rows, weight_.t());
    const Tensor part = targets.narrow(0, start, count);
    if (!wanted_.hidden && !wanted_.weight) {
      add_loss(operators::cross_entropy(logits, part, ignore_index).sum());
      return;
    }
    add_loss(
        operators::cross_entropy_gradient(logits, part, ignore_index, logits)
            .sum());
    if (wanted_.hidden) {
      operators::product_out(dhidden_.narrow(0, start, count), logits, weight_,
                             /*beta=*/0);
    }
    if (wanted_.weight) add_weight(logits, rows);
  }

  [[nodiscard]] const Tensor& loss() const { return loss_; }
  [[nodiscard]] const Tensor& dhidden() const { return dhidden_; }
  [[nodiscard]] const Tensor& dweight() const { return dweight_; }

 private:
  void add_loss(const Tensor& loss) {
    loss_ = loss_.defined() ? loss_ + loss : loss;
  }

  // Parts are added in float: rounding each sum to bfloat16 would lose the
  // smaller parts.
  void add_weight(const Tensor& gradient, const Tensor& rows) {
    const Tensor columns = gradient.t();
    const bool narrow = rows.element_size() < 4;
    if (parts_ == 1) {
      dweight_ = at::mm(columns, rows);
    } else if (narrow && rows.is_cuda()) {
      if (dweight_.defined()) {
        at::addmm_out(dweight_, dweight_, columns, rows, at::kFloat);
      } else {
        dweight_ = at::mm(columns, rows, at::kFloat);
      }
    } else if (narrow) {
      const Tensor product = at::mm(columns, rows).to(at::kFloat);
      dweight_ = dweight_.defined() ? dweight_.add_(product) : product;
    } else if (dweight_.defined()) {
      dweight_.addmm_(columns, rows);
    } else {
      dweight_ = at::mm(columns, rows);
    }
  }

  const Tensor hidden_;
  const Tensor weight_;
  const Wanted wanted_;
  const int64_t parts_;
  Tensor loss_, dhidden_, dweight_;
};

int64_t num_parts(int64_t tokens, int64_t dim, int64_t tokens_at_once) {
  constexpr int64_t kFewest = 1024;  // enough for matrix products to be fast
  const int64_t most =
      tokens_at_once > 0 ? tokens_at_once : std::max(kFewest, 2 * dim);
  return std::max<int64_t>(1, (tokens + most - 1) / most);
}

/// `gradient` times `scale` in `dtype`, in one pass.
Tensor scaled(const Tensor& gradient, const Tensor& scale,
              c10::ScalarType dtype) {
  if (!gradient.defined()) return {};
  Tensor result = at::empty_like(gradient, gradient.options().dtype(dtype));
  return at::mul_out(result, gradient, scale);
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static Tensor forward(AutogradContext* context, const Tensor& input,
                        const Tensor& weight, const Tensor& targets,
                        const LinearCrossEntropyOptions& options, Wanted wanted,
                        bool records_graph) {
    const internal::ForwardScope scope(records_graph);
    const int64_t dim = weight.size(1);
    const Tensor hidden =
        input.reshape({-1, dim}).to(weight.scalar_type()).contiguous();
    const Tensor flat = targets.reshape({-1});
    const int64_t tokens = hidden.size(0);
    const int64_t parts = num_parts(tokens, dim, options.tokens_at_once);
    const int64_t count = (tokens + parts - 1) / parts;
    LinearLoss loss(hidden, weight, wanted, parts);
    for (int64_t start = 0; start == 0 || start < tokens; start += count) {
      loss.add(start, std::min(count, tokens - start), flat,
               options.ignore_index);
      if (count == 0) break;
    }
    context->save_for_backward({loss.dhidden(), loss.dweight()});
    context->saved_data["sizes"] = input.sizes().vec();
    context->saved_data["hidden_dtype"] = input.scalar_type();
    context->saved_data["weight_dtype"] = weight.scalar_type();
    return loss.loss();
  }

  static variable_list backward(AutogradContext* context,
                                const variable_list& gradients) {
    const internal::BackwardScope scope("linear_cross_entropy");
    const auto saved = context->get_saved_variables();
    const auto dtype = [&](const char* name) {
      return context->saved_data[name].toScalarType();
    };
    Tensor dhidden = scaled(saved[0], gradients[0], dtype("hidden_dtype"));
    if (dhidden.defined()) {
      dhidden = dhidden.view(context->saved_data["sizes"].toIntVector());
    }
    return {dhidden, scaled(saved[1], gradients[0], dtype("weight_dtype")),
            {},      {},
            {},      {}};
  }
};

void check_targets(const char* function, at::IntArrayRef expected,
                   const Tensor& targets) {
  require<InvalidArgument>(
      targets.sizes() == expected && targets.scalar_type() == at::kLong, [&] {
        return str(function, ": got targets of ", targets.sizes(), " (",
                   c10::toString(targets.scalar_type()), "); expected ",
                   expected, " (Long), one for each row.");
      });
}

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options) {
  require<InvalidArgument>(
      logits.is_floating_point() && logits.dim() >= 1 && logits.size(-1) > 0,
      [&] {
        return str("cross_entropy: got logits of ", logits.sizes(),
                   "; expected floating ones of [..., V].");
      });
  check_targets("cross_entropy", logits.sizes().slice(0, logits.dim() - 1),
                targets);
  return CrossEntropy::apply(logits, targets, options.ignore_index,
                             internal::records_graph());
}

Tensor linear_cross_entropy(const Tensor& hidden, const Tensor& weight,
                            const Tensor& targets,
                            const LinearCrossEntropyOptions& options) {
  require<InvalidArgument>(
      hidden.is_floating_point() && hidden.dim() >= 1 && weight.dim() == 2 &&
          hidden.size(-1) == weight.size(1) && weight.numel() > 0,
      [&] {
        return str("linear_cross_entropy: got hidden of ", hidden.sizes(),
                   " and a weight of ", weight.sizes(),
                   "; expected floating [..., D] and [V, D].");
      });
  check_targets("linear_cross_entropy",
                hidden.sizes().slice(0, hidden.dim() - 1), targets);
  const bool records = internal::records_graph();
  const Wanted wanted{.hidden = records && hidden.requires_grad(),
                      .weight = records && weight.requires_grad()};
  return LinearCrossEntropy::apply(hidden, weight, targets, options, wanted,
                                   records);
}

}  // namespace tessera

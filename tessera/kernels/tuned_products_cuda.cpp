#include "tessera/kernels/tuned_products.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <compare>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace tessera {

namespace {

using at::Tensor;

/// Below this the choice is not worth the timing.
constexpr int64_t kFewestProducts = int64_t{1} << 28;
/// A model has some twenty kinds. Batches of ever new sizes would be timed for
/// ever.
constexpr size_t kMostKinds = 128;
constexpr int kMostAlgorithms = 16;
constexpr int kRounds = 5;
/// Of one timing: enough for the clock, and for several short products.
constexpr float kShortestTiming = 0.4F;  // ms
constexpr int kMostRepeats = 20;
/// cuBLAS's own choice stays unless another takes at most this part of its
/// time. A timing is too short for the GPU's power limit, a training step is
/// not: on an H200 algorithms that were 2 to 5 % faster in a timing were up to
/// 3 % slower for half a second, and those that were 8 % faster stayed ahead.
constexpr float kClearlyFaster = 0.93F;

/// How a matrix lies in memory, for cuBLAS, whose matrices are column by
/// column: rows one after the other are its columns.
struct Operand {
  int64_t leading;
  bool by_rows;
  int alignment;  // bytes, at most 256

  auto operator<=>(const Operand&) const = default;
};

std::optional<Operand> operand_of(const Tensor& matrix) {
  const auto address = reinterpret_cast<uintptr_t>(matrix.const_data_ptr());
  const auto alignment =
      static_cast<int>(std::min<uintptr_t>(address & -address, 256));
  if (matrix.stride(1) == 1 && matrix.stride(0) >= matrix.size(1)) {
    return Operand{matrix.stride(0), true, alignment};
  }
  if (matrix.stride(0) == 1 && matrix.stride(1) >= matrix.size(0)) {
    return Operand{matrix.stride(1), false, alignment};
  }
  return std::nullopt;
}

/// What an algorithm is chosen for.
struct Kind {
  c10::DeviceIndex device;
  c10::ScalarType dtype;
  int64_t m, n, k;
  double beta;
  Operand a, b, out;

  auto operator<=>(const Kind&) const = default;
};

std::optional<Kind> kind_of(const Tensor& out, const Tensor& a, const Tensor& b,
                            double beta) {
  const auto dtype = out.scalar_type();
  const bool narrow = dtype == at::kBFloat16 || dtype == at::kHalf;
  const bool fit = a.size(1) == b.size(0) && out.size(0) == a.size(0) &&
                   out.size(1) == b.size(1);  // else at::mm says what is wrong
  if (!narrow || !fit || a.scalar_type() != dtype || b.scalar_type() != dtype ||
      a.size(0) * a.size(1) * b.size(1) < kFewestProducts) {
    return std::nullopt;
  }
  const auto of_a = operand_of(a);
  const auto of_b = operand_of(b);
  const auto of_out = operand_of(out);
  if (!of_a || !of_b || !of_out || !of_out->by_rows) return std::nullopt;
  return Kind{out.get_device(), dtype, a.size(0), b.size(1),
              a.size(1),        beta,  *of_a,     *of_b,
              *of_out};
}

template <class T, cublasStatus_t (*kDestroy)(T)>
struct Destroy {
  void operator()(T handle) const { (void)kDestroy(handle); }
};
template <class T, cublasStatus_t (*kDestroy)(T)>
using Handle = std::unique_ptr<std::remove_pointer_t<T>, Destroy<T, kDestroy>>;
using Description = Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference =
    Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

Layout layout_of(const Kind& kind, int64_t rows, int64_t columns,
                 const Operand& operand) {
  cublasLtMatrixLayout_t layout{};
  const auto type = kind.dtype == at::kHalf ? CUDA_R_16F : CUDA_R_16BF;
  if (operand.by_rows) std::swap(rows, columns);
  TORCH_CUDABLAS_CHECK(cublasLtMatrixLayoutCreate(
      &layout, type, static_cast<uint64_t>(rows),
      static_cast<uint64_t>(columns), operand.leading));
  return Layout(layout);
}

/// out^T = b^T * a^T, which is what rows are to cuBLAS.
class Product {
 public:
  explicit Product(const Kind& kind)
      : beta_(static_cast<float>(kind.beta)),
        first_(layout_of(kind, kind.k, kind.n, kind.b)),
        second_(layout_of(kind, kind.m, kind.k, kind.a)),
        out_(layout_of(kind, kind.m, kind.n, kind.out)) {
    cublasLtMatmulDesc_t description{};
    TORCH_CUDABLAS_CHECK(
        cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    description_.reset(description);
    turn(CUBLASLT_MATMUL_DESC_TRANSA, kind.b);
    turn(CUBLASLT_MATMUL_DESC_TRANSB, kind.a);
  }

  /// The algorithms that cuBLASLt proposes, best guess first.
  [[nodiscard]] std::vector<cublasLtMatmulAlgo_t> propose(
      const Kind& kind) const {
    cublasLtMatmulPreference_t made{};
    TORCH_CUDABLAS_CHECK(cublasLtMatmulPreferenceCreate(&made));
    const Preference preference(made);
    const auto prefer = [&](auto what, auto value) {
      TORCH_CUDABLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(
          preference.get(), what, &value, sizeof value));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
           at::cuda::getCUDABlasLtWorkspaceSize());
    // Parts of a split sum are added in float, not in 16 bits.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
           static_cast<uint32_t>(kind.b.alignment));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
           static_cast<uint32_t>(kind.a.alignment));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
           static_cast<uint32_t>(kind.out.alignment));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
           static_cast<uint32_t>(kind.out.alignment));
    std::array<cublasLtMatmulHeuristicResult_t, kMostAlgorithms> results{};
    int count = 0;
    const auto status = cublasLtMatmulAlgoGetHeuristic(
        at::cuda::getCurrentCUDABlasLtHandle(), description_.get(),
        first_.get(), second_.get(), out_.get(), out_.get(), preference.get(),
        kMostAlgorithms, results.data(), &count);
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    if (status != CUBLAS_STATUS_SUCCESS) return algorithms;
    for (int i = 0; i < count; ++i) {
      if (results.at(i).state == CUBLAS_STATUS_SUCCESS) {
        algorithms.push_back(results.at(i).algo);
      }
    }
    return algorithms;
  }

  [[nodiscard]] cublasStatus_t run(const cublasLtMatmulAlgo_t& algorithm,
                                   const Tensor& out, const Tensor& a,
                                   const Tensor& b) const {
    const float alpha = 1;
    return cublasLtMatmul(
        at::cuda::getCurrentCUDABlasLtHandle(), description_.get(), &alpha,
        b.const_data_ptr(), first_.get(), a.const_data_ptr(), second_.get(),
        &beta_, out.mutable_data_ptr(), out_.get(), out.mutable_data_ptr(),
        out_.get(), &algorithm, at::cuda::getCUDABlasLtWorkspace(),
        at::cuda::getCUDABlasLtWorkspaceSize(),
        at::cuda::getCurrentCUDAStream(out.get_device()));
  }

 private:
  void turn(cublasLtMatmulDescAttributes_t which, const Operand& operand) {
    const auto how = operand.by_rows ? CUBLAS_OP_N : CUBLAS_OP_T;
    TORCH_CUDABLAS_CHECK(cublasLtMatmulDescSetAttribute(
        description_.get(), which, &how, sizeof how));
  }

  float beta_;
  Description description_;
  Layout first_, second_, out_;
};

/// What products of a kind take.
struct Choice {
  Product product;
  std::optional<cublasLtMatmulAlgo_t> algorithm;  // nullopt: cuBLAS's own
};

void plain_product(Tensor out, const Tensor& a, const Tensor& b, double beta) {
  if (beta == 0) {
    at::mm_out(out, a, b);
  } else {
    at::addmm_out(out, out, a, b, beta);
  }
}

float milliseconds_of(const std::function<void()>& call, int repeats) {
  at::cuda::CUDAEvent begin(cudaEventDefault);
  at::cuda::CUDAEvent end(cudaEventDefault);
  begin.record();
  for (int i = 0; i < repeats; ++i) call();
  end.record();
  end.synchronize();
  return begin.elapsed_time(end) / static_cast<float>(repeats);
}

/// The position of the fastest, each timed in turn and several times: clocks
/// change with the load.
size_t fastest_of(const std::vector<std::function<void()>>& calls) {
  std::vector<float> best(calls.size(), std::numeric_limits<float>::max());
  (void)milliseconds_of(calls[0], 1);
  const float one = milliseconds_of(calls[0], 1);
  const int repeats =
      std::clamp(static_cast<int>(kShortestTiming / std::max(one, 1e-3F)), 1,
                 kMostRepeats);
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < calls.size(); ++i) {
      best[i] = std::min(best[i], milliseconds_of(calls[i], repeats));
    }
  }
  const auto least = std::min_element(best.begin(), best.end());
  return *least < kClearlyFaster * best[0]
             ? static_cast<size_t>(least - best.begin())
             : 0;
}

std::optional<cublasLtMatmulAlgo_t> choose(const Product& product,
                                           const Kind& kind, const Tensor& out,
                                           const Tensor& a, const Tensor& b) {
  std::vector<cublasLtMatmulAlgo_t> algorithms = product.propose(kind);
  std::erase_if(algorithms, [&](const cublasLtMatmulAlgo_t& each) {
    return product.run(each, out, a, b) != CUBLAS_STATUS_SUCCESS;
  });
  std::vector<std::function<void()>> calls = {
      [&] { plain_product(out, a, b, kind.beta); }};
  for (const auto& each : algorithms) {
    calls.emplace_back([&] { (void)product.run(each, out, a, b); });
  }
  const size_t fastest = fastest_of(calls);
  return fastest == 0 ? std::nullopt
                      : std::optional(algorithms.at(fastest - 1));
}

/// With the same room between its rows.
Tensor copy_of(const Tensor& out) {
  return at::empty_strided(out.sizes(), out.strides(), out.options())
      .copy_(out);
}

/// The choices of this process.
class Choices {
 public:
  /// Whether another kind may be timed.
  [[nodiscard]] bool has_room() {
    const std::scoped_lock lock(mutex_);
    return choices_.size() < kMostKinds;
  }

  /// Null until `kind` has been decided.
  [[nodiscard]] std::shared_ptr<const Choice> find(const Kind& kind) {
    const std::scoped_lock lock(mutex_);
    const auto found = choices_.find(kind);
    return found == choices_.end() ? nullptr : found->second;
  }

  /// Not locked while it waits for the device: that may be waiting for another
  /// thread's collective. The first thread's choice stays.
  std::shared_ptr<const Choice> decide(const Kind& kind, const Tensor& out,
                                       const Tensor& a, const Tensor& b) {
    auto choice = std::make_shared<Choice>(Choice{Product(kind), std::nullopt});
    try {
      // A product that adds is tried out on other memory.
      const Tensor place = kind.beta == 0 ? out : copy_of(out);
      choice->algorithm = choose(choice->product, kind, place, a, b);
    } catch (const c10::OutOfMemoryError&) {
      // No place to try: as without a choice.
    }
    const std::scoped_lock lock(mutex_);
    return choices_.emplace(kind, std::move(choice)).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<Kind, std::shared_ptr<const Choice>> choices_;
};

bool capturing() {
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() !=
         c10::cuda::CaptureStatus::None;
}

// As long as the process: cuBLAS may be gone before a static.
Choices& choices() {
  static auto* const made = new Choices;
  return *made;
}

}  // namespace

void tuned_product(const Tensor& out, const Tensor& a, const Tensor& b,
                   double beta) {
  const c10::DeviceGuard guard(out.device());
  const auto kind = at::globalContext().deterministicAlgorithms()
                        ? std::nullopt
                        : kind_of(out, a, b, beta);
  if (!kind) return plain_product(out, a, b, beta);
  auto choice = choices().find(*kind);
  if (!choice && !capturing() && choices().has_room()) {
    choice = choices().decide(*kind, out, a, b);
  }
  if (!choice || !choice->algorithm) return plain_product(out, a, b, beta);
  TORCH_CUDABLAS_CHECK(choice->product.run(*choice->algorithm, out, a, b));
}

}  // namespace tessera

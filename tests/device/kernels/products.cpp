#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "tessera/kernels/operators.h"
#include "tests/device/kernels/checks.h"

namespace device_kernels {
namespace {

using torch::Tensor;

Tensor random(int64_t rows, int64_t columns, torch::Dtype dtype) {
  return torch::randn({rows, columns},
                      torch::dtype(dtype).device(torch::kCUDA));
}

/// [rows, columns], in rows or in columns, maybe at an odd address and with
/// room between them.
Tensor laid_out(int64_t rows, int64_t columns, bool by_rows, int64_t room,
                torch::Dtype dtype) {
  if (!by_rows) return laid_out(columns, rows, true, room, dtype).t();
  return random(rows, columns + room, dtype).narrow(1, room, columns);
}

struct Case {
  int64_t m, n, k;
  bool a_by_rows = true, b_by_rows = true;
  int64_t room = 0;
};

std::string describe(const Case& c, torch::Dtype dtype, double beta) {
  char text[160];
  std::snprintf(text, sizeof text, "%ld x %ld x %ld%s%s, room %ld, %s, beta %g",
                c.m, c.n, c.k, c.a_by_rows ? "" : ", a turned",
                c.b_by_rows ? "" : ", b turned", c.room, torch::toString(dtype),
                beta);
  return text;
}

/// The largest difference, of each value and the root mean square of all.
double worst(const Tensor& got, const Tensor& want) {
  if (want.numel() == 0) return 0;
  const Tensor size = want.abs() + want.square().mean().sqrt() + 1e-9;
  const double most =
      ((got.to(torch::kDouble) - want).abs() / size).max().item<double>();
  return std::isfinite(most) ? most : INFINITY;
}

/// One rounding of the result, and sums in float. cuBLAS's own algorithm, which
/// is taken where none is faster, may add the parts of long sums in 16 bits.
bool near(const Tensor& got, const Tensor& want, const Tensor& of_cublas) {
  const double bound = got.scalar_type() == torch::kBFloat16 ? 8e-3 : 2e-3;
  return worst(got, want) <= std::max(bound, worst(of_cublas, want));
}

int check(const Case& c, torch::Dtype dtype, double beta) {
  const Tensor a = laid_out(c.m, c.k, c.a_by_rows, c.room, dtype);
  const Tensor b = laid_out(c.k, c.n, c.b_by_rows, c.room, dtype);
  const Tensor before = laid_out(c.m, c.n, true, c.room, dtype);
  const Tensor exact = torch::mm(a.to(torch::kDouble), b.to(torch::kDouble)) +
                       beta * before.to(torch::kDouble);
  // Three times: while algorithms are timed, and after.
  std::vector<Tensor> results;
  for (int i = 0; i < 3; ++i) {
    // With room around it, which must stay as it was.
    Tensor whole = torch::full({c.m, c.n + 2 * c.room}, 7, a.options());
    const Tensor out = whole.narrow(1, c.room, c.n);
    if (beta == 0) {
      out.fill_(NAN);
    } else {
      out.copy_(before);
    }
    tessera::operators::product_out(out, a, b, beta);
    results.push_back(out.clone());
    out.fill_(7);
    if (!whole.eq(7).all().item<bool>()) {
      std::printf("FAIL %s wrote around the result\n",
                  describe(c, dtype, beta).c_str());
      return 1;
    }
  }
  const Tensor of_cublas = torch::addmm(before, a, b, beta);
  const bool good = near(results[0], exact, of_cublas) &&
                    torch::equal(results[0], results[1]) &&
                    torch::equal(results[0], results[2]);
  std::printf("%s product %s: off by %.2g, cuBLAS's own by %.2g\n",
              good ? "PASS" : "FAIL", describe(c, dtype, beta).c_str(),
              worst(results[0], exact), worst(of_cublas, exact));
  return good ? 0 : 1;
}

/// A kind whose algorithm has not been chosen must not be timed in a capture.
int check_in_graph() {
  const c10::cuda::CUDAStreamGuard side(c10::cuda::getStreamFromPool());
  const Tensor a = random(1111, 1024, torch::kBFloat16);
  const Tensor b = random(1024, 2048, torch::kBFloat16);
  const Tensor want = torch::mm(a, b);
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  const Tensor got = tessera::operators::product(a, b);
  graph.capture_end();
  got.fill_(0);
  graph.replay();
  const bool good = near(got, want.to(torch::kDouble), want);
  std::printf("%s a product that a graph sees first\n", good ? "PASS" : "FAIL");
  return good ? 0 : 1;
}

/// What is written in place has the bits of the kernels that do not.
int check_swiglu_in_place() {
  int failures = 0;
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
    for (const int64_t columns : {0, 1, 7, 4096, 100003}) {
      const Tensor dy = random(3, columns, dtype);
      const Tensor gate = random(3, columns, dtype);
      const Tensor up = random(3, columns, dtype);
      const Tensor y = tessera::operators::swiglu(gate, up);
      const auto [dgate, dup] =
          tessera::operators::swiglu_backward(dy, gate, up);
      tessera::operators::swiglu_backward_in_place(dy, gate, up);
      const bool good = torch::equal(dy, y) && torch::equal(gate, dgate) &&
                        torch::equal(up, dup);
      std::printf("%s swiglu in place, 3 x %ld, %s\n", good ? "PASS" : "FAIL",
                  columns, torch::toString(dtype));
      failures += good ? 0 : 1;
    }
  }
  return failures;
}

}  // namespace

int check_products() {
  torch::manual_seed(4);
  // Of a few that are timed and a few that are too small; odd sizes, of which
  // rows are at odd addresses.
  const std::vector<Case> cases = {{0, 5, 3},          {3, 5, 0},
                                   {33, 65, 17},       {1024, 1024, 1024},
                                   {1000, 1016, 1032}, {1001, 517, 1033},
                                   {4096, 512, 256}};
  int failures = 0;
  for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
    for (Case c : cases) {
      for (int way = 0; way < 8; ++way) {
        c.a_by_rows = (way & 1) == 0;
        c.b_by_rows = (way & 2) == 0;
        c.room = (way & 4) == 0 ? 0 : 3;
        for (const double beta : {0.0, 1.0}) failures += check(c, dtype, beta);
      }
    }
  }
  return failures + check_in_graph() + check_swiglu_in_place();
}

}  // namespace device_kernels

// At which operator an exception came out, innermost first.
#pragma once

#include <ATen/record_function.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace tessera {

/// While it lives, it sees all operators of all threads.
class FailedOperator {
 public:
  FailedOperator();
  ~FailedOperator();
  FailedOperator(const FailedOperator&) = delete;
  FailedOperator& operator=(const FailedOperator&) = delete;

  /// "aten::_local_scalar_dense, called by aten::item"; empty when no operator
  /// was left by an exception.
  [[nodiscard]] std::string describe() const;

 private:
  at::CallbackHandle handle_;
};

}  // namespace tessera

// What GradientReducer says where gradients do not come as they should.
//
// Inside parallel only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::reducer_errors {

/// Parameters without a gradient at the end of a backward.
enum class Expectation { one_each, as_in_the_first_pass };
[[noreturn]] void raise_missing(const std::vector<std::string>& names,
                                Expectation expectation);

/// One gradient more than `expected` of one backward.
[[noreturn]] void raise_again(const std::string& name, int64_t count,
                              int64_t expected);

/// A gradient of a backward that asks for some gradients by name.
[[noreturn]] void raise_by_name(const std::string& name);

/// A gradient that no forward of the wrapper led to.
[[noreturn]] void raise_stray(const std::string& name);

/// A parameter that is not what it was: `how`.
[[noreturn]] void raise_changed(const std::string& name, const char* how);

}  // namespace tessera::reducer_errors

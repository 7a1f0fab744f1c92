// The file in which a rank that fails tells its launcher why, in torchrun's
// form:
//
//   {"message": {"message": "<type>: <text>",
//                "extraInfo": {"py_callstack": "", "timestamp": "<seconds>"}}}
//
// Of several ranks the launcher takes the one with the earliest time for the
// cause. An uncaught exception is written there by itself once init_distributed
// has been called; a program that catches its errors calls this first.
#pragma once

#include <string_view>

namespace tessera {

/// Writes to where TORCHELASTIC_ERROR_FILE says; does nothing when it is unset,
/// or when this process has written before: the first error is the cause.
/// Never throws: the process is about to end for another reason.
void write_error_file(std::string_view type, std::string_view text) noexcept;

}  // namespace tessera

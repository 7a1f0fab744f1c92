// Runs another program to its end.
#pragma once

#include <string>
#include <vector>

namespace tessera {

struct ProgramFiles {
  std::string input = "/dev/null";   // what its standard input is
  std::string output = "/dev/null";  // made anew
};

struct ProgramResult {
  int code = 0;       // 128 + signal when one killed it; 127: not found
  std::string error;  // the last lines of its standard error
};

/// Looks argv[0] up in PATH.
/// Errors: InvalidState when a process or a file cannot be made.
[[nodiscard]] ProgramResult run_program(const std::vector<std::string>& argv,
                                        const ProgramFiles& files = {});

}  // namespace tessera

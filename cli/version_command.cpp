// `tessera version`. Its constants come from CMake, so that it needs no
// LibTorch to tell which one Tessera was built for.
#include <CLI/CLI.hpp>
#include <iostream>

#include "cli/command.h"

namespace tessera::cli {

std::function<int()> add_version_command(CLI::App& app,
                                         const WordsAfterDashes& words) {
  app.footer("\nPut what it prints into a bug report.");
  return [words] {
    refuse_words_after_dashes("version", words);
    std::cout << "tessera " TESSERA_VERSION "\n"
              << "LibTorch " TESSERA_TORCH_VERSION "\n"
              << "compiler " TESSERA_COMPILER "\n";
    return 0;
  };
}

}  // namespace tessera::cli

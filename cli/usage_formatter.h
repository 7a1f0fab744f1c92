// Help with a usage line of one's own: CLI11's would show none of the words
// that a command takes beside its options.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <utility>

namespace tessera::cli {

class UsageFormatter : public CLI::Formatter {
 public:
  explicit UsageFormatter(std::string usage) : usage_(std::move(usage)) {}

  std::string make_description(const CLI::App* app) const override {
    return app->get_description();
  }
  std::string make_usage(const CLI::App*, std::string) const override {
    return "\nUsage: " + usage_ + "\n";
  }

 private:
  std::string usage_;
};

}  // namespace tessera::cli

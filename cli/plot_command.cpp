// `tessera plot`: options and help; the work is in tessera/train/run_curves.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "cli/command.h"
#include "tessera/train/run_curves.h"

namespace tessera::cli {
namespace {

constexpr const char* kFooter = R"(
Examples:
  tessera plot run -o loss.svg
  tessera plot run-a run-b --key grad_norm --log-y -o norms.svg

A run is the folder that tessera train wrote, or a metrics.jsonl. Any key of its
lines can be shown: loss, held_out_loss, grad_norm, lr, ... The picture is SVG;
every browser shows it.)";

struct PlotFlags {
  train::CurvesOptions options;
  bool log_x = false;
  bool log_y = false;
};

int run_plot(PlotFlags flags) {
  if (flags.log_x) flags.options.plot.x_scale = train::Scale::logarithmic;
  if (flags.log_y) flags.options.plot.y_scale = train::Scale::logarithmic;
  train::write_curves(flags.options);
  std::cout << flags.options.output << "\n";
  return 0;
}

}  // namespace

std::function<int()> add_plot_command(CLI::App& app,
                                      const WordsAfterDashes& words) {
  const auto flags = std::make_shared<PlotFlags>();
  train::CurvesOptions& options = flags->options;
  options.output = "plot.svg";
  options.plot.x_label = "";
  app.footer(kFooter);
  app.add_option("run", options.runs, "Folders of runs, or metrics.jsonl files")
      ->type_name("RUN");
  app.add_option("-o,--output", options.output, "Picture to write")
      ->type_name("FILE")
      ->capture_default_str();
  app.add_option("--key", options.keys,
                 "What to show; may be given several times (default: loss, and "
                 "held_out_loss where there is one)")
      ->type_name("NAME")
      ->allow_extra_args(false);
  app.add_option("--x", options.x_key, "What runs along the picture")
      ->type_name("NAME")
      ->capture_default_str();
  app.add_option("--title", options.plot.title, "Title of the picture")
      ->type_name("TEXT");
  app.add_option("--smooth", options.plot.smooth,
                 "From 0 to less than 1: how much of a line's last value stays "
                 "in its next")
      ->type_name("SHARE");
  app.add_flag("--log-y", flags->log_y, "Logarithmic values");
  app.add_flag("--log-x", flags->log_x, "Logarithmic steps");
  return [flags, words] {
    refuse_words_after_dashes("plot", words);
    return run_plot(*flags);
  };
}

}  // namespace tessera::cli

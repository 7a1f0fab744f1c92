// What several runs measured, over each other in one picture.
//
//   write_curves({.runs = {"run-a", "run-b"}, .output = "loss.svg"});
#pragma once

#include <string>
#include <vector>

#include "tessera/train/svg_plot.h"

namespace tessera::train {

struct CurvesOptions {
  // Folders with a metrics.jsonl, or such files.
  std::vector<std::string> runs = {};
  // Empty: "loss", and "held_out_loss" of runs that have it.
  std::vector<std::string> keys = {};
  std::string x_key = "step";
  std::string output = {};
  PlotOptions plot = {};  // empty title and labels are filled in
};

/// One line for each run and key. A step that stands in the file twice, as
/// after a run went on from a checkpoint, has its last value.
/// Errors: Failure (missing_data) for a run that cannot be read or has no such
///         key, with the keys that it has; (damaged_data) as read_metrics.
[[nodiscard]] std::vector<PlotSeries> run_curves(const CurvesOptions& options);

/// Errors: also Failure (cannot_write), and InvalidArgument when there is
///         nothing to show.
void write_curves(const CurvesOptions& options);

}  // namespace tessera::train

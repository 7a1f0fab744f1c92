// The units that a captured step reads, of its model and of any other module,
// and what their shards and copies need around replays, whose writes the host
// does not see.
//
//   StepUnits units;
//   steps before:  { Recording recording(units, StepRun::eager); body(); }
//   the capture:   units.before_capture(model);
//                  { Recording recording(units, StepRun::capture); body(); }
//                  units.after_capture();
//   each replay:   units.before_replay(); replay; units.after_replay();
//
// The captured step may send a copy (GatherCopy::kept) without casting first,
// so copies are current when a replay begins. What the captured optimizer has
// kept current is so at the end of each replay; whatever else the step wrote is
// marked as changed there. A unit that the step writes and never reads is not
// seen.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/tensor/spread.h"

namespace tessera {

class Unit;

enum class StepRun { eager, capture };

class StepUnits {
 public:
  /// While it lives, the units whose parameters this thread gathers or reads
  /// are noted. Not nested.
  class Recording {
   public:
    Recording(StepUnits& units, StepRun run);
    ~Recording();
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;
  };

  /// Frees the full parameters of the model's units and of those noted, so that
  /// the capture begins as every replay does, and refreshes their copies, or
  /// each replay would cast.
  void before_capture(torch::nn::Module& model);
  void after_capture();
  void before_replay();
  void after_replay();

  /// Frees the full parameters of all of them.
  void reshard();

 private:
  friend void note_unit_read(Unit& unit);
  friend void note_unit_gathered(Unit& unit);

  struct Master {
    std::shared_ptr<FlatMaster> master;
    uint32_t version = 0;    // before the capture, or when first noted in it
    bool written = false;    // by the captured step
    bool kept_copy = false;  // which it keeps current
  };
  struct Noted {
    std::shared_ptr<Unit> unit;
    bool of_model = false;
    bool new_in_capture = false;
    std::vector<Master> masters;
  };

  [[nodiscard]] Noted* find(const Unit& unit);
  Noted& add(Unit& unit);
  void refresh_copies();

  std::vector<Noted> units_;
  StepRun run_ = StepRun::eager;
};

/// An operator is about to read parameters of `unit`. Errors: Unsupported in a
/// capture when they were gathered before it: replays would read that memory.
void note_unit_read(Unit& unit);
/// They are gathered from here on.
void note_unit_gathered(Unit& unit);

}  // namespace tessera

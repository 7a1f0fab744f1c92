#include "tessera/shard/step_units.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/shard/below.h"
#include "tessera/shard/context.h"
#include "tessera/shard/find_units.h"
#include "tessera/shard/unit.h"

namespace tessera {
namespace {

// The forward of a step gathers, or reads, all units of the step, and runs on
// the thread that calls it; backward may run on another.
thread_local StepUnits* recorder = nullptr;

uint32_t version_of(const FlatMaster& master) {
  return master.data.unsafeGetTensorImpl()->version_counter().current_version();
}

}  // namespace

StepUnits::Recording::Recording(StepUnits& units, StepRun run) {
  units.run_ = run;
  recorder = &units;
}

StepUnits::Recording::~Recording() { recorder = nullptr; }

StepUnits::Noted* StepUnits::find(const Unit& unit) {
  const auto found = std::find_if(
      units_.begin(), units_.end(),
      [&](const Noted& noted) { return noted.unit.get() == &unit; });
  return found == units_.end() ? nullptr : &*found;
}

StepUnits::Noted& StepUnits::add(Unit& unit) {
  if (Noted* noted = find(unit)) return *noted;
  Noted& noted = units_.emplace_back();
  noted.unit = unit.shared_from_this();
  noted.new_in_capture = run_ == StepRun::capture;
  for (const auto& group : unit.groups()) {
    noted.masters.push_back({group->master(), version_of(*group->master())});
  }
  return noted;
}

void StepUnits::before_capture(torch::nn::Module& model) {
  run_ = StepRun::eager;
  for (const auto& unit : units_below(model)) add(*unit).of_model = true;
  reshard();
  refresh_copies();
  for (Noted& noted : units_) {
    noted.new_in_capture = false;
    for (Master& each : noted.masters) each.version = version_of(*each.master);
  }
}

// What a unit that is new in the capture held before is not known; and whoever
// steps the model may write without a version.
void StepUnits::after_capture() {
  for (Noted& noted : units_) {
    for (Master& each : noted.masters) {
      each.written = noted.of_model || noted.new_in_capture ||
                     each.version != version_of(*each.master);
      each.master->forget_grad_norms();
      each.kept_copy = each.master->copy_is_current();
    }
  }
}

void StepUnits::before_replay() { refresh_copies(); }

void StepUnits::after_replay() {
  for (const Noted& noted : units_) {
    for (const Master& each : noted.masters) {
      each.master->forget_grad_norms();  // it may have changed the gradient
      if (!each.written) continue;
      each.master->data.unsafeGetTensorImpl()->bump_version();
      if (each.kept_copy) each.master->note_copy_is_current();
    }
  }
}

void StepUnits::reshard() {
  for (const Noted& noted : units_) {
    noted.unit->reshard();
    noted.unit->context()->forget(*noted.unit);
  }
}

void StepUnits::refresh_copies() {
  Below below;
  for (const Noted& noted : units_) {
    for (const Master& each : noted.masters) each.master->refresh_copy();
  }
}

void note_unit_read(Unit& unit) {
  if (recorder == nullptr || recorder->find(unit) != nullptr) return;
  require<Unsupported>(
      recorder->run_ == StepRun::eager || !unit.gathered(), [&] {
        return str(
            "GraphedStep: the captured step reads unit '", unit.name(),
            "', which is not part of the model and which no step before ",
            "has read; its parameters were gathered before the capture, ",
            "and replays would read that memory. Call reshard() on its ",
            "module before, or let the first steps read it, too.");
      });
  recorder->add(unit);
}

void note_unit_gathered(Unit& unit) {
  if (recorder != nullptr) recorder->add(unit);
}

}  // namespace tessera

#include "tessera/shard/forward_clock.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>

namespace tessera {

void ForwardClock::note_read() {
  last_read_ = {at::RecordFunction::currentThreadId(),
                at::sequence_number::peek()};
}

bool ForwardClock::saw_other_values(const torch::autograd::Node& node) const {
  return node.thread_id() == last_of_old_.thread &&
         node.sequence_nr() < last_of_old_.sequence;
}

}  // namespace tessera

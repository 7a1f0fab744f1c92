// Writes TensorBoard events into a folder: what test_tensorboard.py reads back.
//
//   write_events FOLDER          a run
//   write_events FOLDER resumed  a run of steps 0 to 9, and one that goes on
//                                after step 4, with other values
#include <cmath>

#include "tessera/train/tensorboard_writer.h"

namespace {

void write_resumed(const char* folder) {
  tessera::train::TensorBoardWriter first(folder);
  for (int step = 0; step < 10; ++step) first.scalar("train/loss", 1.0, step);
  tessera::train::TensorBoardWriter second(folder, 4);
  for (int step = 5; step < 8; ++step) second.scalar("train/loss", 2.0, step);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3) {
    write_resumed(argv[1]);
    return 0;
  }
  if (argc != 2) return 2;
  tessera::train::TensorBoardWriter events(argv[1]);
  for (int step = 0; step < 300; ++step) {
    events.scalar("train/loss", 5.0 / (step + 1), step);
    events.scalar("train/lr", 1e-3 * step, step);
  }
  events.scalar("held_out/loss", 2.5, int64_t{1} << 40);
  events.scalar("train/loss", std::nan(""), 300);
}

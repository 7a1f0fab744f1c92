// Writes TensorBoard events into a folder: what test_tensorboard.py reads back.
#include <cmath>

#include "tessera/train/tensorboard_writer.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  tessera::train::TensorBoardWriter events(argv[1]);
  for (int step = 0; step < 300; ++step) {
    events.scalar("train/loss", 5.0 / (step + 1), step);
    events.scalar("train/lr", 1e-3 * step, step);
  }
  events.scalar("held_out/loss", 2.5, int64_t{1} << 40);
  events.scalar("train/loss", std::nan(""), 300);
}

"""TensorBoard's events, read back: test_tensorboard.py WRITE_EVENTS

By a reader of the format that is written here, and by TensorBoard's own. That
runs in the Python that TESSERA_TENSORBOARD_PYTHON names (scripts/setup test
installs one); without one its test says so and is skipped.
"""
import json
import math
import os
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

WRITE_EVENTS = sys.argv.pop(1)

OWN_READER = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import (
    EventAccumulator)
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
events.Reload()
print(json.dumps({tag: [[e.step, e.value] for e in events.Scalars(tag)]
                  for tag in events.Tags()["scalars"]}))
"""


def crc32c(data):
    """Bit by bit, from the definition."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    """The records of a TFRecord file; every checksum must hold."""
    at = 0
    while at < len(data):
        (length, length_crc) = struct.unpack_from("<QI", data, at)
        assert length_crc == masked(data[at:at + 8]), f"length at byte {at}"
        body = data[at + 12:at + 12 + length]
        (crc,) = struct.unpack_from("<I", data, at + 12 + length)
        assert crc == masked(body), f"record at byte {at}"
        yield body
        at += 16 + length


def varint(data, at):
    number = shift = 0
    while True:
        number |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return number, at


def fields(data):
    """{number: value} of one protobuf message; each field once."""
    found, at = {}, 0
    while at < len(data):
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        assert number not in found
        if kind == 0:
            found[number], at = varint(data, at)
        elif kind == 2:
            length, at = varint(data, at)
            found[number], at = data[at:at + length], at + length
            assert len(found[number]) == length
        else:
            code, size = {1: ("<d", 8), 5: ("<f", 4)}[kind]
            (found[number],) = struct.unpack_from(code, data, at)
            at += size
    return found


class TensorBoardTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        subprocess.run([WRITE_EVENTS, cls.folder.name], check=True, timeout=60)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def check(self, scalars):
        """scalars: {tag: [[step, value], ...]}"""
        self.assertEqual(sorted(scalars),
                         ["held_out/loss", "train/loss", "train/lr"])
        self.assertEqual(scalars["held_out/loss"], [[2 ** 40, 2.5]])
        loss, lr = scalars["train/loss"], scalars["train/lr"]
        self.assertEqual([step for step, _ in loss], list(range(301)))
        for (step, value), (_, rate) in zip(loss, lr):
            # Written as 32-bit floats.
            self.assertAlmostEqual(value * (step + 1) / 5, 1, delta=1e-6)
            self.assertAlmostEqual(rate, 1e-3 * step, delta=1e-7)
        self.assertTrue(math.isnan(loss[300][1]))

    def test_every_record_is_whole_and_holds_one_scalar(self):
        (path,) = Path(self.folder.name).iterdir()
        self.assertIn("tfevents", path.name)
        bodies = list(records(path.read_bytes()))
        self.assertEqual(fields(bodies[0])[3], b"brain.Event:2")
        scalars = {}
        for body in bodies[1:]:
            event = fields(body)
            self.assertGreater(event[1], 1.6e9)  # seconds since 1970
            value = fields(fields(event[5])[1])
            scalars.setdefault(value[1].decode(), []).append(
                [event[2], value[2]])
        self.check(scalars)

    def read_by_tensorboard(self, folder):
        python = os.environ.get("TESSERA_TENSORBOARD_PYTHON")
        if not python:
            self.skipTest("TESSERA_TENSORBOARD_PYTHON is not set")
        read = subprocess.run([python, "-c", OWN_READER, folder],
                              capture_output=True, text=True, timeout=120)
        self.assertEqual(read.returncode, 0, read.stderr)
        return json.loads(read.stdout)

    def test_tensorboard_reads_the_same(self):
        self.check(self.read_by_tensorboard(self.folder.name))

    def test_tensorboard_forgets_what_a_resumed_run_does_again(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([WRITE_EVENTS, folder, "resumed"], check=True,
                           timeout=60)
            scalars = self.read_by_tensorboard(folder)
        self.assertEqual(
            scalars["train/loss"],
            [[step, 1.0] for step in range(5)] +
            [[step, 2.0] for step in range(5, 8)])


if __name__ == "__main__":
    unittest.main(verbosity=2)

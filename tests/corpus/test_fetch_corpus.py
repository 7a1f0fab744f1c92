"""Tests of tools/fetch_corpus and tools/check_training."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import math
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib
from pathlib import Path
from unittest import mock

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def load(name):
    loader = importlib.machinery.SourceFileLoader(name, str(TOOLS / name))
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


fetch_corpus = load("fetch_corpus")
check_training = load("check_training")


def record(lines, version=3):
    """A string vector as R writes it; None stands for a missing string."""
    out = b"X\n" + struct.pack(">III", version, 0x00040201, 0x00030500)
    if version == 3:
        out += struct.pack(">I", 5) + b"UTF-8"
    out += struct.pack(">II", 16, len(lines))
    for line in lines:
        out += struct.pack(">Ii", 0x00040009, -1 if line is None else len(line))
        out += line or b""
    return out


def rdb(*records):
    return b"".join(struct.pack(">I", len(r)) + zlib.compress(r) for r in records)


class Decoder(unittest.TestCase):
    def test_reads_every_record_of_a_database(self):
        data = rdb(record([b"EMMA", b"", b"One."]), record([b"two"], version=2))
        vectors = [fetch_corpus.string_vector(r)
                   for r in fetch_corpus.rdb_records(data)]
        self.assertEqual(vectors, [[b"EMMA", b"", b"One."], [b"two"]])

    def test_a_missing_string_is_an_empty_line(self):
        self.assertEqual(fetch_corpus.string_vector(record([b"a", None, b"b"])),
                         [b"a", b"", b"b"])

    def test_refuses_a_record_of_another_length_than_it_says(self):
        data = struct.pack(">I", 7) + zlib.compress(record([b"x"]))
        with self.assertRaisesRegex(fetch_corpus.CorpusError, "instead of 7"):
            list(fetch_corpus.rdb_records(data))

    def test_refuses_a_cut_database(self):
        with self.assertRaises(fetch_corpus.CorpusError):
            list(fetch_corpus.rdb_records(rdb(record([b"a line"] * 9))[:-3]))

    def test_refuses_what_is_no_string_vector(self):
        numbers = record([])[:-8] + struct.pack(">II", 13, 0)
        with self.assertRaisesRegex(fetch_corpus.CorpusError, "than strings"):
            fetch_corpus.string_vector(numbers)


class Text(unittest.TestCase):
    def test_joins_hard_wrapped_lines_into_paragraphs(self):
        lines = [b"", b"She was", b"  young.  Very.", b"", b"", b"He", b"too."]
        self.assertEqual(fetch_corpus.join_paragraphs(lines),
                         b"She was young. Very.\nHe too.\n")

    def test_holds_persuasion_out(self):
        data = rdb(record([b"SENSE", b"s"]), record([b"Persuasion", b"p"]),
                   record([b"EMMA", b"e"]))
        self.assertEqual(fetch_corpus.split_novels(data),
                         (b"EMMA e\nSENSE s\n", b"Persuasion p\n"))


class Trigram(unittest.TestCase):
    def test_of_an_untrained_model_is_uniform(self):
        self.assertAlmostEqual(fetch_corpus.trigram_loss(b"", b"abcd"),
                               math.log(256))

    def test_probabilities_of_all_next_bytes_sum_to_one(self):
        train = b"the cat sat on the mat and the rat sat"
        for context in (b"th", b"at", b"zz", b"qt"):
            total = sum(
                math.exp(-fetch_corpus.trigram_loss(train, context + bytes([c])))
                for c in range(256))
            self.assertAlmostEqual(total, 1)

    def test_learns_what_repeats(self):
        loss = fetch_corpus.trigram_loss(b"abcabcabc" * 500, b"abcabc")
        self.assertLess(loss, 0.01)


class StandIn(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = Path(self.folder.name)
        for i in range(20):
            header = self.root / "include/ATen/ops" / f"op_{i:02}.h"
            header.parent.mkdir(parents=True, exist_ok=True)
            header.write_text(f"// operator {i}\n" * 30)
        self.out = self.root / "out"

    def run_script(self, *args):
        return subprocess.run(
            [sys.executable, "-B", TOOLS / "fetch_corpus", self.out, *args,
             "--torch-include", self.root / "include"],
            capture_output=True, text=True, env={"PATH": ""}, timeout=60)

    def baseline(self):
        return json.loads((self.out / "baseline.json").read_text())

    def test_headers_stand_in_where_apt_is_missing_and_it_says_so(self):
        done = self.run_script()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("not the novels (apt-get is missing)", done.stderr)
        self.assertIn("libtorch headers", done.stdout)
        notes = self.baseline()
        self.assertEqual(notes["source"], "libtorch headers")
        self.assertEqual(notes["reason"], "apt-get is missing")

    def test_holds_a_tenth_of_the_headers_out(self):
        self.run_script()
        held_out = (self.out / "heldout.txt").read_text()
        self.assertEqual(set(held_out.splitlines()),
                         {"// operator 0", "// operator 10"})
        self.assertNotIn("operator 10\n", (self.out / "train.txt").read_text())

    def test_a_second_run_leaves_the_files_alone(self):
        self.run_script()
        before = (self.out / "train.txt").stat().st_mtime_ns
        self.assertEqual(self.run_script().returncode, 0)
        self.assertEqual((self.out / "train.txt").stat().st_mtime_ns, before)

    def test_a_damaged_file_is_made_again(self):
        self.run_script()
        whole = (self.out / "train.txt").read_bytes()
        (self.out / "train.txt").write_bytes(whole[:-1])
        self.run_script()
        self.assertEqual((self.out / "train.txt").read_bytes(), whole)

    def test_novels_that_differ_from_the_known_ones_are_not_taken(self):
        other = rdb(record([b"EMMA"]), record([b"Persuasion"]))
        with mock.patch.object(fetch_corpus, "download_rdb", lambda: other), \
                contextlib.redirect_stderr(io.StringIO()) as log:
            fetch_corpus.fetch(self.out, "auto", self.root / "include")
        self.assertIn("differ from the known ones", log.getvalue())
        self.assertEqual(self.baseline()["source"], "libtorch headers")

    def test_without_headers_it_fails_with_a_remedy(self):
        done = subprocess.run(
            [sys.executable, "-B", "-S", TOOLS / "fetch_corpus", self.out],
            capture_output=True, text=True, env={"PATH": ""}, timeout=60)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--torch-include", done.stderr)


class Check(unittest.TestCase):
    TRAIN = "It is a truth universally acknowledged that Mr. Bennet's is."

    def test_counts_sampled_words_that_occur_in_training(self):
        known, total = check_training.words_known(
            self.TRAIN, "A truth Bennet's xyzzy acknow")
        self.assertEqual((known, total), (3, 4))  # the last one may be cut

    def check(self, loss, sample):
        return check_training.verdicts(
            {"held_out_nats_per_byte": loss, "sample": sample},
            {"trigram_nats_per_byte": 2.0}, self.TRAIN)

    def test_passes_when_both_goals_are_reached(self):
        self.assertTrue(all(ok for ok, _ in self.check(1.7, "It is a truth x")))

    def test_fails_for_a_loss_above_the_goal(self):
        self.assertEqual([ok for ok, _ in self.check(1.71, "It is a truth x")],
                         [False, True])

    def test_fails_for_unknown_words_or_none(self):
        self.assertFalse(self.check(1.0, "xx yy It is zz")[1][0])
        self.assertFalse(self.check(1.0, "")[1][0])

    def test_a_loss_that_is_no_number_fails(self):
        self.assertFalse(self.check(math.nan, "It is a truth x")[0][0])


if __name__ == "__main__":
    unittest.main()

"""tessera prepare, plot and plan: test_data_commands.py TESSERA

Each bad day has its exit code and one clear sentence.
"""
import json
import os
import pty
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TESSERA = os.path.abspath(sys.argv.pop(1))
LINE = "It is a truth universally acknowledged\n"


class DataCommandsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "a.txt").write_text(LINE * 100)

    def run_tessera(self, *words, code=0, **options):
        done = subprocess.run([TESSERA, *words], cwd=self.folder, text=True,
                              capture_output=True, timeout=60, **options)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def fails(self, code, sentence, *words, **options):
        error = self.run_tessera(*words, code=code, **options).stderr
        self.assertIn(sentence, error)
        self.assertTrue(error.startswith(f"tessera {words[0]}: "), error)

    def tokens(self, name):
        """(training tokens, validation tokens) by the documented format."""
        data = (self.folder / name).read_bytes()
        self.assertEqual(data[:8], b"TESSERA\n")
        (start, width) = struct.unpack_from("<QI", data, 16)
        (train, validation) = struct.unpack_from("<QQ", data, 40)
        code = {1: "B", 2: "H", 4: "I"}[width]
        tokens = struct.unpack_from(f"<{train + validation}{code}", data, start)
        self.assertEqual(len(data), start + len(tokens) * width)
        return tokens[:train], tokens[train:]

    # --- prepare -------------------------------------------------------------

    def test_prepare_writes_the_documented_format(self):
        done = self.run_tessera("prepare", "a.txt", "--validation", "0.1", "-o",
                                "a.tok")
        train, validation = self.tokens("a.tok")
        self.assertEqual(bytes(train), LINE.encode() * 90)
        self.assertEqual(bytes(validation), LINE.encode() * 10)
        self.assertIn("3,510 tokens to train on, 390 for validation, of 1 "
                      "document (3.81 KiB of text); vocabulary 256 (bytes)",
                      done.stdout)
        self.assertEqual(done.stderr, "")

    @unittest.skipUnless(shutil.which("spm_train"), "SentencePiece is missing")
    def test_prepare_trains_a_sentencepiece_model(self):
        (self.folder / "b.jsonl").write_text(
            "".join(json.dumps({"body": LINE}) + "\n" for _ in range(50)))
        self.run_tessera("prepare", "b.jsonl", "--field", "body",
                         "--train-sentencepiece", "300", "-o", "b.tok")
        train, _ = self.tokens("b.tok")
        self.assertLess(len(train), 50 * len(LINE) // 2)
        self.assertLess(max(train), 300)
        model = (self.folder / "b.tok").read_bytes()
        self.assertIn(b"sentencepiece", model[:100])

    def test_prepare_draws_a_bar_on_a_terminal_alone(self):
        (self.folder / "large.txt").write_text(LINE * 2_000_000)
        main, terminal = pty.openpty()
        done = subprocess.Popen(
            [TESSERA, "prepare", "large.txt", "-o", "l.tok"], cwd=self.folder,
            stdout=subprocess.DEVNULL, stderr=terminal)
        os.close(terminal)
        drawn = b""
        try:
            while piece := os.read(main, 4096):
                drawn += piece
        except OSError:  # how Linux says that the other side has gone
            pass
        os.close(main)
        self.assertEqual(done.wait(60), 0)
        self.assertIn(b"preparing [", drawn)
        self.assertTrue(drawn.endswith(b"\r\x1b[K"), drawn[-100:])

    def test_prepare_names_what_is_wrong(self):
        fails = self.fails
        fails(10, "'none.txt' cannot be read (No such file", "prepare",
              "none.txt", "-o", "x")
        fails(2, "give a text to prepare", "prepare", "-o", "x")
        fails(2, "give the token file to write", "prepare", "a.txt")
        fails(2, "is one of the inputs", "prepare", "a.txt", "-o", "a.txt")
        fails(2, "--validation is 1.5", "prepare", "a.txt", "--validation",
              "1.5", "-o", "x")
        (self.folder / "bad.jsonl").write_text('{"text": "x"}\n{"body": 1}\n')
        fails(11, "bad.jsonl:2: there is no field 'text'", "prepare",
              "bad.jsonl", "-o", "x")
        (self.folder / "empty.txt").write_text("")
        fails(12, "there is no text to train on", "prepare", "empty.txt", "-o",
              "x")
        fails(20, "cannot be written (No such file", "prepare", "a.txt", "-o",
              "no/x")
        self.assertFalse((self.folder / "x").exists())

    def test_prepare_leaves_nothing_on_a_full_disk(self):
        (self.folder / "large.txt").write_text(LINE * 1000)

        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        self.fails(20, "cannot be written (File too large)", "prepare",
                   "large.txt", "-o", "x", preexec_fn=small_files)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()),
                         ["a.txt", "large.txt"])

    # --- plot and plan -------------------------------------------------------

    def test_plot_draws_runs_over_each_other(self):
        for run in ("one", "two"):
            (self.folder / run).mkdir()
            (self.folder / run / "metrics.jsonl").write_text(
                '{"step": 1, "loss": 3}\n{"step": 2, "loss": 2}\n')
        self.run_tessera("plot", "one", "two", "--key", "loss", "-o", "x.svg")
        svg = (self.folder / "x.svg").read_text()
        self.assertEqual(svg.count("<polyline"), 2)
        self.fails(10, "did you mean 'loss'?", "plot", "one", "--key", "los")
        self.fails(10, "'three' cannot be read", "plot", "three")
        self.fails(2, "give at least one run", "plot")

    def test_plan_prints_a_table_and_json(self):
        text = self.run_tessera("plan", "--preset", "8b", "--ranks", "8").stdout
        self.assertIn("8,030,261,248 parameters on 8 ranks", text)
        plan = json.loads(self.run_tessera(
            "plan", "--preset", "8b", "--ranks", "8", "--json").stdout)
        self.assertEqual(plan["ranks"], 8)
        self.assertGreaterEqual(plan["memory_bytes"]["parameters"],
                                8030261248 * 4 // 8)
        hsdp = json.loads(self.run_tessera(
            "plan", "--preset", "8b", "--ranks", "16", "--replicas", "2",
            "--reshard", "4", "--gather-dtype", "float8", "--json").stdout)
        self.assertEqual(hsdp["memory_bytes"]["parameters"],
                         plan["memory_bytes"]["parameters"])
        self.assertEqual([(c["name"], c["ranks"]) for c in hsdp["collectives"]],
                         [("all-gather", 8), ("all-gather of parts", 4),
                          ("reduce-scatter", 8), ("all-reduce", 2)])
        self.fails(2, "did you mean '8b'?", "plan", "--preset", "8bb")
        self.fails(2, "shard.reshard is 3, which does not divide", "plan",
                   "--preset", "8b", "--ranks", "8", "--reshard", "3")
        self.fails(2, "plan: ranks is 0", "plan", "--preset", "8b", "--ranks",
                   "0")

    def test_plan_reads_a_config(self):
        (self.folder / "train.toml").write_text(
            '[model]\npreset = "124m"\n[train]\nbatch = 4\n'
            'tokens_per_step = 65536\n[shard]\nparam_dtype = "bfloat16"\n')
        plan = json.loads(self.run_tessera(
            "plan", "train.toml", "--ranks", "2", "--json",
            "--model.layers=6").stdout)
        self.assertEqual(plan["micro_batches"], 8)
        self.assertEqual(plan["batch"], 4)
        self.assertEqual(plan["units"][1]["count"], 6)
        self.fails(14, "train.tokens_per_step is 65536, but train.batch 4 x "
                   "model.seq 1024 x 3 ranks", "plan", "train.toml", "--ranks",
                   "3")
        self.fails(2, "did you mean 'train.steps'?", "plan", "train.toml",
                   "--train.step=3")
        self.fails(2, "tessera plan knows fully_shard", "plan", "train.toml",
                   "--shard.strategy=replicate")
        self.fails(2, "command line: model.layers expects an integer", "plan",
                   "train.toml", "--model.layers=x")
        self.fails(2, "'none.toml' cannot be read", "plan", "none.toml")
        self.fails(2, "there is no option '--rank'", "plan", "train.toml",
                   "--rank")
        self.fails(2, "give a model", "plan")

    def test_every_command_explains_itself(self):
        for command in ("prepare", "plot", "plan"):
            text = self.run_tessera(command, "--help").stdout
            self.assertIn(f"tessera {command} ", text)
            self.assertIn("Examples:", text)


if __name__ == "__main__":
    unittest.main()

"""Tests of `tessera checkpoint import --run`: test_import_run.py TESSERA"""
import json
import os
import subprocess
import sys
import tempfile
import unittest
import warnings

import torch
import torch.distributed.checkpoint as dcp

TEXT = "the cat sat on the mat and the rat sat on the cat. " * 200
SHAPE = ["--model.dim=16", "--model.layers=2", "--model.heads=2",
         "--model.ffn=24", "--model.seq=16", "--evaluation.every=0",
         "--output.tensorboard=false"]


def run(*words, code=0):
    done = subprocess.run([TESSERA, *words], capture_output=True, text=True,
                          timeout=120)
    if done.returncode != code:
        raise AssertionError(f"{words}: {done.returncode}\n{done.stderr}")
    return done.stdout if code == 0 else done.stderr


class ImportRun(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """A run of this program, and its weights in all forms."""
        cls.folder = tempfile.TemporaryDirectory()
        with open(cls.path("text.txt"), "w") as file:
            file.write(TEXT)
        run("prepare", cls.path("text.txt"), "-o", cls.path("text.tok"))
        with open(cls.path("empty.toml"), "w") as file:
            file.write(f'[data]\ntokens = "{cls.path("text.tok")}"\n')
        run("train", cls.path("empty.toml"), *SHAPE, "--train.steps=30",
            "--train.batch=4", "--optimizer.lr=0.02",
            f"--output.folder={cls.path('run')}")
        cls.config = cls.path("run/config.toml")
        saved = cls.path("run/checkpoints/step-30")
        cls.text = cls.generate("run")
        run("checkpoint", "export", saved, cls.path("hf"))
        run("checkpoint", "convert", "--from-prefix", "model", saved,
            cls.path("state.pt"))
        state = torch.load(cls.path("state.pt"), weights_only=True)
        torch.save({"net": state, "note": 7}, cls.path("nested.pt"))
        dcp.save({"model": state}, checkpoint_id=cls.path("dcp"))
        dcp.save({"model": {k: v for k, v in state.items()
                            if k not in ("cos", "sin")}},
                 checkpoint_id=cls.path("no_tables"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder.name, name)

    @classmethod
    def generate(cls, name):
        return run("generate", cls.path(name), "--prompt", "the ", "--tokens",
                   "40", "--temperature", "0")

    def bring(self, source, name, *more, code=0):
        return run("checkpoint", "import", self.path(source), self.path(name),
                   "--run", *more, code=code)

    def test_of_every_form_generates_what_the_weights_did(self):
        config = ["--config", self.config]
        self.bring("hf", "of_hf", "--tokens", self.path("text.tok"))
        self.bring("state.pt", "of_file", *config)
        self.bring("nested.pt", "of_nested", "--from-prefix", "net", *config)
        self.bring("dcp", "of_dcp", *config)
        self.bring("no_tables", "of_no_tables", *config)
        self.bring("run/checkpoints/step-30", "of_run", *config)
        for name in ("of_hf", "of_file", "of_nested", "of_dcp", "of_no_tables",
                     "of_run"):
            with self.subTest(name):
                self.assertEqual(self.generate(name), self.text)

    def test_goes_on_training_at_any_number_of_ranks(self):
        with open(self.path("run/metrics.jsonl")) as file:
            first = json.loads(file.readline())["loss"]
        self.bring("hf", "on", "--tokens", self.path("text.tok"))
        words = ["train", self.path("on/config.toml"), "--resume", "auto",
                 "--train.batch=2", "--evaluation.every=0"]
        run("run", "-n", "2", "--", TESSERA, *words, "--train.steps=3")
        run(*words, "--train.steps=5")
        with open(self.path("on/metrics.jsonl")) as file:
            rows = [json.loads(line) for line in file]
        losses = [row["loss"] for row in rows if "loss" in row]
        self.assertEqual([row["step"] for row in rows if "loss" in row],
                         [1, 2, 3, 4, 5])
        # Of a trained model, and not of one that was drawn.
        self.assertLess(max(losses), first - 0.5)
        self.assertTrue(os.path.exists(self.path("on/checkpoints/step-5")))

    def test_refuses_what_does_not_fit(self):
        self.assertIn("there is no", self.bring("dcp", "a", code=2))
        with open(self.path("other.toml"), "w") as file:
            with open(self.config) as config:
                file.write(config.read().replace("ffn = 24", "ffn = 32"))
        error = self.bring("dcp", "a", "--config", self.path("other.toml"), code=2)
        self.assertIn("size [16, 24]", error)
        self.assertIn("[16, 32]", error)
        with open(self.path("deeper.toml"), "w") as file:
            with open(self.config) as config:
                file.write(config.read().replace("layers = 2", "layers = 3"))
        error = self.bring("dcp", "a", "--config", self.path("deeper.toml"), code=2)
        self.assertIn("lacks 'layers.2.", error)
        self.assertFalse(os.path.exists(self.path("a")))
        error = self.bring("dcp", "run", "--config", self.config, code=20)
        self.assertIn("holds a run already", error)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    TESSERA = sys.argv[1]
    unittest.main(argv=sys.argv[:1])

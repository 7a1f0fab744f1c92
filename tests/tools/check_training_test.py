"""tools/check_training on made-up runs: check_training_test.py"""
import json
import pathlib
import subprocess
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools/check_training"


class CheckTrainingTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.corpus = pathlib.Path(self.folder.name)
        (self.corpus / "baseline.json").write_text(
            json.dumps({"trigram_nats_per_byte": 2.0}))
        (self.corpus / "train.txt").write_text("the cat sat on the mat")

    def judge(self, result):
        return subprocess.run([TOOL, self.corpus, result], capture_output=True,
                              text=True, timeout=60)

    def run_folder(self, losses, sample):
        run = self.corpus / "run"
        run.mkdir(exist_ok=True)
        rows = [{"step": 1, "loss": 9.0}]
        rows += [{"step": 2, "held_out_loss": loss} for loss in losses]
        (run / "metrics.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows))
        (run / "sample.txt").write_text(sample)
        return run

    def test_a_run_folder_is_judged_by_its_last_loss_and_its_sample(self):
        good = self.judge(self.run_folder([2.5, 1.6], "The cat sat on a"))
        self.assertEqual(good.returncode, 0, good.stdout + good.stderr)
        self.assertIn("0.800 of the", good.stdout)
        self.assertIn("4 of 4", good.stdout)
        high = self.judge(self.run_folder([1.6, 1.8], "the cat sat on a"))
        self.assertEqual(high.returncode, 1)
        self.assertIn("FAIL: held-out", high.stdout)
        noise = self.judge(self.run_folder([1.6], "xq the zz vv a"))
        self.assertEqual(noise.returncode, 1)
        self.assertIn("FAIL: 1 of 4", noise.stdout)

    def test_a_result_of_the_example_is_judged_too(self):
        result = self.corpus / "result.json"
        result.write_text(json.dumps(
            {"held_out_nats_per_byte": 1.6, "sample": "the mat sat a"}))
        self.assertEqual(self.judge(result).returncode, 0)


if __name__ == "__main__":
    unittest.main()

"""scripts/setup on a machine made of stand-ins: no network, no root, no apt.

PATH holds links to a few ordinary commands and small scripts in place of apt-get,
g++, id and python3. The stand-in for Python makes venvs and "installs" a LibTorch
that consists of the one header and the one library that scripts/setup looks at.
"""

import os
import pathlib
import shutil
import stat
import subprocess
import tempfile
import unittest

SETUP = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "setup"
ORDINARY = ("bash cat cp dirname env flock grep mkdir rm sleep tail touch tr"
            ).split()

PYTHON = """#!/bin/bash
torch="$(dirname "$0")/torch"
case "$*" in
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "-m pip "*)
    echo "pip $*" >> "$LOG"
    sleep 0.3
    mkdir -p "$torch/include/torch/headeronly" "$torch/lib"
    [ -z "${PIP_BREAKS:-}" ] || exit 1
    touch "$torch/lib/libtorch_cpu.so"
    printf '#define TORCH_VERSION_MAJOR 2\\n#define TORCH_VERSION_MINOR %s\\n' \
      "${MINOR:-11}" > "$torch/include/torch/headeronly/version.h" ;;
  *find_spec*) [ -d "$torch" ] && echo "$torch" ;;
  *"import numpy, torch"*) [ -e "$torch/lib/libtorch_cpu.so" ] ;;
  *importlib.metadata*) exit 1 ;;
esac
"""


class Setup(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        self.log = self.folder / "log"
        self.log.touch()
        for name in ORDINARY:
            (self.bin / name).symlink_to(shutil.which(name))
        for name in ("cmake", "ninja", "ccache", "g++"):
            self.command(name, "#!/bin/bash\ncat > /dev/null\n")
        self.command("id", "#!/bin/bash\necho ${USER_ID:-0}\n")
        self.command("apt-get", '#!/bin/bash\necho "apt-get $*" >> "$LOG"\n')
        self.command("python3", PYTHON)

    def command(self, name, text):
        path = self.bin / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def start(self, kind="cpu", **environment):
        return subprocess.Popen(
            [self.bin / "bash", SETUP, kind], text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": str(self.bin), "LOG": str(self.log),
                 "TESSERA_CACHE": str(self.folder / "cache")} | environment)

    def run_setup(self, kind="cpu", **environment):
        process = self.start(kind, **environment)
        output, _ = process.communicate(timeout=60)
        return process.returncode, output

    def succeed(self, kind="cpu", **environment):
        status, output = self.run_setup(kind, **environment)
        self.assertEqual(status, 0, output)
        return output

    def asked(self):
        return self.log.read_text().splitlines()

    def test_the_second_run_installs_nothing(self):
        self.assertIn("installing LibTorch 2.11.0 with pip", self.succeed())
        asked = self.asked()
        self.assertEqual(len(asked), 1)
        self.assertIn("--no-deps torch==2.11.0 nvidia-cuda-cupti==13.0.85 "
                      "nvidia-cuda-runtime==13.0.96", asked[0])
        self.assertNotIn("installing", self.succeed())
        self.assertEqual(self.asked(), asked)

    def test_full_brings_a_python_that_imports_torch(self):
        self.succeed("full")
        self.assertEqual(self.asked(), ["pip -m pip install torch==2.11.0 numpy"])
        self.succeed("cpu")  # which a full one serves too
        self.assertEqual(len(self.asked()), 1)

    def test_the_referees_of_single_tests_come_once(self):
        self.succeed("test")
        asked = self.asked()
        self.assertEqual(asked[1:], [
            "pip -m pip install tensorboard",
            "pip -m pip install transformers safetensors",
            "apt-get install -y --no-install-recommends sentencepiece",
            "apt-get install -y --no-install-recommends openmpi-bin",
            "apt-get install -y --no-install-recommends zsh",
            "apt-get install -y --no-install-recommends fish"])
        self.command("spm_encode", "#!/bin/bash\n")
        for name in ("mpirun.openmpi", "zsh", "fish"):
            self.command(name, "#!/bin/bash\n")
        self.succeed("test")
        self.assertEqual(self.asked(), asked)

    def test_a_referee_that_cannot_be_had_is_named_and_no_error(self):
        said = self.succeed("test", USER_ID="1000")
        self.assertIn("no SentencePiece", said)
        self.assertIn("no Open MPI", said)
        self.assertNotIn("apt-get", " ".join(self.asked()))

    def test_missing_packages_are_asked_of_apt_once(self):
        (self.bin / "cmake").unlink()
        self.assertIn("installing with apt: cmake", self.succeed())
        self.assertEqual(
            self.asked()[:2],
            ["apt-get update", "apt-get install -y --no-install-recommends "
             "cmake -o DPkg::Lock::Timeout=600"])

    def test_without_root_the_command_is_named(self):
        (self.bin / "cmake").unlink()
        status, output = self.run_setup(USER_ID="1000")
        self.assertEqual(status, 1)
        self.assertIn("error: packages are missing; as root run: apt-get "
                      "install -y --no-install-recommends cmake\n", output)
        self.assertEqual(self.asked(), [])

    def test_an_interrupted_installation_is_done_again(self):
        status, output = self.run_setup(PIP_BREAKS="1")
        self.assertEqual(status, 1)
        self.assertIn("error: pip could not install", output)
        self.assertIn("installing LibTorch", self.succeed())
        self.assertEqual(len(self.asked()), 2)

    def test_two_at_once_install_once(self):
        both = [self.start(), self.start()]
        outputs = [process.communicate(timeout=60)[0] for process in both]
        self.assertEqual([p.returncode for p in both], [0, 0], outputs)
        self.assertEqual(len(self.asked()), 1)

    def test_an_existing_libtorch_is_taken(self):
        self.succeed()
        root = self.folder / "cache/venv-torch-2.11.0-cpu/bin/torch"
        config = root / "share/cmake/Torch"
        config.mkdir(parents=True)
        for name, value in (("TESSERA_TORCH_ROOT", root), ("Torch_DIR", config),
                            ("TESSERA_PYTHON", root.parent / "python")):
            output = self.succeed(TESSERA_CACHE=str(self.folder / "other"),
                                  **{name: str(value)})
            self.assertIn(f"LibTorch: {root}\n", output)
        self.assertEqual(len(self.asked()), 1)

    def test_another_minor_version_that_is_named_is_refused(self):
        self.succeed()
        root = self.folder / "cache/venv-torch-2.11.0-cpu/bin/torch"
        header = root / "include/torch/headeronly/version.h"
        header.write_text(header.read_text().replace("11", "12"))
        status, output = self.run_setup(TESSERA_TORCH_ROOT=str(root))
        self.assertEqual(status, 1)
        self.assertIn(f"error: {root} holds no LibTorch 2.11.\n", output)
        status, output = self.run_setup(TESSERA_PYTHON=str(root.parent / "python"))
        self.assertEqual(status, 1)
        self.assertIn("has another torch than 2.11.\n", output)


if __name__ == "__main__":
    unittest.main()

"""Tessera as its users meet it: installed, as a folder of sources, static.

CTest sets TESSERA_SOURCE, TESSERA_BUILD (a finished build) and CMAKE_COMMAND.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

SOURCE = pathlib.Path(os.environ["TESSERA_SOURCE"])
BUILD = pathlib.Path(os.environ["TESSERA_BUILD"])
CMAKE = os.environ["CMAKE_COMMAND"]
HERE = pathlib.Path(__file__).resolve().parent


def cached(name):
    """The value of a variable of the finished build."""
    cache = (BUILD / "CMakeCache.txt").read_text()
    match = re.search(rf"^{name}:[A-Z]+=(.*)$", cache, re.M)
    return match.group(1) if match else ""


def same_build():
    """Options that make another build compile as the finished one does."""
    names = ("CMAKE_BUILD_TYPE", "CMAKE_CXX_FLAGS", "TESSERA_CUDA",
             "TESSERA_TORCH_ROOT", "TESSERA_UNITY")
    return [f"-D{name}={cached(name)}" for name in names]


def reuse_objects(tessera_build):
    launcher = (sys.executable, HERE / "reuse_objects.py", BUILD, tessera_build)
    return "-DCMAKE_CXX_COMPILER_LAUNCHER=" + ";".join(map(str, launcher))


def run(*command):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout


def configure(source, build, *options):
    return run(CMAKE, "-G", "Ninja", "-S", source, "-B", build, *options)


class Packaging(unittest.TestCase):
    def setUp(self):
        self.folder = BUILD / "packaging" / type(self).__name__.lower()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def succeed(self, result):
        status, output = result
        self.assertEqual(status, 0, output)
        return output

    def build(self, folder, *targets):
        self.succeed(run(CMAKE, "--build", folder, "-j1", *targets))

    def install(self, build, prefix):
        shutil.rmtree(prefix, ignore_errors=True)
        self.succeed(run(CMAKE, "--install", build, "--prefix", prefix))

    def assert_gate_works(self, consumer):
        """The consumer's layer is gathered on use, which the gate does."""
        self.assertRegex(
            self.succeed(run(consumer)),
            r"(?m)^consumer: Tessera 0\..*, at rest 1, right 1, learned 1$")


class Installed(Packaging):
    def test_a_consumer_links_the_shared_and_then_the_static_library(self):
        prefix, build = self.folder / "prefix", self.folder / "consumer"
        static = self.folder / "static"

        self.install(BUILD, prefix)
        self.build_consumer(build, prefix)
        self.assertEqual(self.libraries(prefix), ["libtessera.so"])
        self.assert_gate_works(build / "consumer")

        self.succeed(configure(
            SOURCE, static, *same_build(), "-DBUILD_SHARED_LIBS=OFF",
            "-DTESSERA_TESTS=OFF", "-DTESSERA_PROGRAMS=OFF",
            reuse_objects(static)))
        self.build(static)
        self.install(static, prefix)
        self.build_consumer(build, prefix)
        self.assertEqual(self.libraries(prefix), ["libtessera.a"])
        self.assert_gate_works(build / "consumer")

    def build_consumer(self, build, prefix):
        self.succeed(configure(SOURCE / "examples/consumer", build,
                               *same_build(), f"-DCMAKE_PREFIX_PATH={prefix}"))
        self.build(build)

    def libraries(self, prefix):
        names = [p.name for p in prefix.rglob("libtessera.*")]
        return sorted(n for n in names if re.fullmatch(r"libtessera\.\w+", n))


class Subdirectory(Packaging):
    def test_a_consumer_adds_tessera_as_a_folder_of_its_own(self):
        build = self.folder / "consumer"
        self.succeed(configure(
            SOURCE / "examples/consumer", build, *same_build(),
            f"-DTESSERA_SOURCE={SOURCE}", reuse_objects(build / "tessera")))
        self.build(build)
        self.assert_gate_works(build / "consumer")
        self.assertFalse(list(build.rglob("test_*")), "tests were built")


class Refusals(Packaging):
    def make_torch(self, minor, *files):
        """A folder that looks like LibTorch 2.`minor`."""
        root = self.folder / "torch"
        version = root / "include/torch/headeronly/version.h"
        version.parent.mkdir(parents=True)
        version.write_text("#define TORCH_VERSION_MAJOR 2\n"
                           f"#define TORCH_VERSION_MINOR {minor}\n"
                           "#define TORCH_VERSION_PATCH 0\n")
        c10d = root / "include/torch/csrc/distributed/c10d"
        c10d.mkdir(parents=True)
        for file in files:
            (c10d / file).touch()
        return root

    def assert_refused(self, sentence, *options, source=SOURCE):
        status, output = configure(source, self.folder / "build", *options)
        self.assertNotEqual(status, 0)
        self.assertIn(sentence, " ".join(output.split()))

    def test_another_minor_version(self):
        root = self.make_torch(10, "ProcessGroupGloo.hpp")
        self.assert_refused(
            f"Tessera needs LibTorch 2.11, but {root} holds 2.10.0.",
            f"-DTESSERA_TORCH_ROOT={root}")

    def test_a_torch_without_gloo(self):
        root = self.make_torch(11)
        self.assert_refused(
            "Tessera needs a LibTorch that was built with Gloo, but "
            f"{root} was built without.", f"-DTESSERA_TORCH_ROOT={root}")

    def test_cuda_with_a_torch_without_it(self):
        root = self.make_torch(11, "ProcessGroupGloo.hpp")
        self.assert_refused(
            "TESSERA_CUDA=ON needs a LibTorch that was built with CUDA and "
            f"NCCL, but {root} was built without.",
            f"-DTESSERA_TORCH_ROOT={root}", "-DTESSERA_CUDA=ON")

    def test_a_folder_without_torch(self):
        self.assert_refused("Tessera: no LibTorch 2.11 found;",
                            f"-DTESSERA_TORCH_ROOT={self.folder}")

    def test_an_installed_tessera_refuses_another_minor_version_too(self):
        root = self.make_torch(12, "ProcessGroupGloo.hpp")
        prefix = self.folder / "prefix"
        self.succeed(run(CMAKE, "--install", BUILD, "--prefix", prefix))
        self.assert_refused(
            f"Tessera needs LibTorch 2.11, but {root} holds 2.12.0.",
            f"-DTESSERA_TORCH_ROOT={root}", f"-DCMAKE_PREFIX_PATH={prefix}",
            source=SOURCE / "examples/consumer")


if __name__ == "__main__":
    unittest.main()

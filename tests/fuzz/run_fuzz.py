"""Fuzzes one parser for a few seconds, from its corpus and from real files.

    python run_fuzz.py PROGRAM CORPUS FIXTURES [SECONDS]
"""

import pathlib
import subprocess
import sys
import tempfile


END = b"PK\x05\x06"  # of a zip file, and 18 bytes more
END_BYTES = 22


def items_of(data):
    """The items of a data file, each a whole zip file."""
    while (at := data.find(END)) >= 0:
        end = at + END_BYTES
        yield data[:end]
        data = data[end:]


def seeds(parser, fixtures):
    """Real files, cut to what one input of the parser is."""
    for path in sorted(fixtures.glob("*/*metadata")):
        if path.stat().st_size < 20000:
            yield path.read_bytes()
    if parser == "item":
        for name in ("handmade_minimal", "plain_all_dtypes"):
            for path in sorted(fixtures.glob(f"{name}/*.distcp")):
                yield from items_of(path.read_bytes())


def main():
    program, corpus, fixtures = map(pathlib.Path, sys.argv[1:4])
    seconds = sys.argv[4] if len(sys.argv) > 4 else "7"
    with tempfile.TemporaryDirectory() as folder:
        found = pathlib.Path(folder, "found")
        real = pathlib.Path(folder, "real")
        found.mkdir()
        real.mkdir()
        for number, data in enumerate(seeds(program.name.removeprefix("fuzz_"), fixtures)):
            (real / str(number)).write_bytes(data)
        command = [program, found, real, f"-max_total_time={seconds}", "-max_len=20000"]
        command += [corpus] if corpus.is_dir() else []
        command += ["-rss_limit_mb=2000", "-timeout=10", "-print_final_stats=1"]
        sys.exit(subprocess.run(command, cwd=folder, check=False).returncode)


if __name__ == "__main__":
    main()

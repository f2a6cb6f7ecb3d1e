"""Measures the peak memory of `npmatch predict` over many files, which must not grow with their number.

    python scripts/measure_predict_memory.py --files 1000 10000 100000

One small image is linked many times; each number of files is predicted in its own process.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

PROGRAM = """
import resource, sys
from npmatch.cli import main
code = main(["predict", *sys.argv[1:], "--device", "cpu"])
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
sys.exit(code)
"""


def main() -> int:
    """Measures each number of files and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, nargs="+", default=[1000, 10_000, 100_000], help="Numbers of files.")
    parser.add_argument("--format", choices=["csv", "jsonl", "parquet"], default="csv", help="Format of the output.")
    parser.add_argument("--run", type=Path, help="Folder of a finished run; default: a few steps on digits.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="npmatch-memory-") as place:
        run = options.run or train_small(Path(place) / "run")
        Image.effect_noise((32, 32), 60).save(Path(place) / "picture.png")
        peaks = {n: measure(Path(place), run, n, options.format) for n in options.files}
    few, many = min(peaks), max(peaks)
    print(f"{many:,} files need {peaks[many] / peaks[few]:.2f} times the memory of {few:,}")
    return 0


def train_small(folder: Path) -> Path:
    """Trains a model for a few steps in its own process and returns its folder."""
    settings = ["training.iterations=5", "training.batch=8", "training.unlabeled_ratio=1", "backbone.width=4"]
    words = ["train", "digits-40", *settings, "--out", str(folder), "--device", "cpu", "--quiet"]
    subprocess.run([sys.executable, "-m", "npmatch", *words], check=True, stdout=subprocess.DEVNULL)
    return folder


def measure(place: Path, run: Path, files: int, form: str) -> float:
    """Predicts `files` links to one image and returns the peak memory in MiB."""
    folder = place / f"links-{files}"
    for number in range(files):
        part = folder / f"{number // 1000:05d}"
        if number % 1000 == 0:
            part.mkdir(parents=True)
            shutil.copy(place / "picture.png", part / "000.png")  # file systems allow about 60,000 links to a file
        else:
            os.link(part / "000.png", part / f"{number % 1000:03d}.png")
    started = time.monotonic()
    out = place / f"out-{files}.{form}"
    words = [sys.executable, "-c", PROGRAM, str(run), str(folder), "-o", str(out)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    seconds = time.monotonic() - started
    peak = int(done.stdout.split("peak")[-1]) / 1024
    print(f"{files:>9,} files: peak {peak:6.0f} MiB, {files / seconds:6.0f} files/s", flush=True)
    return peak


if __name__ == "__main__":
    sys.exit(main())

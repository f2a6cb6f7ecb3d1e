"""Measures `npmatch predict` over many files: in one process, and on Ray clusters of a few machines with one core each.

    python scripts/measure_cluster.py --files 20000 --machines 1 2

The machines are this machine, so it should have as many idle cores. The tables must be equal to the last byte.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

PROGRAM = """
import resource, sys
from npmatch.cli import main
code = main(["predict", *sys.argv[1:], "--device", "cpu"])
used = resource.getrusage(resource.RUSAGE_SELF)
print("used", used.ru_utime + used.ru_stime, used.ru_maxrss)
sys.exit(code)
"""


def main() -> int:
    """Measures one process and each cluster, and prints a line for each; exit code 1 if their tables differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=20_000, help="Number of files.")
    parser.add_argument("--side", type=int, default=256, help="Width and height of the images, in pixels.")
    parser.add_argument("--machines", type=int, nargs="+", default=[1, 2], help="Numbers of machines.")
    parser.add_argument("--run", type=Path, help="Folder of a finished run; default: a few steps on digits.")
    options = parser.parse_args()
    # Ray reads these once, when it is imported. It reports to nobody, and takes orders from those who know the token.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="npmatch-cluster-") as place:
        run = options.run or train_small(Path(place) / "run")
        photos = save_photos(Path(place) / "photos", options.files, options.side)
        words = [str(run), str(photos), "-o"]
        expected = measure("one process", options.files, [*words, f"{place}/one.csv"])
        equal = [
            on_cluster(machines, options.files, [*words, f"{place}/cluster-{machines}.csv"]) == expected
            for machines in options.machines
        ]
    print("the tables are equal" if all(equal) else "the tables DIFFER")
    return 0 if all(equal) else 1


def train_small(folder: Path) -> Path:
    """Trains a model for a few steps in its own process and returns its folder."""
    settings = ["training.iterations=5", "training.batch=8", "training.unlabeled_ratio=1", "backbone.width=4"]
    words = ["train", "digits-40", *settings, "--out", str(folder), "--device", "cpu", "--quiet"]
    subprocess.run([sys.executable, "-m", "npmatch", *words], check=True, stdout=subprocess.DEVNULL)
    return folder


def save_photos(folder: Path, files: int, side: int) -> Path:
    """Saves JPEG files of noise, no two alike, and returns their folder."""
    rng = np.random.default_rng(0)
    for number in range(files):
        path = folder / f"{number // 1000:05d}" / f"{number % 1000:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(rng.integers(256, size=(16, 16, 3), dtype=np.uint8))
        small.resize((side, side)).save(path)
    return folder


def on_cluster(machines: int, files: int, words: list[str]) -> bytes:
    """Starts a cluster, predicts on it, and shuts it down; returns the table."""
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 1, "object_store_memory": 200 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
    try:
        for _ in range(machines - 1):
            cluster.add_node(**size)
        return measure(f"Ray, {machines} × 1 core", files, [*words, "--cluster", f"ray:{cluster.address}"])
    finally:
        cluster.shutdown()


def measure(name: str, files: int, words: list[str]) -> bytes:
    """Predicts in a process of its own, prints its times and its peak memory, and returns the table."""
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], check=True, stdout=subprocess.PIPE, text=True)
    seconds, (cpu, peak) = time.monotonic() - started, map(float, done.stdout.split("used")[-1].split())
    print(
        f"{name:>16}: {seconds:4.0f} s, {files / seconds:4.0f} files/s; the command itself: {cpu:4.0f} s of a core, "
        f"peak {peak / 1024:4.0f} MiB",
        flush=True,
    )
    return Path(words[words.index("-o") + 1]).read_bytes()


if __name__ == "__main__":
    sys.exit(main())

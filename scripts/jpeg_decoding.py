"""Measures what decoding large JPEGs at reduced size saves and changes, on scikit-learn's two photographs.

    python scripts/jpeg_decoding.py

Prints, for each size of photograph and stored side, the time to decode it at full size and our way, and the difference
of pixels in levels of 255, on average and at most.
"""

from __future__ import annotations

import argparse
import io
import time
from statistics import median

from PIL import Image
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_sample_images

from npmatch.data import decode_image, to_tensor

PHOTOGRAPHS = [(4000, 3000), (1600, 1200), (500, 375)]
SIDES = [64, 256]
REPEATS = 5


def encode(picture: Image.Image, size: tuple[int, int]) -> bytes:
    """The picture, resized to width × height, as a JPEG file."""
    file = io.BytesIO()
    picture.resize(size, Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


def main() -> None:
    """Prints a table with one row for each size and side."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    pictures = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    table = Table("photograph", "side", "full size, ms", "ours, ms", "mean difference", "largest")
    for size in PHOTOGRAPHS:
        files = [encode(picture, size) for picture in pictures]
        for side in SIDES:
            full, ours, means, largest = [], [], [], []
            for file in files * REPEATS:
                started = time.perf_counter()
                expected = to_tensor(Image.open(io.BytesIO(file)), side)
                between = time.perf_counter()
                decoded = decode_image(io.BytesIO(file), side)
                full.append(between - started)
                ours.append(time.perf_counter() - between)
                difference = (expected.int() - decoded.int()).abs().float()
                means.append(float(difference.mean()))
                largest.append(float(difference.max()))
            times = (f"{1000 * median(values):.1f}" for values in (full, ours))
            table.add_row("×".join(map(str, size)), str(side), *times, f"{median(means):.2f}", f"{max(largest):.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()

"""Fuzz test of image decoding: mutated files of every format go through decode_image, check-data and predict.

    python scripts/fuzz_images.py --cases 20000

Each case must give an image, or an error in one line that names the file, within a time limit. Any other exception or a
hang is printed with the number of the case, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

import npmatch
from npmatch.cli import main as npmatch_main
from npmatch.data.images import FORMATS, decode_image
from npmatch.errors import NPMatchError

LIMIT = 10  # seconds allowed for one case
BATCH = 200  # cases in one call of check-data and predict
Mutation = Callable[[bytearray, random.Random], bytearray]


def real_files(draws: random.Random) -> dict[str, bytes]:
    """Name → content of one file of every format in several modes."""
    noise = np.random.default_rng(draws.randrange(2**32)).integers(0, 256, (37, 53, 3), dtype=np.uint8)
    picture = Image.fromarray(noise).resize((80, 60))
    files = {}
    for form in FORMATS:
        for mode in ("RGB", "L", "P", "RGBA", "CMYK", "1", "I;16"):
            buffer = io.BytesIO()
            image = Image.fromarray(noise[..., 0].astype(np.uint16) * 257) if mode == "I;16" else picture.convert(mode)
            try:
                image.save(buffer, form)
            except (OSError, ValueError):  # the format does not support this mode
                continue
            files[f"{form}-{mode}"] = buffer.getvalue()
    for form in ("GIF", "TIFF", "WEBP", "PNG"):
        buffer = io.BytesIO()
        picture.save(buffer, form, save_all=True, append_images=[picture.rotate(90), picture.rotate(180)])
        files[f"{form}-animated"] = buffer.getvalue()
    return files


def flip(content: bytearray, draws: random.Random) -> bytearray:
    """Flips a few bits."""
    for _ in range(draws.randint(1, 16)):
        content[draws.randrange(len(content))] ^= 1 << draws.randrange(8)
    return content


def flip_header(content: bytearray, draws: random.Random) -> bytearray:
    """Overwrites bytes of the header, which holds sizes, offsets and counts."""
    for _ in range(draws.randint(1, 8)):
        content[draws.randrange(min(len(content), 64))] = draws.choice([0, 1, 127, 128, 255, draws.randrange(256)])
    return content


def cut(content: bytearray, draws: random.Random) -> bytearray:
    """Cuts off the end."""
    return content[: draws.randrange(len(content))]


def remove(content: bytearray, draws: random.Random) -> bytearray:
    """Removes a piece."""
    start = draws.randrange(len(content))
    return content[:start] + content[start + draws.randint(1, 200) :]


def repeat(content: bytearray, draws: random.Random) -> bytearray:
    """Repeats a piece twice or a hundred times."""
    start = draws.randrange(len(content))
    piece = content[start : start + draws.randint(1, 100)]
    return content[:start] + piece * draws.choice([2, 100]) + content[start:]


def fill(content: bytearray, draws: random.Random) -> bytearray:
    """Fills a piece with zeros, ones or random bytes."""
    start = draws.randrange(len(content))
    length = min(draws.randint(1, 200), len(content) - start)
    content[start : start + length] = draws.choice([bytes(length), b"\xff" * length, draws.randbytes(length)])
    return content


MUTATIONS: list[Mutation] = [flip, flip_header, cut, remove, repeat, fill]


def mutate(files: dict[str, bytes], draws: random.Random) -> tuple[str, bytes]:
    """One case: the name of the original file, and the mutated bytes."""
    kind = draws.choice(sorted(files))
    content = bytearray(files[kind])
    for _ in range(draws.choice([1, 1, 1, 2, 4])):
        if content:
            content = draws.choice(MUTATIONS)(content, draws)
    return kind, bytes(content)


class TooSlowError(Exception):
    """A case took longer than the limit."""


def out_of_time(signum: int, frame: object) -> None:
    """Signal handler of the alarm."""
    raise TooSlowError


def try_decoding(path: Path, outcomes: Counter[str]) -> str | None:
    """Decodes one file and counts the outcome; returns a line if it is not an allowed one."""
    signal.alarm(LIMIT)
    try:
        image = decode_image(path, 8, 1)
        outcomes["decoded"] += 1
        return None if image.shape == (1, 8, 8) else f"shape {tuple(image.shape)}"
    except NPMatchError as error:
        outcomes["refused in one line"] += 1
        return None if path.name in str(error) and "\n" not in str(error) else f"says {error}"
    except TooSlowError:
        return f"took over {LIMIT} s"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)


def try_verbs(run: Path, folder: Path, cases: int) -> list[str]:
    """Runs check-data and predict on a folder of cases; returns a line for each problem."""
    problems = []
    signal.alarm(LIMIT * 30)
    try:
        out = folder.parent / "out.jsonl"
        code = npmatch_main(["predict", str(run), str(folder), "-o", str(out), "--device", "cpu"])
        if code not in (0, 1) or (code == 0 and len(out.read_text().splitlines()) != cases):
            problems.append(f"predict ended with {code}")
        if any(not 0 <= json.loads(line)["confidence"] <= 1.0001 for line in out.read_text().splitlines()):
            problems.append("predict wrote a confidence outside [0, 1]")
        code = npmatch_main(["check-data", str(folder.parent)])
        if code not in (0, 1, 2):
            problems.append(f"check-data ended with {code}")
    except BaseException as error:
        problems.append(f"{type(error).__name__}: {error}")
    finally:
        signal.alarm(0)
    return problems


def train_small(folder: Path) -> Path:
    """Trains a model for a few steps and returns its folder."""
    settings = {"training.iterations": 5, "training.batch": 8, "training.unlabeled_ratio": 1, "backbone.width": 4}
    return npmatch.fit("digits-40", out=folder, quiet=True, device="cpu", overrides=settings).folder


def main() -> int:
    """Runs the cases and prints the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000, help="Number of mutated files.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the mutations.")
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, out_of_time)
    outcomes, formats, problems = Counter[str](), Counter[str](), list[str]()
    started, slowest = time.monotonic(), 0.0
    with tempfile.TemporaryDirectory(prefix="npmatch-fuzz-") as place:
        run, files = train_small(Path(place) / "run"), real_files(random.Random(options.seed))
        for start in range(0, options.cases, BATCH):
            folder = Path(place) / f"cases-{start}" / "unlabeled"
            folder.mkdir(parents=True)
            numbers = range(start, min(start + BATCH, options.cases))
            for number in numbers:
                kind, content = mutate(files, random.Random(f"{options.seed}-{number}"))
                formats[kind.split("-")[0]] += 1
                path = folder / f"case-{number}.{kind.split('-')[0].lower().replace('jpeg', 'jpg')}"
                path.write_bytes(content)
                begun = time.monotonic()
                if problem := try_decoding(path, outcomes):
                    problems.append(f"case {number} ({kind}): {problem}")
                slowest = max(slowest, time.monotonic() - begun)
            silence = io.StringIO()
            spoken, sys.stdout, sys.stderr = (sys.stdout, sys.stderr), silence, silence
            found = try_verbs(run, folder, len(numbers))
            sys.stdout, sys.stderr = spoken
            problems += [f"cases {start}–{numbers[-1]}: {problem}" for problem in found]
            if "Traceback" in silence.getvalue():
                problems.append(f"cases {start}–{numbers[-1]}: a traceback was printed")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{options.cases} cases, seed {options.seed}: {dict(formats)}")
    print(f"{dict(outcomes)}; slowest {slowest:.2f} s; {time.monotonic() - started:.0f} s in all; peak {peak:.0f} MiB")
    print("\n".join(problems) or "no crash, no hang, no traceback")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

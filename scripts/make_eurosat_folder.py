"""Lays out EuroSAT (RGB, 64×64 JPEG, ten classes) as a user's folder: labeled/<class>/, unlabeled/ and test/<class>/.

    python scripts/make_eurosat_folder.py EuroSAT_RGB.zip DIR [--labels 4] [--per-class 600] [--seed 0]

The archive is the data set's own, a zip or a tar with <class>/<class>_<number>.jpg somewhere inside (Helber et al.,
2019, MIT licence). Of each class the first files by name are taken; the first hundred of them are the test, whatever
the seed.
"""

from __future__ import annotations

import argparse
import random
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

TEST = 100  # images of each class


def pictures(archive: Path) -> Iterator[tuple[str, str, bytes]]:
    """The class, the file name and the content of every picture in the archive."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for name in packed.namelist():
                if name.endswith(".jpg"):
                    yield PurePosixPath(name).parent.name, PurePosixPath(name).name, packed.read(name)
        return
    with tarfile.open(archive) as packed:
        for member in packed:
            file = packed.extractfile(member) if member.name.endswith(".jpg") else None
            if file is not None:
                yield PurePosixPath(member.name).parent.name, PurePosixPath(member.name).name, file.read()


def main() -> None:
    """Draws the labelled images of each class by a seed; all others but the test are unlabelled."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path, help="the data set's archive")
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder to write, which must not exist")
    parser.add_argument("--labels", type=int, default=4, help="labelled images of each class (default: 4)")
    parser.add_argument("--per-class", type=int, default=600, help="images of each class in all (default: 600)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw (default: 0)")
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    by_class: dict[str, list[tuple[str, bytes]]] = {}
    for name, file, content in pictures(options.archive):
        by_class.setdefault(name, []).append((file, content))
    for name, files in sorted(by_class.items()):
        files = sorted(files)[: options.per_class]
        test, train = files[:TEST], files[TEST:]
        random.Random(f"{options.seed} {name}").shuffle(train)
        parts = {f"test/{name}": test, f"labeled/{name}": train[: options.labels], "unlabeled": train[options.labels :]}
        for folder, part in parts.items():
            (options.folder / folder).mkdir(parents=True, exist_ok=True)
            for file, content in part:
                (options.folder / folder / file).write_bytes(content)


if __name__ == "__main__":
    main()

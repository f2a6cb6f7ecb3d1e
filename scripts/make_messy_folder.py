"""Writes a folder of photos with more than thirty kinds of damage that real folders have.

    python scripts/make_messy_folder.py DIR [--source digits|fashion-mnist] [--unlabeled 600] [--seed 0]

Writes DIR/labeled, DIR/unlabeled and DIR/test. Next to DIR, because they are not part of the data, it writes
damage.json, which lists for each kind of damage the finding that `npmatch check-data` should report and the files that
have it; truth.csv (path,label), the true class of every unlabelled image; and held-out/<class>/, further labelled
images.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from npmatch.data import load_dataset

PER_CLASS, TEST_PER_CLASS, HELD_OUT_PER_CLASS = 8, 20, 20  # labelled, test and held-out images
SIDES = (24, 28, 32, 40, 48, 64, 96)
LONELY = -1  # index of the class that gets a single label: the last one


class Pictures:
    """Small grey images by class, turned into colour photos of any size; each is used once."""

    def __init__(self, source: str, seed: int) -> None:
        """`source` is a data source whose images are in memory."""
        dataset = load_dataset(source)
        self.pixels = dataset.train.images.take(torch.arange(len(dataset.train)))[:, 0].numpy()
        self.labels = dataset.train.labels.tolist()
        self.classes = [name.replace("/", "-") for name in dataset.class_names]
        self.random = random.Random(seed)
        order = self.random.sample(range(len(self.labels)), len(self.labels))
        self.waiting = {label: [i for i in order if self.labels[i] == label] for label in range(len(self.classes))}

    def take(self, label: int, side: int | None = None) -> Image.Image:
        """The next image of a class, as a colour photo."""
        grey = Image.fromarray(self.pixels[self.waiting[label].pop()])
        side = side or self.random.choice(SIDES)
        width, height = (side + self.random.randrange(side // 4) for _ in "wh")
        grey = grey.resize((width, height), Image.Resampling.BICUBIC)
        dark, light = ([self.random.randrange(low, low + 60) for _ in "rgb"] for low in (0, 190))
        share = np.asarray(grey, dtype=np.float32)[..., None] / 255
        return Image.fromarray((np.array(dark) * (1 - share) + np.array(light) * share).astype(np.uint8))


class MessyFolder:
    """The folder, a record of its damage, and the true labels."""

    def __init__(self, root: Path, pictures: Pictures) -> None:
        """`root` must not exist yet."""
        self.root, self.pictures = root, pictures
        self.damage: dict[str, dict[str, object]] = {}
        self.truth: dict[str, str] = {}

    def label(self) -> int:
        """A random class that has enough labels to lose some."""
        return self.pictures.random.randrange(len(self.pictures.classes) - 1)

    def place(self, part: str, label: int, name: str) -> Path:
        """The path of a new file; the true label of an unlabelled one is recorded."""
        name_of_class = self.pictures.classes[label]
        inside = f"unlabeled/{name}" if part == "unlabeled" else f"{part}/{name_of_class}/{name}"
        if part == "unlabeled":
            self.truth[inside] = name_of_class
        path = self.root / inside
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def note(self, damage: str, reported_as: str, *paths: Path) -> None:
        """Records a kind of damage, the finding that check-data should report, and the files."""
        entry = self.damage.setdefault(damage, {"reported_as": reported_as, "files": []})
        entry["files"] += [path.relative_to(self.root).as_posix() for path in paths]  # type: ignore[operator]


def write_sound_images(messy: MessyFolder, unlabeled: int) -> None:
    """Writes the undamaged images, of various sizes."""
    pictures = messy.pictures
    for label in range(len(pictures.classes)):
        lonely = label == len(pictures.classes) - 1
        for i in range(1 if lonely else PER_CLASS):
            pictures.take(label).save(messy.place("labeled", label, f"photo {i}.jpg" if i == 1 else f"{i}.jpg"))
        for i in range(TEST_PER_CLASS):
            pictures.take(label).save(messy.place("test", label, f"t{i}.png"))
        for _ in range(unlabeled // len(pictures.classes)):
            name = f"{pictures.random.randrange(16**8):08x}.jpg"  # does not reveal the class
            pictures.take(label).save(messy.place("unlabeled", label, name), quality=92)
    messy.damage["mixed sizes"] = {"reported_as": "sizes", "files": []}
    messy.damage["a class with one label"] = {"reported_as": "few-labels", "files": [pictures.classes[LONELY]]}


Damage = Callable[[MessyFolder], None]
DAMAGES: list[Damage] = []


def damage(write: Damage) -> Damage:
    """Decorator that registers a function that damages a folder."""
    DAMAGES.append(write)
    return write


@damage
def unusual_pixels(messy: MessyFolder) -> None:
    """Writes images with unusual pixel formats and shapes."""
    take, place, label = messy.pictures.take, messy.place, messy.label()

    def save(name: str, kind: str, image: Image.Image, part: str = "unlabeled", **options: object) -> None:
        path = place(part, label, name)
        image.save(path, **options)
        messy.note(name.rsplit(".", 1)[0].replace("_", " "), kind, path)

    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees to show it upright
    save("EXIF_rotation.jpg", "exif-rotated", take(label).transpose(Image.Transpose.ROTATE_90), "labeled", exif=exif)
    save("greyscale.png", "greyscale", take(label).convert("L"), "labeled")
    save("CMYK.jpg", "cmyk", take(label).convert("CMYK"))
    deep = np.asarray(take(label).convert("L"), dtype=np.uint16) * 257
    save("16-bit.png", "16-bit", Image.fromarray(deep), "labeled")
    clear = take(label).convert("RGBA")
    clear.putalpha(clear.convert("L"))
    save("transparent.png", "transparent", clear)
    save("palette.png", "palette", take(label).quantize(16))
    frames = [take(label, side=40).resize((40, 40)) for _ in range(3)]
    save("animated.gif", "animated", frames[0], save_all=True, append_images=frames[1:], duration=100)
    save("floating_point.tiff", "float-pixels", take(label).convert("F"))
    strip = take(label, side=32)
    save("long_strip.png", "strip", strip.resize((strip.width * 40, strip.height)))
    save("one_pixel_high.png", "strip", strip.resize((300, 1)))


@damage
def broken_files(messy: MessyFolder) -> None:
    """Writes files that cannot be decoded."""
    take, label = messy.pictures.take, messy.label()

    def cut(name: str, part: str, share: float) -> None:
        path = messy.place(part, label, name)
        take(label, side=96).save(path)
        whole = path.read_bytes()
        path.write_bytes(whole[: int(share * len(whole))])
        messy.note(f"truncated {path.suffix[1:].upper()}", "truncated", path)

    cut("cut short.jpg", "labeled", 0.6)
    cut("cut-short.jpg", "unlabeled", 0.9)
    cut("cut-short.jpg", "test", 0.5)
    cut("cut-short.png", "unlabeled", 0.7)
    for part in ("labeled", "unlabeled"):
        empty = messy.place(part, label, "empty.jpg")
        empty.touch()
        messy.note("zero-byte file", "empty-file", empty)
    text = messy.place("unlabeled", label, "notes.jpg")
    text.write_text("milk, eggs, bread\n")
    messy.note("text file named .jpg", "not-an-image", text)
    bomb = messy.place("unlabeled", label, "huge.png")
    bomb.write_bytes(png_header(100_000, 100_000))
    messy.note("header of a huge picture", "huge", bomb)
    png = messy.place("labeled", label, "really-a-png.jpg")
    take(label).save(png, format="PNG")
    messy.note("PNG named .jpg", "wrong-extension", png)


def png_header(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header claims width × height pixels."""
    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", size), (b"IDAT", zlib.compress(b"\0")), (b"IEND", b""))
    packed = (struct.pack(">I", len(c)) + name + c + struct.pack(">I", zlib.crc32(name + c)) for name, c in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


@damage
def duplicates(messy: MessyFolder) -> None:
    """Writes duplicates, near-duplicates, leaks and images with two labels."""
    take, place = messy.pictures.take, messy.place
    label = messy.label()
    other = (label + 1) % (len(messy.pictures.classes) - 1)

    def copies(damage: str, kind: str, *paths: Path) -> None:
        take(label, side=48).save(paths[0])
        for path in paths[1:]:
            shutil.copyfile(paths[0], path)
        messy.note(damage, kind, *paths)

    copies(
        "exact duplicate, labelled and unlabelled", "duplicate",
        place("labeled", label, "twice.png"), place("unlabeled", label, "IMG_0001 (copy).png"),
    )  # fmt: skip
    copies(
        "training image that is a test image", "leak",
        place("test", label, "leaked.png"), place("labeled", label, "leaked.png"), place("unlabeled", label, "lk.png"),
    )  # fmt: skip
    copies(
        "one image under two labels", "two-labels",
        place("labeled", label, "undecided.png"), place("labeled", other, "undecided.png"),
    )  # fmt: skip
    for damage, kind, part in (
        ("near-duplicate", "near-duplicate", "unlabeled"),
        ("test image saved again for training", "near-leak", "test"),
    ):
        original, again = place(part, label, "original.png"), place("unlabeled", label, f"{kind} again.jpg")
        picture = take(label, side=64)
        picture.save(original)
        picture.resize((picture.width * 3 // 4, picture.height * 3 // 4)).save(again, quality=60)
        messy.note(damage, kind, original, again)


@damage
def odd_names(messy: MessyFolder) -> None:
    """Writes files with unusual names."""
    names = {
        "decomposed Unicode": "cafe\u0301 \u65e5\u672c.png",
        "blanks": "  two  blanks .png",
        "quotes": "\"it's\" 'here'.png",
        "leading dash": "-rf.png",
        "newline": "one\ntwo.png",
        "comma and semicolon": "a,b;c.png",
        "formula": "=1+1;.png",
    }
    for damage, name in names.items():
        label = messy.label()
        path = messy.place("unlabeled" if damage != "quotes" else "labeled", label, name)
        messy.pictures.take(label).save(path, format="PNG")
        messy.note(f"name with {damage}", "odd-name", path)


@damage
def odd_places(messy: MessyFolder) -> None:
    """Writes nested folders, hidden files, links and special files."""
    take, place, label = messy.pictures.take, messy.place, messy.label()
    nested = place("labeled", label, "holiday/2019/beach.jpg")
    take(label).save(nested)
    messy.note("folders inside a class folder", "nested", nested)
    deep = place("unlabeled", label, "a/b/c/d/deep.jpg")
    take(label).save(deep)
    stray = messy.root / "labeled" / "stray.png"
    take(label).save(stray)
    messy.note("image outside of the class folders", "no-class-folder", stray)
    for name, kind in ((".DS_Store", "hidden"), ("._1.jpg", "hidden"), ("Thumbs.db", "other-file")):
        path = messy.root / "unlabeled" / name
        path.write_bytes(b"\0\0\0\1Bud1")
        messy.note(f"{kind} that a system left behind", kind, path)
    loop = messy.root / "unlabeled" / "a" / "circle"
    loop.symlink_to(messy.root / "unlabeled", target_is_directory=True)
    messy.note("link to a folder above", "linked-folder", loop)
    itself = messy.root / "labeled" / messy.pictures.classes[label] / "itself.jpg"
    itself.symlink_to(itself.name)
    messy.note("link to itself", "unreadable", itself)
    nowhere = messy.root / "unlabeled" / "nowhere.jpg"
    nowhere.symlink_to("gone.jpg")
    messy.note("link to nothing", "missing", nowhere)
    pipe = messy.root / "unlabeled" / "pipe.jpg"
    os.mkfifo(pipe)
    messy.note("named pipe", "unreadable", pipe)
    if os.geteuid() != 0:  # root may read every file
        secret = place("unlabeled", label, "secret.jpg")
        take(label).save(secret)
        secret.chmod(0)
        messy.note("file without permission", "unreadable", secret)


def make_messy_folder(root: Path, source: str = "digits", unlabeled: int = 600, seed: int = 0) -> MessyFolder:
    """Writes the folder and the files next to it."""
    messy = MessyFolder(root, Pictures(source, seed))
    root.mkdir(parents=True)
    write_sound_images(messy, unlabeled)
    for write in DAMAGES:
        write(messy)
    write_held_out(root.parent / "held-out", messy.pictures)
    damage = json.dumps(messy.damage, indent=2, ensure_ascii=False) + "\n"
    (root.parent / "damage.json").write_text(damage, encoding="utf-8")
    with open(root.parent / "truth.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("path", "label"), *rows(messy)])
    return messy


def rows(messy: MessyFolder) -> Iterator[tuple[str, str]]:
    """Path and true class of every unlabelled image."""
    yield from ((os.path.abspath(messy.root / name), label) for name, label in sorted(messy.truth.items()))


def write_held_out(folder: Path, pictures: Pictures) -> None:
    """Writes undamaged labelled images that are not part of the data, for calibration."""
    for label, name in enumerate(pictures.classes):
        (folder / name).mkdir(parents=True)
        for i in range(HELD_OUT_PER_CLASS):
            pictures.take(label).save(folder / name / f"{i}.png")


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", metavar="DIR", type=Path, help="Folder to write; it must not exist.")
    parser.add_argument("--source", default="digits", help="digits, or fashion-mnist if $NPMATCH_DATA contains it")
    parser.add_argument("--unlabeled", type=int, default=600, help="Number of undamaged unlabelled images.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of all random choices.")
    options = parser.parse_args()
    if options.dir.exists():
        parser.error(f"{options.dir}: already exists")
    messy = make_messy_folder(options.dir, options.source, options.unlabeled, options.seed)
    print(f"{options.dir}: {len(messy.damage)} kinds of damage, listed in {options.dir.parent / 'damage.json'}")


if __name__ == "__main__":
    main()

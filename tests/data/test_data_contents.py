"""Files that contain a known image are recognised under any path, and no others are."""

import os

import torch
from PIL import Image

from few_photos import save_photo
from npmatch.data import ArrayImages, FileImages
from npmatch.data.contents import KnownImages


def test_a_file_is_known_by_its_bytes_alone(tmp_path):
    known = [tmp_path / f"{number}.bmp" for number in range(3)]  # all of one size
    for number, file in enumerate(known):
        save_photo(file, seed=number)
    save_photo(tmp_path / "other.bmp", seed=9)
    (tmp_path / "link.bmp").symlink_to(known[1])
    (tmp_path / "copy.bmp").write_bytes(known[2].read_bytes())
    os.link(known[0], tmp_path / "hard.bmp")
    os.mkfifo(tmp_path / "pipe.bmp")
    images = KnownImages(FileImages([*known, tmp_path / "gone.bmp"], 8), ["zero", "one", "two", "gone"])
    found = {file.name: images.name_of(file) for file in sorted(tmp_path.iterdir())}
    assert found == {
        "0.bmp": "zero", "1.bmp": "one", "2.bmp": "two", "copy.bmp": "two", "hard.bmp": "zero", "link.bmp": "one",
        "other.bmp": None, "pipe.bmp": None,
    }  # fmt: skip
    assert images.name_of(tmp_path / "gone.bmp") is None


def test_images_in_memory_are_known_by_their_pixels(tmp_path):
    pixels = torch.arange(2 * 64, dtype=torch.uint8).view(2, 1, 8, 8)
    images = KnownImages(ArrayImages(pixels), ["first", "second"])
    Image.fromarray(pixels[1, 0].numpy()).save(tmp_path / "saved.png")
    Image.fromarray(pixels[1, 0].numpy() + 1).save(tmp_path / "other.png")
    (tmp_path / "text.png").write_text("no image")
    found = [images.name_of(tmp_path / f"{name}.png") for name in ("saved", "other", "text")]
    assert found == ["second", None, None]

"""Decoding, compared with numpy, Pillow's writers and torchvision's resize."""

from __future__ import annotations

import contextlib
import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import functional as vision

from npmatch.data import ArrayImages, FileImages, decode_image, to_tensor
from npmatch.data.images import DecodedImages, JoinedImages, SelectedImages, file_of, is_in_memory
from npmatch.errors import NPMatchError

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (8, 8), dtype=np.uint8)
COLOR = RNG.integers(0, 256, (8, 8, 3), dtype=np.uint8)
LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R 601


def hwc(image: torch.Tensor) -> np.ndarray:
    return image.permute(1, 2, 0).numpy().astype(int)


def saved(image: Image.Image, format: str, **options: object) -> io.BytesIO:
    file = io.BytesIO()
    image.save(file, format, **options)
    file.seek(0)
    return file


def test_an_image_of_the_right_size_is_not_changed(tmp_path: Path) -> None:
    Image.fromarray(COLOR).save(tmp_path / "a.png")
    decoded = decode_image(tmp_path / "a.png", 8, 3)
    assert decoded.dtype == torch.uint8
    assert decoded.is_contiguous()
    assert np.array_equal(hwc(decoded), COLOR)
    with (tmp_path / "a.png").open("rb") as file:
        assert torch.equal(decode_image(file, 8, 3), decoded)
    assert torch.equal(to_tensor(Image.fromarray(COLOR), 8, 3), decoded)


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "PPM", "GIF", "WEBP", "JPEG"])
def test_every_format_is_read(format: str) -> None:
    flat = np.full((8, 8, 3), (200, 40, 90), dtype=np.uint8)
    decoded = decode_image(saved(Image.fromarray(flat), format), 8, 3)
    assert np.abs(hwc(decoded) - flat).max() <= 3  # the lossy ones


@pytest.mark.parametrize(("side", "coarser"), [(96, False), (400, True), (1600, True)])
def test_a_large_jpeg_is_decoded_at_a_reduced_size_and_looks_the_same(side: int, coarser: bool) -> None:
    y, x = np.mgrid[:side, : side * 3 // 2] / side
    waves = np.stack([np.sin(7 * x + 3 * y), np.cos(5 * y * x), np.sin(9 * y)], axis=2)
    photo = Image.fromarray((127.5 + 127.4 * waves).astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    file = saved(photo, "JPEG", quality=92, exif=exif)
    whole = to_tensor(Image.open(io.BytesIO(file.getvalue())), 48, 3)
    difference = np.abs(hwc(decode_image(file, 48, 3)) - hwc(whole))
    assert difference.mean() < 1.5
    assert difference.max() <= 12
    assert bool(difference.any()) == coarser


@pytest.mark.parametrize(("width", "height", "size"), [(96, 64, 32), (64, 96, 32), (64, 64, 16), (48, 32, 64)])
def test_scaling_is_torchvisions_resize_and_centre_crop(width: int, height: int, size: int) -> None:
    image = Image.fromarray(RNG.integers(0, 256, (height, width, 3), dtype=np.uint8))
    expected = vision.pil_to_tensor(vision.center_crop(vision.resize(image, size), [size, size]))
    assert torch.equal(to_tensor(image, size, 3), expected)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 40), st.sampled_from([1, 3]))
def test_the_central_square_of_any_size(width: int, height: int, size: int, channels: int) -> None:
    # A ramp along the longer side: the middle's mean is 128 whatever the scale, and the ramp keeps its slope.
    length = max(width, height)
    ramp = np.linspace(0, 255, length) if length > 1 else np.full(1, 127.5)
    pixels = np.broadcast_to(ramp if width >= height else ramp[:, None], (height, width))
    decoded = to_tensor(Image.fromarray(pixels.astype(np.uint8)), size, channels)
    assert decoded.shape == (channels, size, size)
    assert abs(decoded.float().mean() - 127.5) < 3


def test_a_long_strip_is_not_enlarged_as_a_whole() -> None:
    # Scaling the whole of it first would make an image of 16 × 800,000 pixels.
    assert to_tensor(Image.new("RGB", (100_000, 2), "red"), 16, 3)[0].eq(255).all()


TURNS = {
    1: lambda a: a,
    2: np.fliplr,
    3: lambda a: np.rot90(a, 2),
    4: np.flipud,
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a.transpose(1, 0, 2), 2),
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize("orientation", TURNS)
def test_exif_orientation_is_applied(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    decoded = decode_image(saved(Image.fromarray(COLOR), "PNG", exif=exif), 8, 3)
    assert np.array_equal(hwc(decoded), TURNS[orientation](COLOR))


def test_grey_becomes_three_equal_channels_and_colour_becomes_luma() -> None:
    assert np.array_equal(hwc(to_tensor(Image.fromarray(GREY), 8, 3)), np.stack([GREY] * 3, -1))
    assert np.array_equal(hwc(to_tensor(Image.fromarray(GREY), 8, 1))[..., 0], GREY)
    assert np.abs(hwc(to_tensor(Image.fromarray(COLOR), 8, 1))[..., 0] - COLOR @ LUMA).max() <= 1


def test_one_bit_and_palette() -> None:
    bits = GREY > 127
    decoded = decode_image(saved(Image.fromarray(bits), "PNG"), 8, 3)
    assert np.array_equal(hwc(decoded), np.stack([bits * 255] * 3, -1))
    palette = Image.fromarray(COLOR).quantize(16)
    expected = np.array(palette.getpalette()).reshape(-1, 3)[np.asarray(palette)]
    assert np.array_equal(hwc(decode_image(saved(palette, "PNG"), 8, 3)), expected)


def test_cmyk() -> None:
    cmyk = RNG.integers(0, 256, (8, 8, 4), dtype=np.uint8)
    decoded = decode_image(saved(Image.fromarray(cmyk, "CMYK"), "TIFF"), 8, 3)
    expected = (255 - cmyk[..., :3].astype(float)) * (255 - cmyk[..., 3:]) / 255
    assert np.abs(hwc(decoded) - expected).max() <= 1


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
@pytest.mark.parametrize("channels", [1, 3])
def test_sixteen_bits_are_scaled_not_clipped(format: str, channels: int) -> None:
    deep = RNG.integers(0, 65536, (8, 8), dtype=np.uint16)
    decoded = decode_image(saved(Image.fromarray(deep), format), 8, channels)
    assert np.array_equal(hwc(decoded), np.stack([deep // 256] * channels, -1))


def test_sixteen_bit_pgm() -> None:
    deep = RNG.integers(0, 65536, (8, 8), dtype=np.uint16)
    file = io.BytesIO(b"P5 8 8 65535\n" + deep.astype(">u2").tobytes())
    assert np.array_equal(hwc(decode_image(file, 8, 1))[..., 0], deep // 256)


def test_transparency_is_put_on_white() -> None:
    alpha = RNG.integers(0, 256, (8, 8, 1), dtype=np.uint8)
    on_white = COLOR * (alpha / 255) + 255 * (1 - alpha / 255)
    rgba = Image.fromarray(np.concatenate([COLOR, alpha], -1))
    assert np.abs(hwc(decode_image(saved(rgba, "PNG"), 8, 3)) - on_white).max() <= 1
    assert np.abs(hwc(decode_image(saved(rgba, "PNG"), 8, 1))[..., 0] - on_white @ LUMA).max() <= 1.5
    grey_alpha = Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(alpha[..., 0])])
    expected = GREY * (alpha[..., 0] / 255) + 255 - alpha[..., 0]
    assert np.abs(hwc(decode_image(saved(grey_alpha, "PNG"), 8, 1))[..., 0] - expected).max() <= 1


def test_a_transparent_palette_entry_is_white() -> None:
    palette = Image.fromarray(COLOR).quantize(4)
    decoded = hwc(decode_image(saved(palette, "PNG", transparency=2), 8, 3))
    see_through = np.asarray(palette) == 2
    assert see_through.any()
    assert (decoded[see_through] == 255).all()
    assert np.array_equal(decoded[~see_through], np.asarray(palette.convert("RGB"))[~see_through])


@pytest.mark.parametrize("format", ["GIF", "TIFF", "WEBP"])
def test_the_first_frame_of_many_is_taken(format: str) -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in ("black", "white", "white")]
    file = saved(frames[0], format, save_all=True, append_images=frames[1:])
    assert decode_image(file, 8, 3).max() <= 3


def test_a_phones_multi_picture_jpeg_is_a_jpeg() -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in ("black", "white")]
    assert decode_image(saved(frames[0], "MPO", save_all=True, append_images=frames[1:]), 8, 3).max() == 0


def png_of_size(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99))


def broken_files() -> dict[str, bytes]:
    jpeg = saved(Image.fromarray(np.tile(COLOR, (8, 8, 1))), "JPEG").getvalue()
    png = saved(Image.fromarray(COLOR), "PNG").getvalue()
    return {
        "empty.png": b"",
        "text.jpg": b"<html>404 not found</html>",
        "truncated.jpg": jpeg[: len(jpeg) // 2],
        "header_only.jpg": jpeg[:30],
        "truncated.png": png[:60],
        "damaged.png": png[:45] + bytes(20) + png[65:],
        "other_format.png": saved(Image.fromarray(COLOR), "ICO").getvalue(),
        "bomb.png": png_of_size(60_000, 60_000),
        "large.png": png_of_size(10_001, 10_000),
        "float.tif": saved(Image.fromarray(GREY.astype(np.float32)), "TIFF").getvalue(),
        "int32.tif": saved(Image.fromarray(GREY.astype(np.int32)), "TIFF").getvalue(),
    }


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("name", broken_files())
def test_a_broken_file_is_named_in_one_line(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(broken_files()[name])
    with pytest.raises(NPMatchError) as caught:
        decode_image(tmp_path / name, 8, 3)
    message = str(caught.value)
    assert message.startswith(str(tmp_path / name) + ": ")
    assert message.count(name) == 1
    assert ";" in message  # what is wrong; what to do
    assert "\n" not in message


def test_the_pixel_cap_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(NPMatchError, match="8×8 pixels, more than the 63 allowed"):
        decode_image(saved(Image.fromarray(COLOR), "PNG"), 8, 3, max_pixels=63)
    decode_image(saved(Image.fromarray(COLOR), "PNG"), 8, 3, max_pixels=64)
    with pytest.raises(NPMatchError, match=r"none\.png: no such file"):
        decode_image(tmp_path / "none.png", 8, 3)
    with pytest.raises(NPMatchError, match="not a readable image"):
        decode_image(tmp_path, 8, 3)


@pytest.mark.filterwarnings("ignore")  # Pillow warns of some before it fails
@pytest.mark.parametrize("format", ["PNG", "GIF", "TIFF", "WEBP", "JPEG", "BMP", "PPM"])
def test_a_truncated_file_raises_no_other_error(format: str) -> None:
    content = saved(Image.fromarray(COLOR), format).getvalue()
    for cut in range(len(content)):
        with contextlib.suppress(NPMatchError):  # Pillow reads some that lack only their last bytes
            assert decode_image(io.BytesIO(content[:cut]), 8, 3).shape == (3, 8, 8)


def test_file_images_are_taken_in_the_requested_order(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("b.png", "ä é 猫.png", "a.png")]
    for value, path in enumerate(paths):
        Image.new("RGB", (10, 10), (value, 0, 0)).save(path)
    store = FileImages(paths, size=4)
    assert len(store) == 3
    assert store.shape == (3, 4, 4)
    assert [store.path(position) for position in range(3)] == paths
    taken = store.take(torch.tensor([2, 0, 1, 2]))
    assert taken.shape == (4, 3, 4, 4)
    assert taken[:, 0, 0, 0].tolist() == [2, 0, 1, 2]
    assert store.take(torch.tensor([], dtype=torch.int64)).shape == (0, 3, 4, 4)
    assert len(FileImages([], size=4)) == 0


def test_decoded_images_are_those_of_their_files(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(3)]
    for path in paths:
        Image.fromarray(COLOR).rotate(90 * len(path.stem)).save(path)
    files = FileImages(paths, size=4)
    index = torch.tensor([2, 0])
    decoded = DecodedImages(files, files.take(torch.arange(3)))
    assert torch.equal(decoded.take(index), files.take(index))
    assert (len(decoded), decoded.shape) == (3, files.shape)
    assert file_of(SelectedImages(decoded, index), 0) == paths[2]


def test_images_in_memory_are_known_as_such(tmp_path: Path) -> None:
    arrays, files = ArrayImages(torch.zeros(2, 3, 4, 4, dtype=torch.uint8)), FileImages(["a.png", "b.png"], size=4)
    decoded = DecodedImages(files, arrays.pixels)
    assert all(map(is_in_memory, (arrays, decoded, SelectedImages(decoded, torch.tensor([1])))))
    assert is_in_memory(JoinedImages(arrays, decoded))
    assert not any(map(is_in_memory, (files, SelectedImages(files, torch.tensor([1])), JoinedImages(arrays, files))))


def test_array_images() -> None:
    pixels = torch.arange(24, dtype=torch.uint8).view(2, 3, 2, 2)
    store = ArrayImages(pixels)
    assert len(store) == 2
    assert store.shape == (3, 2, 2)
    assert torch.equal(store.take(torch.tensor([1, 1])), pixels[[1, 1]])
    for wrong in (pixels.float(), pixels[0]):
        with pytest.raises(NPMatchError, match="uint8 of 4 dimensions"):
            ArrayImages(wrong)


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(NPMatchError, match="not a regular file"):
        decode_image(tmp_path / "pipe.png", 8)

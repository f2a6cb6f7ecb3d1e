"""A small, valid JPEG whose last scan is repeated, which keeps a decoder busy."""

import io

from PIL import Image


def saved_jpeg(mode: str, size: tuple[int, int], **options) -> bytes:
    """A gradient as JPEG."""
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize(size).convert(mode).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def jpeg_of_many_scans(more: int, size: tuple[int, int] = (64, 48)) -> bytes:
    """A progressive grey JPEG of six scans and `more` copies of the last one."""
    content = saved_jpeg("L", size, progressive=True)
    last = content.rindex(b"\xff\xda")
    return content[:-2] + content[last:-2] * more + content[-2:]

"""The number of scans of a JPEG, found without decoding it.

A progressive JPEG stores its pixels in about ten scans, each of which passes over the whole image. A file may repeat
scans as often as it likes at 30 bytes each, and a decoder takes seconds or minutes for a few hundred kilobytes.
"""

from __future__ import annotations

import re

MAX_SCANS = 64  # encoders that search for the smallest file use about 20

# A marker is 0xFF and a byte; 0xFF00 is data, and restart markers stand inside a scan's data.
_MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd7\xff])")
_END, _SCAN = 0xD9, 0xDA
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # the markers of a frame's header
_PROGRESSIVE = {0xC2, 0xC6, 0xCA, 0xCE}


def count_scans(content: bytes, limit: int = MAX_SCANS) -> int:
    """Number of scans up to the end of the first image in a file; counting stops above `limit`."""
    scans, position = 0, 2
    frame, components = 0, 0
    while scans <= limit and (marker := _MARKER.search(content, position)):
        kind, start = marker[1][0], marker.end()
        if kind == _END:
            break
        if kind in _FRAMES:
            frame, components = kind, content[start + 7] if len(content) > start + 7 else 0
        if kind == _SCAN:
            scans += 1
            if frame not in _PROGRESSIVE and content[start + 2 : start + 3] == bytes([components]):
                break  # all components in one scan: nothing follows that is decoded
        position = start + max(2, int.from_bytes(content[start : start + 2], "big"))
    return scans

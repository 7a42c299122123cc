# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A picture to ask a vision model about, made here so that no file and no download is needed."""

from __future__ import annotations

import base64
import struct
import zlib

COLOURS = {
    "red": (255, 0, 0),
    "green": (0, 160, 0),
    "blue": (0, 0, 255),
    "yellow": (255, 230, 0),
    "white": (255, 255, 255),
    "black": (0, 0, 0),
}
SIDE_PIXELS = 56  # two patches of most vision towers in each direction


def png(colour: str, side_pixels: int = SIDE_PIXELS) -> bytes:
    """Return a square PNG of one of ``COLOURS`` (PNG specification, 8 bits a sample, RGB, no filter)."""
    row = b"\x00" + bytes(COLOURS[colour]) * side_pixels
    header = struct.pack(">2I5B", side_pixels, side_pixels, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(row * side_pixels, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in parts)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def data_url(colour: str) -> str:
    """Return the picture as a ``data:`` URL, which no engine has to fetch from anywhere."""
    return "data:image/png;base64," + base64.b64encode(png(colour)).decode("ascii")

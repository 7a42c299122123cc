from __future__ import annotations

import base64
import struct
import zlib

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.canary_image import COLOURS, data_url, png


def chunks(data):
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, found = 8, {}
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        name, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length]) == (zlib.crc32(name + body),)
        found[name] = body
        at += 12 + length
    return found


@pytest.mark.parametrize("colour", COLOURS)
def test_a_picture_is_a_png_of_one_colour(colour):
    found = chunks(png(colour, 8))
    assert struct.unpack(">2I5B", found[b"IHDR"]) == (8, 8, 8, 2, 0, 0, 0)
    rows = zlib.decompress(found[b"IDAT"])
    assert rows == (b"\0" + bytes(COLOURS[colour]) * 8) * 8 and list(found)[-1] == b"IEND"


def test_a_data_url_holds_the_picture():
    kind, _separator, content = data_url("red").partition(",")
    assert kind == "data:image/png;base64" and base64.b64decode(content) == png("red")

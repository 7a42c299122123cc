# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a safetensors file says about itself: names, types, shapes and places of its tensors, without loading any.

The format (https://huggingface.co/docs/safetensors, "Format"): eight bytes of little-endian header length, that many
bytes of JSON, then the data. The header names, for each tensor, dtype, shape and the begin and end of its data; the
data has no holes and no overlaps and fills the file to its end.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Bits of one element, by the name in the header.
DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
    "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
HEADER_LIMIT_BYTES = 100_000_000  # the format's own limit

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


@dataclass(frozen=True)
class Tensor:
    """One tensor of a shard: ``shard`` is the file's name, ``size_bytes`` the length of its data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    shard: str


@dataclass(frozen=True)
class Shard:
    """One file: its tensors, or in ``problem`` why they cannot be had (a clause without a full stop)."""

    name: str
    tensors: tuple[Tensor, ...]
    problem: str = ""


class _Damaged(ValueError):
    """The file is no whole safetensors file; the message is a clause that says why."""


def read_shard(path: str) -> Shard:
    """Read the header of the file at ``path`` and hold it against the file's length. Never raises for a bad file."""
    name = os.path.basename(path)
    try:
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            header, start = _header(stream.read(8), stream.read, size)
        return Shard(name, _tensors(header, name, size - start))
    except _Damaged as damage:
        return Shard(name, (), str(damage))
    except OSError as error:
        return Shard(name, (), f"it cannot be read: {error.strerror or error}")


def _header(first: bytes, read: Any, size: int) -> tuple[dict[str, Any], int]:
    """Return the header and where the data begins."""
    if len(first) < 8:
        raise _Damaged(f"it has {size} bytes, fewer than the eight that a header begins with")
    (length,) = struct.unpack("<Q", first)
    if _LFS_POINTER.startswith(first):
        raise _Damaged("it is a Git LFS pointer, not the file that it points to")
    if length > HEADER_LIMIT_BYTES:
        raise _Damaged(f"its header claims {length} bytes, more than the format allows")
    if 8 + length > size:
        raise _Damaged(f"it ends within its header: {size} bytes, and the header alone needs {8 + length}")
    try:
        header = json.loads(read(length))
    except (ValueError, RecursionError) as error:
        raise _Damaged(f"its header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise _Damaged("its header is no JSON object")
    return header, 8 + length


def _tensors(header: Mapping[str, Any], shard: str, data_bytes: int) -> tuple[Tensor, ...]:
    """Return the tensors of a header whose data is ``data_bytes`` long, in the order of their data."""
    placed = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = _place(name, entry)
        tensor = Tensor(name, str(entry["dtype"]), tuple(entry["shape"]), end - begin, shard)
        _check_size(tensor)
        placed.append((begin, end, tensor))
    placed.sort(key=lambda item: item[:2])
    position = 0
    for begin, end, tensor in placed:
        if begin != position:
            how = "overlaps the tensor before it" if begin < position else "leaves a hole before it"
            raise _Damaged(f"the data of {tensor.name} {how} (it begins at {begin}, not at {position})")
        position = end
    if position != data_bytes:
        how = "is cut off" if data_bytes < position else "is longer than its tensors"
        raise _Damaged(f"it {how}: {data_bytes} bytes of data, and its header names {position}")
    return tuple(tensor for _begin, _end, tensor in placed)


def _place(name: str, entry: Any) -> tuple[int, int]:
    """Return begin and end of a tensor's data; refuse an entry of another form."""
    try:
        begin, end = entry["data_offsets"]
        shape = entry["shape"]
        numbers = [begin, end, *shape]
        whole = all(isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in numbers)
        if whole and isinstance(shape, list) and isinstance(entry["dtype"], str) and begin <= end:
            return begin, end
    except (KeyError, TypeError, ValueError):
        pass
    raise _Damaged(f"its header's entry for {name} is malformed")


def _check_size(tensor: Tensor) -> None:
    """Hold shape and dtype against the length of the data; an unknown dtype is left to the engine."""
    bits = DTYPE_BITS.get(tensor.dtype)
    if bits is None:
        return
    count = 1
    for length in tensor.shape:
        count *= length
    if count * bits != tensor.size_bytes * 8:
        raise _Damaged(
            f"the data of {tensor.name} has {tensor.size_bytes} bytes, and {tensor.dtype} {list(tensor.shape)} needs "
            f"{count * bits // 8}"
        )

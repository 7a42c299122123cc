from __future__ import annotations

import json
import struct

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.safetensors_header import DTYPE_BITS, Tensor, read_shard


def entry(begin, end, shape=None, dtype="U8"):
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


def encode(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


@pytest.fixture
def read(tmp_path):
    def read_bytes(content):
        path = tmp_path / "model.safetensors"
        path.write_bytes(content)
        return read_shard(str(path))

    return read_bytes


def test_a_whole_file_gives_its_tensors_in_the_order_of_their_data(read):
    header = {"__metadata__": {"format": "pt"}, "b": entry(4, 8, [2, 1], "BF16"), "a": entry(0, 4)}
    shard = read(encode(header, bytes(8)))
    assert shard.problem == ""
    assert shard.tensors == (
        Tensor("a", "U8", (4,), 4, "model.safetensors"),
        Tensor("b", "BF16", (2, 1), 4, "model.safetensors"),
    )


def test_tensors_without_elements_and_scalars_are_whole(read):
    shard = read(encode({"none": entry(0, 0, [0, 7], "F32"), "one": entry(0, 4, [], "F32")}, bytes(4)))
    assert shard.problem == "" and [tensor.size_bytes for tensor in shard.tensors] == [0, 4]


def test_four_bit_elements_share_bytes(read):
    assert read(encode({"w": entry(0, 8, [4, 4], "F4")}, bytes(8))).problem == ""
    assert "needs 8" in read(encode({"w": entry(0, 9, [4, 4], "F4")}, bytes(9))).problem


def test_a_dtype_of_a_later_format_is_left_to_the_engine(read):
    assert read(encode({"w": entry(0, 3, [4, 4], "F1_E0M0")}, bytes(3))).problem == ""


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "it has 0 bytes, fewer than the eight"),
        (b"1234567", "it has 7 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "it is a Git LFS pointer"),
        (encode({}, length=2**62), "its header claims 4611686018427387904 bytes, more than the format allows"),
        (encode({}, length=400), "it ends within its header: 10 bytes, and the header alone needs 408"),
        (encode(b"{nonsense"), "its header is no JSON: "),
        (encode(b"\xff\xfe\xfd"), "its header is no JSON: "),
        (encode(b"[" * 200_000), "its header is no JSON: "),
        (encode([1]), "its header is no JSON object"),
        (encode({"w": entry(0, 9)}, bytes(5)), "it is cut off: 5 bytes of data, and its header names 9"),
        (encode({"w": entry(0, 4)}, bytes(5)), "it is longer than its tensors: 5 bytes of data"),
        (encode({"a": entry(0, 4), "b": entry(2, 8)}, bytes(8)), "the data of b overlaps the tensor before it"),
        (encode({"a": entry(0, 4), "b": entry(6, 8)}, bytes(8)), "the data of b leaves a hole before it"),
        (encode({"w": entry(0, 4, [3], "BF16")}, bytes(4)), "the data of w has 4 bytes, and BF16 [3] needs 6"),
    ],
)
def test_what_is_no_whole_file_is_said_in_a_clause_and_gives_no_tensor(read, content, problem):
    shard = read(content)
    assert shard.problem.startswith(problem) and shard.tensors == ()


@pytest.mark.parametrize(
    "bad",
    [
        None,
        7,
        {},
        {"dtype": "U8", "shape": [4]},
        entry(0, 4) | {"data_offsets": [0]},
        entry(0, 4) | {"data_offsets": [4, 0]},
        entry(0, 4) | {"data_offsets": [-1, 3]},
        entry(0, 4) | {"data_offsets": "04"},
        entry(0, 4) | {"shape": [True]},
        entry(0, 4) | {"shape": "4"},
        entry(0, 4) | {"dtype": 8},
    ],
)
def test_an_entry_of_another_form_is_named(read, bad):
    assert read(encode({"w": bad}, bytes(4))).problem == "its header's entry for w is malformed"


def test_a_file_that_cannot_be_read_is_a_problem_and_no_exception(tmp_path):
    assert read_shard(str(tmp_path / "none.safetensors")).problem == "it cannot be read: No such file or directory"
    assert read_shard(str(tmp_path)).problem == "it cannot be read: Is a directory"


def test_the_sizes_of_elements_are_bits():
    assert (DTYPE_BITS["BF16"], DTYPE_BITS["F8_E4M3"], DTYPE_BITS["I64"]) == (16, 8, 64)

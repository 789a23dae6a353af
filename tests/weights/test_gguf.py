import os
import struct
import time
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from weight_makers import ARRAY, DEFAULT_PAIRS, EVERY_TYPE, F32, I32, TEXT, U8, U16, U32, gguf, text

from skep.errors import WeightsError
from skep.weights.gguf import GgufHeader, SkippedArray, check_file, read_header


@pytest.fixture
def saved(tmp_path):
    def save(content):
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        return path

    return save


def complaint(path):
    with pytest.raises(WeightsError) as caught:
        check_file(path)
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("version", [2, 3])
def test_header_tells_what_the_model_is(saved, version):
    """Architecture, name, context and tensors come out of both versions in use."""
    header = check_file(saved(gguf(version=version)))
    assert (header.version, header.architecture, header.name) == (version, "llama", "Tiny")
    assert header.context_length == 2048
    assert [(t.name, t.shape, t.type_name, t.size_bytes) for t in header.tensors] == [("w", (32, 2), "Q4_0", 36)]
    assert header.expected_file_bytes == header.file_bytes == header.data_offset + 36


def test_every_value_type_is_read(saved):
    """All scalar types and arrays of scalars, of texts and of arrays."""
    nested = (ARRAY, [(U8, [1, 2]), (TEXT, ["x"])])
    pairs = (
        *EVERY_TYPE,
        ("list", ARRAY, (I32, [1, -2])),
        ("words", ARRAY, (TEXT, ["a", "b"])),
        ("deep", ARRAY, nested),
    )
    metadata = read_header(saved(gguf(pairs=pairs))).metadata
    assert {key: metadata[key] for key, _, _ in EVERY_TYPE} == {key: value for key, _, value in EVERY_TYPE}
    assert (metadata["list"], metadata["words"], metadata["deep"]) == ((1, -2), ("a", "b"), ((1, 2), ("x",)))


def test_large_arrays_are_read_only_on_request(saved):
    """A vocabulary is passed over, and what follows it is still found."""
    words = [f"word{i}" for i in range(5000)]
    pairs = (("tokens", ARRAY, (TEXT, words)), ("scores", ARRAY, (F32, [0.5] * 5000)), *DEFAULT_PAIRS)
    path = saved(gguf(pairs=pairs))
    short, whole = read_header(path), read_header(path, keep_arrays=True)
    assert short.metadata["tokens"] == short.metadata["scores"] == SkippedArray(5000)
    assert short.name == whole.name == "Tiny"
    assert short.tensors == whole.tensors
    assert whole.metadata["tokens"] == tuple(words)
    assert sum(whole.metadata["scores"]) == 2500


def test_words_longer_than_a_piece_are_passed_over(saved):
    """Walking over texts in pieces does not depend on where a piece ends."""
    words = ["x" * 300_000, *["y" * 4000] * 100, "z"]
    assert read_header(saved(gguf(pairs=(("tokens", ARRAY, (TEXT, words)), *DEFAULT_PAIRS)))).name == "Tiny"


def test_alignment_moves_the_tensor_data(saved):
    """`general.alignment` rules where the data begins."""
    pairs = (*DEFAULT_PAIRS, ("general.alignment", U32, 256))
    header = check_file(saved(gguf(pairs=pairs, alignment=256)))
    assert header.alignment == 256
    assert header.data_offset % 256 == 0


def test_truncation_anywhere_is_noticed(saved):
    """A download that broke off is told apart from a good file without loading it: no prefix passes for the file."""
    content = gguf()
    for length in range(len(content)):
        message = complaint(saved(content[:length]))
    assert f"it has {len(content) - 1} bytes, its tensors need {len(content)}" in message


def test_unknown_tensor_type_is_tolerated(saved):
    """A newer quantisation must not stop a pull: the size is then not checked."""
    header = check_file(saved(gguf(tensors=(("w", (32,), 999, 0),), data=0)))
    assert header.expected_file_bytes is None
    assert header.tensors[0].type_name is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b"\n<!DOCTYPE html><html>", "it is an HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "it is a git-lfs pointer"),
        (struct.pack("<Q", 20) + b'{"__metadata__":{}}', "it is a safetensors file"),
        (b'{"error": "not found"}', "it is JSON text"),
        (b"PK\x03\x04....", "it is a zip archive or a PyTorch checkpoint"),
        (b"tjgg....", "it is a GGML file from before GGUF"),
        (bytes(100), "it starts with zeros"),
        (b"hello world", "it starts with b'hello wo'"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "it is a GGUF of version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "it is a big-endian GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 77, 0, 0), "it is a GGUF of version 77"),
    ],
)
def test_other_files_are_named_for_what_they_are(saved, content, said):
    """Somebody who saved a web page learns that it is a web page."""
    assert f"is not a usable GGUF: {said}" in complaint(saved(content))


def test_missing_file_folder_and_pipe_are_refused(tmp_path):
    """Opening a pipe would wait for ever, so it is refused unopened."""
    os.mkfifo(tmp_path / "pipe")
    assert "there is no file" in complaint(tmp_path / "no.gguf")
    assert "is a folder" in complaint(tmp_path)
    assert "is not a regular file" in complaint(tmp_path / "pipe")


HUGE = (1 << 64) - 1
PAIR = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k")


@pytest.mark.parametrize(
    "content",
    [
        b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", HUGE) + bytes(100),
        PAIR + struct.pack("<IIQ", ARRAY, U8, HUGE) + bytes(99),
        PAIR + struct.pack("<IIQ", ARRAY, TEXT, HUGE) + bytes(99),
        PAIR + struct.pack("<IIQ", ARRAY, ARRAY, HUGE) + bytes(99),
        PAIR + struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * 50,
        PAIR + struct.pack("<I", 55) + bytes(99),
        gguf(tensors=(("w", (32,) * 9, 0, 0),)),
        gguf(tensors=(("w", (HUGE, HUGE), 0, HUGE),)),
        gguf(pairs=(("general.alignment", U32, 0),)),
        gguf(pairs=(("general.alignment", TEXT, "x"),)),
    ],
    ids=range(12),
)
def test_absurd_numbers_are_refused(saved, content):
    """A count or length is held against the file before anything is allocated for it."""
    assert "its header is damaged" in (said := complaint(saved(content))) or "truncated or damaged" in said


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        (text("k") + struct.pack("<IIQ", ARRAY, TEXT, 1 << 33), "more values than any model needs"),
        (text("k") + struct.pack("<IIQ", ARRAY, ARRAY, 1 << 33), "more values than any model needs"),
        (struct.pack("<Q", 200 << 30), "a text of 214748364800 bytes"),
    ],
    ids=["texts", "arrays", "key"],
)
def test_sparse_file_can_neither_keep_the_reader_busy_nor_make_it_allocate(tmp_path, claim, said):
    """A file may claim billions of empty values, or a key of 200 GiB, and be large enough for them."""
    path = tmp_path / "sparse.gguf"
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + claim)
        file.truncate(1 << 38)
    began = time.process_time()
    assert said in complaint(path)
    assert time.process_time() - began < 5


RICH = gguf(pairs=(*DEFAULT_PAIRS, *EVERY_TYPE, ("words", ARRAY, (TEXT, ["a"] * 70)), ("n", ARRAY, (U16, [7] * 70))))
EXTREMES = st.sampled_from([0, 1, 8, 9, 255, 1 << 31, 1 << 40, 1 << 62, (1 << 63) - 1, 1 << 63, HUGE])


@settings(max_examples=300, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edits=st.lists(st.tuples(st.integers(4, len(RICH) - 8), EXTREMES | st.integers(0, HUGE)), max_size=4),
    length=st.just(len(RICH)) | st.integers(0, len(RICH)),
    keep=st.booleans(),
)
def test_damaged_files_end_in_a_header_or_a_weights_error(saved, edits, length, keep):
    """Whatever bytes a file holds, the reader answers with a header or with one error."""
    content = bytearray(RICH)
    for at, number in edits:
        content[at : at + 8] = struct.pack("<Q", number)
    path = saved(bytes(content[:length]))
    with suppress(WeightsError):
        assert isinstance(read_header(path, keep_arrays=keep), GgufHeader)
        check_file(path)

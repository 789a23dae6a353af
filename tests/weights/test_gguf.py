"""GGUF files: headers good, damaged and hostile, and the geometries that they tell."""

import os
import random
import struct
import time
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from weight_makers import (
    ARRAY,
    BOOL,
    DEFAULT_PAIRS,
    EVERY_TYPE,
    F32,
    I32,
    TEXT,
    U8,
    U16,
    U32,
    gguf,
    text,
)

from skep.catalog.models import geometry
from skep.errors import UserError, WeightsError
from skep.paths import user_paths
from skep.weights.gguf import (
    GgufHeader,
    SkippedArray,
    average_bits,
    check_file,
    geometry_of,
    read_header,
)
from skep.weights.pull import installed


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
    """Architecture, name, context, tensors and values of all types come out of both versions in
    use.
    """
    pairs = (
        *DEFAULT_PAIRS,
        *EVERY_TYPE,
        ("list", ARRAY, (I32, [1, -2])),
        ("words", ARRAY, (TEXT, ["a", "b"])),
    )
    header = check_file(saved(gguf(version=version, pairs=pairs)))
    assert (header.architecture, header.name, header.context_length) == ("llama", "Tiny", 2048)
    assert [(t.name, t.shape, t.type_name, t.size_bytes) for t in header.tensors] == [
        ("w", (32, 2), "Q4_0", 36)
    ]
    assert header.expected_file_bytes == header.file_bytes == header.data_offset + 36
    read = header.metadata
    assert {key: read[key] for key, _, _ in EVERY_TYPE} == {
        key: value for key, _, value in EVERY_TYPE
    }
    assert (read["list"], read["words"]) == ((1, -2), ("a", "b"))


def test_large_arrays_are_read_only_on_request(saved):
    """A vocabulary is passed over in pieces, wherever a piece ends, and what follows it is still
    found.
    """
    words = [*(f"word{i}" for i in range(5000)), "x" * 300_000, *["y" * 4000] * 100]
    pairs = (
        ("tokens", ARRAY, (TEXT, words)),
        ("scores", ARRAY, (F32, [0.5] * 5000)),
        *DEFAULT_PAIRS,
    )
    path = saved(gguf(pairs=pairs))
    short = read_header(path)
    whole = read_header(path, keep_arrays=True)
    assert (short.metadata["tokens"], short.metadata["scores"]) == (
        SkippedArray(5101),
        SkippedArray(5000),
    )
    assert short.name == whole.name == "Tiny"
    assert short.tensors == whole.tensors
    assert (whole.metadata["tokens"], sum(whole.metadata["scores"])) == (tuple(words), 2500)


def test_truncation_anywhere_is_noticed(saved):
    """A download that broke off is told apart from a good file without loading it: no prefix
    passes for the file.
    """
    content = gguf()
    for length in range(len(content)):
        message = complaint(saved(content[:length]))
    assert f"it has {len(content) - 1} bytes, its tensors need {len(content)}" in message


def test_unknown_tensor_type_is_tolerated(saved):
    """A newer quantisation must not stop a pull: size and bits are then unknown."""
    header = check_file(saved(gguf(tensors=(("w", (32,), 999, 0),), data=0)))
    assert (header.expected_file_bytes, header.tensors[0].type_name, average_bits(header)) == (
        None,
        None,
        None,
    )
    aligned = gguf(pairs=(*DEFAULT_PAIRS, ("general.alignment", U32, 256)), alignment=256)
    assert check_file(saved(aligned)).data_offset % 256 == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"\n<!DOCTYPE html><html>", "it is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "it is a git-lfs pointer"),
        (struct.pack("<Q", 20) + b'{"__metadata__":{}}', "it is a safetensors file"),
        (bytes(100), "it starts with zeros"),
        (b"hello world", "it starts with b'hello wo'"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "it is a GGUF of version 1"),
        (b"GGUF" + struct.pack("<IQQ", 77, 0, 0), "it is a GGUF of version 77"),
    ],
)
def test_other_files_are_named_for_what_they_are(saved, content, message):
    """Somebody who saved a web page learns that it is a web page."""
    assert f"is not a usable GGUF: {message}" in complaint(saved(content))


def test_missing_file_folder_and_pipe_are_refused(tmp_path):
    """Opening a pipe would wait for ever, so it is refused unopened."""
    os.mkfifo(tmp_path / "pipe")
    assert "there is no file" in complaint(tmp_path / "no.gguf")
    assert "is a folder" in complaint(tmp_path)
    assert "there is no file" in complaint(tmp_path / "pipe")


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
    assert (
        "its header is damaged" in (message := complaint(saved(content)))
        or "truncated or damaged" in message
    )


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (
            text("k") + struct.pack("<IIQ", ARRAY, TEXT, 1 << 33),
            "more values than any model needs",
        ),
        (struct.pack("<Q", 200 << 30), "a text of 214748364800 bytes"),
    ],
    ids=["texts", "key"],
)
def test_sparse_file_can_neither_keep_the_reader_busy_nor_make_it_allocate(
    tmp_path, claim, message
):
    """A file may claim billions of empty values, or a key of 200 GiB, and be large enough for
    them.
    """
    path = tmp_path / "sparse.gguf"
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + claim)
        file.truncate(1 << 38)
    began = time.process_time()
    assert message in complaint(path)
    assert time.process_time() - began < 5


def test_a_header_full_of_small_tensors_takes_no_more_than_seconds(saved):
    """A quarter of a million tensors that need no data took 20 seconds."""
    named = b"".join(
        text(b"%d" % place) + struct.pack("<I8QIQ", 8, *[1] * 8, 0, 0) for place in range(1 << 18)
    )
    path = saved(b"GGUF" + struct.pack("<IQQ", 3, 1 << 18, 0) + named)
    began = time.process_time()
    assert "its header is damaged: it claims 262144 tensors" in complaint(path)
    assert time.process_time() - began < 5


def test_what_stands_twice_in_a_header_is_refused_as_llama_cpp_does(saved):
    """The second value would be planned with, and a tensor be counted twice."""
    pair = ("general.architecture", TEXT, "llama")
    assert "its header is damaged: the key 'general.architecture' stands in it twice" in complaint(
        saved(gguf(pairs=(pair, pair)))
    )
    weights = ("w", (32, 2), 2, 0)
    assert "its header is damaged: the tensor 'w' stands in it twice" in complaint(
        saved(gguf(tensors=(weights, weights)))
    )


RICH = gguf(
    pairs=(
        *DEFAULT_PAIRS,
        *EVERY_TYPE,
        ("words", ARRAY, (TEXT, ["a"] * 70)),
        ("n", ARRAY, (U16, [7] * 70)),
    )
)
EXTREMES = st.sampled_from(
    [0, 1, 8, 9, 255, 1 << 31, 1 << 40, 1 << 62, (1 << 63) - 1, 1 << 63, HUGE]
)


@settings(
    max_examples=100, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    edits=st.lists(
        st.tuples(st.integers(4, len(RICH) - 8), EXTREMES | st.integers(0, HUGE)), max_size=4
    ),
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


F16 = 1
Q4_0 = 2
LLAMA = {
    "block_count": 2, "embedding_length": 64, "attention.head_count": 4,
    "attention.head_count_kv": 2, "feed_forward_length": 128, "context_length": 2048,
    "vocab_size": 320,
}  # fmt: skip


def header(tmp_path, keys, *, architecture="llama", arrays=(), tensors=()):
    pairs = [("general.architecture", TEXT, architecture), ("general.name", TEXT, "Tiny One")]
    pairs += [(f"{architecture}.{key}", U32, value) for key, value in keys.items()]
    pairs += [(f"{architecture}.{key}", ARRAY, value) for key, value in arrays]
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf(pairs=pairs, tensors=tensors, data=0))
    return read_header(path)


def blocks(kinds):
    """One tensor a block that says what it is, and the embedding."""
    parts = {"a": "attn_k.weight", "l": "ssm_conv1d.weight", "m": "ffn_up.weight"}
    named = [("token_embd.weight", (64, 320), F16, 0)]
    return [
        *named,
        *((f"blk.{i}.{parts[kind]}", (64, 32), Q4_0, 0) for i, kind in enumerate(kinds)),
    ]


def test_the_real_small_model_is_the_one_of_the_catalogue():
    """Q4_1 of SmolLM2: 4.5 bits in its layers, more in its embedding, which serves as the head as
    well.
    """
    pulled = installed("smollm2-135m", user_paths(os.environ).cache)
    if pulled is None:
        pytest.skip("smollm2-135m is not pulled here")
    read = geometry_of(read_header(pulled))
    model = geometry("smollm2-135m")
    for key in (
        "hidden",
        "layers",
        "heads",
        "kv_heads",
        "head_dim",
        "vocab",
        "intermediate",
        "full_layers",
    ):
        assert getattr(read, key) == getattr(model, key)
    assert read.tied_embeddings
    assert read.params_total == pytest.approx(model.params_total, rel=0.001)
    assert read.native_bits == pytest.approx(5.74, abs=0.01)


def test_widths_come_from_keys_and_parameters_from_tensors(tmp_path):
    tensors = [("token_embd.weight", (64, 320), F16, 0), ("output.weight", (64, 320), F16, 0)]
    tensors += [(f"blk.{i}.attn_k.weight", (64, 32), Q4_0, 0) for i in range(2)]
    read = geometry_of(header(tmp_path, LLAMA, tensors=tensors))
    assert (read.id, read.title, read.hidden, read.layers) == ("tiny-one", "Tiny One", 64, 2)
    assert (read.heads, read.kv_heads, read.head_dim, read.vocab, read.max_context) == (
        4,
        2,
        16,
        320,
        2048,
    )
    assert (read.full_layers, read.sliding_layers, read.linear_layers) == (2, 0, 0)
    assert not read.tied_embeddings
    assert read.params_total == read.params_active == 2 * 64 * 320 + 2 * 64 * 32
    assert read.native_bits == pytest.approx(
        (2 * 64 * 320 * 16 + 2 * 64 * 32 * 4.5) / read.params_total
    )


def test_kinds_of_layers_are_seen_in_the_tensors(tmp_path):
    keys = {
        **LLAMA, "block_count": 6, "ssm.time_step_rank": 4, "ssm.inner_size": 64,
        "ssm.state_size": 8, "ssm.group_count": 2, "ssm.conv_kernel": 4,
    }  # fmt: skip
    read = geometry_of(header(tmp_path, keys, architecture="qwen35", tensors=blocks("lllaml")))
    assert (read.layers, read.full_layers, read.linear_layers) == (6, 1, 4)
    assert (read.linear_k_heads, read.linear_v_heads, read.linear_k_dim, read.linear_v_dim) == (
        2,
        4,
        8,
        16,
    )
    assert read.is_hybrid
    assert read.state_bytes == 4 * (4 * 8 * 16 * 4 + (2 * 2 * 8 + 4 * 16) * 3 * 2)


def test_a_window_is_shared_out_by_the_pattern_or_by_the_family(tmp_path):
    keys = {**LLAMA, "block_count": 12, "attention.sliding_window": 512}
    gemma = geometry_of(header(tmp_path, keys, architecture="gemma3", tensors=blocks("a" * 12)))
    assert (gemma.full_layers, gemma.sliding_layers, gemma.sliding_window) == (2, 10, 512)
    said = [("attention.sliding_window_pattern", (BOOL, [True, True, False] * 4))]
    stated = geometry_of(
        header(tmp_path, keys, architecture="new", arrays=said, tensors=blocks("a" * 12))
    )
    assert (stated.full_layers, stated.sliding_layers) == (4, 8)


def test_experts_and_latent_attention_are_read(tmp_path):
    keys = {
        **LLAMA, "block_count": 4, "expert_count": 8, "expert_used_count": 2,
        "expert_feed_forward_length": 32, "expert_shared_count": 1,
        "leading_dense_block_count": 1, "attention.kv_lora_rank": 16, "rope.dimension_count": 8,
        "attention.value_length": 16, "nextn_predict_layers": 1,
    }  # fmt: skip
    parts = ("gate", "up", "down")
    routed = [
        (f"blk.{i}.ffn_{part}_exps.weight", (64, 32, 8), Q4_0, 0) for i in (1, 2) for part in parts
    ]
    read = geometry_of(
        header(tmp_path, keys, architecture="deepseek2", tensors=[*blocks("aaaa"), *routed])
    )
    assert (
        read.layers,
        read.mtp_layers,
        read.expert_layers,
        read.experts,
        read.experts_per_token,
    ) == (3, 1, 2, 8, 2)
    assert (read.expert_intermediate, read.shared_intermediate, read.intermediate) == (32, 32, 128)
    assert read.kv_bytes_per_token(2) == 3 * (16 + 8) * 2
    # Tied: the embedding is read as head.
    assert read.params_total - read.params_active == 2 * 3 * 64 * 32 * (8 - 2)


@pytest.mark.parametrize(
    "missing", ["block_count", "embedding_length", "attention.head_count", "vocab_size", None]
)
def test_a_missing_key_is_named(tmp_path, saved, missing):
    keys = {key: value for key, value in LLAMA.items() if key != missing}
    nameless = saved(gguf(pairs=(("general.name", TEXT, "x"),)))
    with pytest.raises(UserError) as caught:
        geometry_of(header(tmp_path, keys) if missing else read_header(nameless))
    missing_key = {"vocab_size": "tokenizer.ggml.tokens", None: "general.architecture"}.get(
        missing, f"llama.{missing}"
    )
    assert caught.value.message == f"the GGUF has no `{missing_key}`"


def test_the_name_of_an_architecture_is_told_in_one_short_line(saved):
    pairs = (("general.architecture", TEXT, "x\x1b\n" * 1000),)
    with pytest.raises(UserError) as caught:
        geometry_of(read_header(saved(gguf(pairs=pairs))))
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 200


def test_absurd_values_give_a_line_or_a_sane_geometry(tmp_path):
    seed = time.time_ns() % 10**6
    print("seed", seed)
    rng = random.Random(seed)
    extra = (
        "expert_count", "expert_used_count", "attention.sliding_window", "attention.kv_lora_rank",
        "nextn_predict_layers", "leading_dense_block_count", "attention.value_length",
    )  # fmt: skip
    for _ in range(300):
        keys = {key: value for key, value in LLAMA.items() if rng.random() < 0.95}
        for key in rng.sample((*LLAMA, *extra), 3):
            keys[key] = rng.choice((0, 1, 2, 7, 1000, 2**31, 2**32 - 1))
        try:
            read = geometry_of(
                header(tmp_path, keys, tensors=blocks("".join(rng.choices("alm", k=2))))
            )
        except UserError:
            continue
        assert 0 < read.params_active <= read.params_total
        assert read.full_layers + read.sliding_layers + read.linear_layers <= read.layers

"""Geometries from GGUF headers: the real small model where it is at hand, and headers written for the purpose."""

import os
import random
import time

import pytest
from weight_makers import ARRAY, BOOL, TEXT, U32, gguf

from skep.catalog.models import geometry
from skep.errors import UserError
from skep.paths import user_paths
from skep.weights.gguf import read_header
from skep.weights.gguf_geometry import average_bits, geometry_of
from skep.weights.pull import installed

F16, Q4_0 = 1, 2
LLAMA = {
    "block_count": 2, "embedding_length": 64, "attention.head_count": 4, "attention.head_count_kv": 2,
    "feed_forward_length": 128, "context_length": 2048, "vocab_size": 320,
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
    return [*named, *((f"blk.{i}.{parts[kind]}", (64, 32), Q4_0, 0) for i, kind in enumerate(kinds))]


def test_the_real_small_model_is_the_one_of_the_catalogue():
    """Q4_1 of SmolLM2: 4.5 bits in its layers, more in its embedding, which serves as the head as well."""
    pulled = installed("smollm2-135m", user_paths(os.environ).cache)
    if pulled is None:
        pytest.skip("smollm2-135m is not pulled here")
    read, known = geometry_of(read_header(pulled)), geometry("smollm2-135m")
    for key in ("hidden", "layers", "heads", "kv_heads", "head_dim", "vocab", "intermediate", "full_layers"):
        assert getattr(read, key) == getattr(known, key)
    assert read.tied_embeddings
    assert read.params_total == pytest.approx(known.params_total, rel=0.001)
    assert read.native_bits == pytest.approx(5.74, abs=0.01)


def test_widths_come_from_keys_and_parameters_from_tensors(tmp_path):
    tensors = [("token_embd.weight", (64, 320), F16, 0), ("output.weight", (64, 320), F16, 0)]
    tensors += [(f"blk.{i}.attn_k.weight", (64, 32), Q4_0, 0) for i in range(2)]
    read = geometry_of(header(tmp_path, LLAMA, tensors=tensors))
    assert (read.id, read.title, read.hidden, read.layers) == ("tiny-one", "Tiny One", 64, 2)
    assert (read.heads, read.kv_heads, read.head_dim, read.vocab, read.max_context) == (4, 2, 16, 320, 2048)
    assert (read.full_layers, read.sliding_layers, read.linear_layers) == (2, 0, 0)
    assert not read.tied_embeddings
    assert read.params_total == read.params_active == 2 * 64 * 320 + 2 * 64 * 32
    assert read.native_bits == pytest.approx((2 * 64 * 320 * 16 + 2 * 64 * 32 * 4.5) / read.params_total)


def test_kinds_of_layers_are_seen_in_the_tensors(tmp_path):
    keys = {**LLAMA, "block_count": 6, "ssm.time_step_rank": 4, "ssm.inner_size": 64, "ssm.state_size": 8,
            "ssm.group_count": 2, "ssm.conv_kernel": 4}  # fmt: skip
    read = geometry_of(header(tmp_path, keys, architecture="qwen35", tensors=blocks("lllaml")))
    assert (read.layers, read.full_layers, read.linear_layers) == (6, 1, 4)
    assert (read.linear_k_heads, read.linear_v_heads, read.linear_k_dim, read.linear_v_dim) == (2, 4, 8, 16)
    assert read.is_hybrid
    assert read.state_bytes == 4 * (4 * 8 * 16 * 4 + (2 * 2 * 8 + 4 * 16) * 3 * 2)


def test_a_window_is_shared_out_by_the_pattern_or_by_the_family(tmp_path):
    keys = {**LLAMA, "block_count": 12, "attention.sliding_window": 512}
    gemma = geometry_of(header(tmp_path, keys, architecture="gemma3", tensors=blocks("a" * 12)))
    assert (gemma.full_layers, gemma.sliding_layers, gemma.sliding_window) == (2, 10, 512)
    said = [("attention.sliding_window_pattern", (BOOL, [True, True, False] * 4))]
    stated = geometry_of(header(tmp_path, keys, architecture="new", arrays=said, tensors=blocks("a" * 12)))
    assert (stated.full_layers, stated.sliding_layers) == (4, 8)


def test_experts_and_latent_attention_are_read(tmp_path):
    keys = {**LLAMA, "block_count": 4, "expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 32,
            "expert_shared_count": 1, "leading_dense_block_count": 1, "attention.kv_lora_rank": 16,
            "rope.dimension_count": 8, "attention.value_length": 16, "nextn_predict_layers": 1}  # fmt: skip
    parts = ("gate", "up", "down")
    routed = [(f"blk.{i}.ffn_{part}_exps.weight", (64, 32, 8), Q4_0, 0) for i in (1, 2) for part in parts]
    read = geometry_of(header(tmp_path, keys, architecture="deepseek2", tensors=[*blocks("aaaa"), *routed]))
    assert (read.layers, read.mtp_layers, read.expert_layers, read.experts, read.experts_per_token) == (3, 1, 2, 8, 2)
    assert (read.expert_intermediate, read.shared_intermediate, read.intermediate) == (32, 32, 128)
    assert read.kv_bytes_per_token(2) == 3 * (16 + 8) * 2
    assert read.params_total - read.params_active == 2 * 3 * 64 * 32 * (8 - 2)  # tied: the embedding is read as head


@pytest.mark.parametrize("missing", ["block_count", "embedding_length", "attention.head_count", "vocab_size"])
def test_a_missing_key_is_named(tmp_path, missing):
    keys = {key: value for key, value in LLAMA.items() if key != missing}
    with pytest.raises(UserError) as caught:
        geometry_of(header(tmp_path, keys))
    wanted = "tokenizer.ggml.tokens" if missing == "vocab_size" else f"llama.{missing}"
    assert caught.value.message == f"the GGUF has no `{wanted}`"


def test_a_file_that_names_no_architecture_is_refused(tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf(pairs=(("general.name", TEXT, "x"),)))
    with pytest.raises(UserError, match=r"the GGUF has no `general\.architecture`"):
        geometry_of(read_header(path))


def test_bits_are_unknown_where_a_type_is(tmp_path):
    read = header(tmp_path, LLAMA, tensors=[("token_embd.weight", (64, 320), 99, 0)])
    assert average_bits(read) is None
    assert average_bits(header(tmp_path, LLAMA)) is None


def test_absurd_values_give_a_line_or_a_sane_geometry(tmp_path):
    seed = time.time_ns() % 10**6
    print("seed", seed)
    rng = random.Random(seed)
    extra = ("expert_count", "expert_used_count", "attention.sliding_window", "attention.kv_lora_rank",
             "nextn_predict_layers", "leading_dense_block_count", "attention.value_length")  # fmt: skip
    for _ in range(300):
        keys = {key: value for key, value in LLAMA.items() if rng.random() < 0.95}
        for key in rng.sample((*LLAMA, *extra), 3):
            keys[key] = rng.choice((0, 1, 2, 7, 1000, 2**31, 2**32 - 1))
        try:
            read = geometry_of(header(tmp_path, keys, tensors=blocks("".join(rng.choices("alm", k=2)))))
        except UserError:
            continue
        assert 0 < read.params_active <= read.params_total
        assert read.full_layers + read.sliding_layers + read.linear_layers <= read.layers

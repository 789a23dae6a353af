"""GGUF files of families whose layers differ, by the keys and the tensors that llama.cpp's
converter writes.
"""

import json
import subprocess
import sys

import pytest
from weight_makers import ARRAY, BOOL, I32, TEXT, U32, gguf

Q4_0 = 2
FULL = ("attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight", "ffn_up.weight")
EXPERTS = (
    "ffn_gate_exps.weight",
    "ffn_up_exps.weight",
    "ffn_down_exps.weight",
    "ffn_up_shexp.weight",
)
KDA = (
    "attn_q.weight",
    "attn_k.weight",
    "attn_v.weight",
    "ssm_conv1d_q.weight",
    "ssm_a",
    "attn_output.weight",
)
KIMI_FULL = (3, 7, 11, 15, 19, 23, 26)
MIMO_SLIDES = [False, *([True] * 4), *([False, *([True] * 5)] * 7), False]
DECI_HEADS = [8, 8, 0, 4, 0, 8, 2, 8]


def tensors_of(blocks):
    """Small tensors: only their names say what a block is, and the second dimension how wide a
    shared expert is.
    """
    return [
        (f"blk.{block}.{name}", (64, 32), Q4_0, 0)
        for block, names in enumerate(blocks)
        for name in names
    ]


FAMILIES = {
    "llama4": (
        {
            "block_count": 48,
            "embedding_length": 5120,
            "attention.head_count": 40,
            "attention.head_count_kv": 8,
            "attention.key_length": 128,
            "attention.value_length": 128,
            "context_length": 1048576,
            "vocab_size": 202048,
            "feed_forward_length": 16384,
            "expert_feed_forward_length": 8192,
            "expert_count": 128,
            "expert_used_count": 1,
            "interleave_moe_layer_step": 2,
        },
        {},
        [FULL + (EXPERTS if block % 2 else ()) for block in range(48)],
        {
            "full_layers": 12,
            "sliding_layers": 36,
            "sliding_window": 8192,
            "expert_layers": 24,
            "intermediate": 16384,
            "shared_intermediate": 32,
            "kv_bytes_per_token": 12 * 2 * 8 * 128 * 2,
        },
    ),
    "kimi-linear": (
        {
            "block_count": 27,
            "embedding_length": 2304,
            "attention.head_count": 32,
            "context_length": 1048576,
            "vocab_size": 163840,
            "feed_forward_length": 9216,
            "expert_feed_forward_length": 1024,
            "expert_count": 256,
            "expert_used_count": 8,
            "expert_shared_count": 1,
            "leading_dense_block_count": 1,
            "attention.kv_lora_rank": 512,
            "attention.key_length": 576,
            "attention.value_length": 512,
            "attention.key_length_mla": 192,
            "attention.value_length_mla": 128,
            "rope.dimension_count": 64,
            "kda.head_dim": 128,
            "ssm.conv_kernel": 4,
        },
        {
            "attention.head_count_kv": (
                I32,
                [32 if block in KIMI_FULL else 0 for block in range(27)],
            )
        },
        [
            (FULL if block in KIMI_FULL else KDA) + (EXPERTS if block else ())
            for block in range(27)
        ],
        {
            "full_layers": 7,
            "linear_layers": 20,
            "expert_layers": 26,
            "shared_intermediate": 1024,
            "kv_bytes_per_token": 7 * 576 * 2,
            "state_bytes": 20 * (32 * 128 * 128 * 4 + 3 * 4096 * 3 * 2),
        },
    ),
    "mimo2": (
        {
            "block_count": 48,
            "embedding_length": 4096,
            "attention.head_count": 64,
            "context_length": 262144,
            "vocab_size": 152576,
            "feed_forward_length": 16384,
            "attention.key_length": 192,
            "attention.value_length": 128,
            "attention.sliding_window": 128,
            "expert_count": 256,
            "expert_used_count": 8,
            "expert_feed_forward_length": 2048,
        },
        {
            "attention.head_count_kv": (I32, [8 if slides else 4 for slides in MIMO_SLIDES]),
            "attention.sliding_window_pattern": (BOOL, MIMO_SLIDES),
        },
        [FULL + (EXPERTS[:3] if block else ()) for block in range(48)],
        {
            "full_layers": 9,
            "sliding_layers": 39,
            "expert_layers": 47,
            "kv_bytes_per_token": 9 * 4 * 320 * 2,
            "window_bytes": 39 * 8 * 320 * 128 * 2,
        },
    ),
    "deepseek4": (
        {
            "block_count": 44,
            "nextn_predict_layers": 1,
            "embedding_length": 4096,
            "attention.head_count": 64,
            "attention.head_count_kv": 1,
            "attention.key_length": 512,
            "attention.value_length": 512,
            "attention.sliding_window": 128,
            "attention.indexer.key_length": 128,
            "context_length": 1048576,
            "vocab_size": 129280,
            "expert_count": 256,
            "expert_used_count": 6,
            "expert_feed_forward_length": 2048,
            "expert_shared_count": 1,
        },
        {"attention.compress_ratios": (I32, [0, 0, *([4, 128] * 20), 4, 0])},
        [("attn_norm.weight", "attn_q_a.weight", "attn_kv.weight", *EXPERTS) for _ in range(44)],
        {
            "layers": 43,
            "full_layers": 41,
            "sliding_layers": 43,
            "mtp_layers": 1,
            "kv_bytes_per_token": 6880,
            "window_bytes": 43 * 512 * 128 * 2,
        },
    ),
    "deci": (
        {
            "block_count": 8,
            "embedding_length": 1024,
            "context_length": 131072,
            "vocab_size": 128256,
            "attention.key_length": 128,
            "attention.value_length": 128,
        },
        {
            "attention.head_count": (I32, [8 if heads else 0 for heads in DECI_HEADS]),
            "attention.head_count_kv": (I32, DECI_HEADS),
            "feed_forward_length": (I32, [4096, 1024] * 4),
        },
        [FULL if heads else ("ffn_up.weight", "attn_norm.weight") for heads in DECI_HEADS],
        {
            "full_layers": 6,
            "kv_heads": 8,
            "intermediate": 2560,
            "kv_bytes_per_token": sum(DECI_HEADS) * 2 * 128 * 2,
        },
    ),
    "minimax-01": (
        {
            "block_count": 80,
            "embedding_length": 6144,
            "attention.head_count": 64,
            "attention.head_count_kv": 8,
            "attention.key_length": 128,
            "attention.value_length": 128,
            "context_length": 10240000,
            "vocab_size": 200064,
            "feed_forward_length": 9216,
            "expert_count": 32,
            "expert_used_count": 2,
        },
        {},
        [
            ("attn_qkv.weight", "attn_gate.weight", "attn_output.weight", *EXPERTS[:3])
            for _ in range(80)
        ],
        {
            "full_layers": 10,
            "linear_layers": 70,
            "kv_bytes_per_token": 10 * 2 * 8 * 128 * 2,
            "state_bytes": 70 * 64 * 128 * 128 * 4,
        },
    ),
    "gemma3n": (
        {
            "block_count": 35,
            "embedding_length": 2048,
            "attention.head_count": 8,
            "attention.head_count_kv": 2,
            "attention.key_length": 256,
            "attention.value_length": 256,
            "attention.sliding_window": 512,
            "attention.shared_kv_layers": 15,
            "context_length": 32768,
            "vocab_size": 262400,
        },
        {
            "attention.sliding_window_pattern": (BOOL, [True, True, True, True, False] * 7),
            "feed_forward_length": (I32, [16384] * 35),
        },
        [FULL for _ in range(35)],
        {
            "layers": 35,
            "full_layers": 4,
            "sliding_layers": 16,
            "intermediate": 16384,
            "kv_bytes_per_token": 4 * 2 * 2 * 256 * 2,
            "window_bytes": 16 * 2 * 2 * 256 * 512 * 2,
        },
    ),
    "falcon-h1": (
        {
            "block_count": 4,
            "embedding_length": 1024,
            "attention.head_count": 8,
            "attention.head_count_kv": 2,
            "attention.key_length": 64,
            "context_length": 131072,
            "vocab_size": 32784,
            "feed_forward_length": 2048,
            "ssm.conv_kernel": 4,
            "ssm.inner_size": 1536,
            "ssm.state_size": 128,
            "ssm.time_step_rank": 24,
            "ssm.group_count": 1,
        },
        {},
        [
            ("attn_q.weight", "attn_k.weight", "ssm_in.weight", "ssm_out.weight", "ffn_up.weight")
            for _ in range(4)
        ],
        {
            "full_layers": 4,
            "linear_layers": 4,
            "kv_bytes_per_token": 4 * 2 * 2 * 64 * 2,
            "state_bytes": 4 * (24 * 128 * 64 * 4 + (2 * 128 + 1536) * 3 * 2),
        },
    ),
}


def written(path, family, *, extra=(), only=None):
    keys, lists, blocks, _ = FAMILIES[family]
    pairs = [("general.architecture", TEXT, family), ("general.name", TEXT, "Own One")]
    pairs += [(f"{family}.{key}", U32, value) for key, value in keys.items()]
    pairs += [(f"{family}.{key}", ARRAY, value) for key, value in lists.items()]
    if only is None:
        tensors = tensors_of(blocks)
    else:
        tensors = tensors_of(blocks)[:only]
    path.write_bytes(gguf(pairs=(*pairs, *extra), tensors=tensors, data=0))
    return path


def read(path):
    command = [sys.executable, "-m", "skep", "catalog", "models", str(path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_tells_what_a_token_and_a_sequence_keep(tmp_path, family):
    model = read(written(tmp_path / "own.gguf", family))
    expected = FAMILIES[family][3]
    assert {key: model.get(key) for key in expected} == expected


@pytest.mark.parametrize("family", ["kimi-linear", "mimo2", "minimax-01", "deepseek4", "llama4"])
def test_one_part_of_several_tells_the_same_layers_without_their_tensors(tmp_path, family):
    split = [("split.count", U32, 4)]
    model = read(written(tmp_path / "own-00001-of-00004.gguf", family, extra=split, only=6))
    expected = FAMILIES[family][3]
    fields = [
        key
        for key in expected
        if key.endswith(("full_layers", "_per_token", "window_bytes", "state_bytes"))
    ]
    assert {key: model.get(key) for key in fields} == {key: expected[key] for key in fields}

"""Models that the catalogue does not have, by the config.json that their makers published: what is
kept of a token and of a sequence, worked out by hand from the widths, and the parameters, as the
makers state them."""

import json

import pytest
from in_process import call, refused

MIMO_LAYERS = [0, 1, 1, 1, 1, *([0, 1, 1, 1, 1, 1] * 7), 0]
KIMI_FULL = [4, 8, 12, 16, 20, 24, 27]
K3_FULL = [*range(4, 93, 4), 93]

CONFIGS = {
    "Llama-4-Maverick-17B-128E-Instruct": {
        "model_type": "llama4",
        "text_config": {
            "model_type": "llama4_text",
            "num_hidden_layers": 48,
            "hidden_size": 5120,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 202048,
            "attention_chunk_size": 8192,
            "interleave_moe_layer_step": 2,
            "intermediate_size": 8192,
            "intermediate_size_mlp": 16384,
            "num_local_experts": 128,
            "num_experts_per_tok": 1,
            "max_position_embeddings": 1048576,
            "no_rope_layers": [],
        },
    },
    "MiMo-V2-Flash": {
        "model_type": "mimo_v2_flash",
        "num_hidden_layers": 48,
        "hidden_size": 4096,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 192,
        "v_head_dim": 128,
        "intermediate_size": 16384,
        "vocab_size": 152576,
        "max_position_embeddings": 262144,
        "sliding_window": 128,
        "sliding_window_size": 128,
        "attention_chunk_size": 128,
        "swa_num_attention_heads": 64,
        "swa_num_key_value_heads": 8,
        "swa_head_dim": 192,
        "swa_v_head_dim": 128,
        "hybrid_layer_pattern": MIMO_LAYERS,
        "moe_layer_freq": [0, *([1] * 47)],
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": None,
        "num_experts_per_tok": 8,
        "tie_word_embeddings": False,
    },
    "Kimi-Linear-48B-A3B-Instruct": {
        "model_type": "kimi_linear",
        "num_hidden_layers": 27,
        "hidden_size": 2304,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 72,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "intermediate_size": 9216,
        "moe_intermediate_size": 1024,
        "num_experts": 256,
        "num_experts_per_token": 8,
        "num_shared_experts": 1,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "vocab_size": 163840,
        "tie_word_embeddings": False,
        "linear_attn_config": {
            "full_attn_layers": KIMI_FULL,
            "kda_layers": [n for n in range(1, 28) if n not in KIMI_FULL],
            "head_dim": 128,
            "num_heads": 32,
            "short_conv_kernel_size": 4,
        },
    },
    "Kimi-K3": {
        "model_type": "kimi_k3",
        "text_config": {
            "model_type": "kimi_linear",
            "num_hidden_layers": 93,
            "hidden_size": 7168,
            "num_attention_heads": 96,
            "num_key_value_heads": 96,
            "kv_lora_rank": 512,
            "q_lora_rank": 1536,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "intermediate_size": 33792,
            "moe_intermediate_size": 3072,
            "routed_expert_hidden_size": 3584,
            "num_experts": 896,
            "num_experts_per_token": 16,
            "num_shared_experts": 2,
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "vocab_size": 163840,
            "max_position_embeddings": 1048576,
            "num_nextn_predict_layers": 0,
            "linear_attn_config": {
                "full_attn_layers": K3_FULL,
                "kda_layers": [n for n in range(1, 94) if n not in K3_FULL],
                "head_dim": 128,
                "num_heads": 96,
                "short_conv_kernel_size": 4,
                "use_full_rank_gate": True,
            },
        },
    },
    "DeepSeek-V4-Pro": {
        "model_type": "deepseek_v4",
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "num_attention_heads": 128,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "vocab_size": 129280,
        "q_lora_rank": 1536,
        "o_lora_rank": 1024,
        "o_groups": 16,
        "qk_rope_head_dim": 64,
        "index_n_heads": 64,
        "index_head_dim": 128,
        "sliding_window": 128,
        "compress_ratios": [128, 128, *([4, 128] * 29), 4, 0],
        "moe_intermediate_size": 3072,
        "n_routed_experts": 384,
        "n_shared_experts": 1,
        "num_experts_per_tok": 6,
        "num_nextn_predict_layers": 1,
        "max_position_embeddings": 1048576,
        "expert_dtype": "fp4",
        "tie_word_embeddings": False,
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "weight_block_size": [128, 128],
        },
    },
    "MiniMax-Text-01": {
        "model_type": "minimax_text_01",
        "num_hidden_layers": 80,
        "hidden_size": 6144,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 200064,
        "intermediate_size": 9216,
        "num_local_experts": 32,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 10240000,
        "shared_intermediate_size": 0,
        "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10,
    },
    "MiniMax-Text-01-hf": {
        "model_type": "minimax",
        "num_hidden_layers": 80,
        "hidden_size": 6144,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 200064,
        "intermediate_size": 9216,
        "num_local_experts": 32,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 10240000,
        "linear_attn_alpha_factor": 3.5565588200778455,
        "layer_types": [*(["linear_attention"] * 7), "full_attention"] * 10,
    },
    "Ring-mini-linear-2.0": {
        "model_type": "bailing_moe_linear",
        "num_hidden_layers": 20,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 157184,
        "intermediate_size": 5120,
        "moe_intermediate_size": 512,
        "moe_shared_expert_intermediate_size": 512,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "num_shared_experts": 1,
        "first_k_dense_replace": 1,
        "layer_group_size": 5,
        "max_position_embeddings": 131072,
    },
    "Jamba-v0.1": {
        "model_type": "jamba",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 65536,
        "intermediate_size": 14336,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_dt_rank": 256,
        "max_position_embeddings": 262144,
        "sliding_window": None,
    },
    "Falcon-H1-34B-Instruct": {
        "model_type": "falcon_h1",
        "num_hidden_layers": 72,
        "hidden_size": 5120,
        "num_attention_heads": 20,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 261120,
        "intermediate_size": 21504,
        "mamba_d_ssm": 4096,
        "mamba_n_heads": 32,
        "mamba_d_head": 128,
        "mamba_d_state": 256,
        "mamba_n_groups": 2,
        "mamba_d_conv": 4,
        "max_position_embeddings": 262144,
        "sliding_window": None,
    },
    "Bamba-9B": {
        "model_type": "bamba",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "intermediate_size": 14336,
        "attn_layer_indices": [9, 18, 27],
        "mamba_n_heads": 128,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "mamba_n_groups": 1,
        "mamba_d_conv": 4,
        "max_position_embeddings": 262144,
    },
    "ERNIE-4.5-21B-A3B": {
        "model_type": "ernie4_5_moe",
        "num_hidden_layers": 28,
        "hidden_size": 2560,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "num_attention_heads": 20,
        "num_key_value_heads": 4,
        "moe_num_experts": 64,
        "moe_k": 6,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_interval": 1,
        "vocab_size": 103424,
        "tie_word_embeddings": True,
        "max_position_embeddings": 131072,
    },
    "ERNIE-4.5-300B-A47B": {
        "model_type": "ernie4_5_moe",
        "num_hidden_layers": 54,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "moe_intermediate_size": 3584,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "moe_num_experts": 64,
        "moe_k": 8,
        "moe_num_shared_experts": 0,
        "moe_layer_start_index": 3,
        "moe_layer_interval": 1,
        "vocab_size": 103424,
        "tie_word_embeddings": False,
        "max_position_embeddings": 131072,
    },
    "LFM2-1.2B": {
        "model_type": "lfm2",
        "num_hidden_layers": 16,
        "hidden_size": 2048,
        "block_ff_dim": 12288,
        "block_auto_adjust_ff_dim": True,
        "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 256,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        "conv_L_cache": 3,
        "conv_dim": 2048,
        "vocab_size": 65536,
        "max_position_embeddings": 128000,
    },
    "LFM2-8B-A1B": {
        "model_type": "lfm2_moe",
        "num_hidden_layers": 24,
        "hidden_size": 2048,
        "intermediate_size": 7168,
        "moe_intermediate_size": 1792,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "num_dense_layers": 2,
        "conv_L_cache": 3,
        "vocab_size": 65536,
        "layer_types": [
            "full_attention" if place in (2, 6, 10, 14, 18, 21) else "conv" for place in range(24)
        ],
        "max_position_embeddings": 128000,
    },
}

# name: parameters and active ones as published (10^9), KV of a token, windows and state of a
# sequence (bytes). Kimi K3's parameters are those that the widths give. Of ERNIE 4.5 21B, the
# active 3 * 10^9 are without its tied head.
EXPECTED = {
    "Llama-4-Maverick-17B-128E-Instruct": (
        400,
        17,
        12 * 2 * 8 * 128 * 2,
        36 * 2 * 8 * 128 * 8192 * 2,
        0,
    ),
    "MiMo-V2-Flash": (309, 15, 9 * 4 * (192 + 128) * 2, 39 * 8 * (192 + 128) * 128 * 2, 0),
    "Kimi-Linear-48B-A3B-Instruct": (
        48,
        3,
        7 * (512 + 64) * 2,
        0,
        20 * (32 * 128 * 128 * 4 + 3 * 4096 * 3 * 2),
    ),
    "Kimi-K3": (2772, None, 24 * (512 + 64) * 2, 0, 69 * (96 * 128 * 128 * 4 + 3 * 12288 * 3 * 2)),
    # 30 layers keep 512 values and an index of 128 for 4 tokens, 31 layers 512 for 128, all of
    # them their window
    "DeepSeek-V4-Pro": (
        1600,
        49,
        (30 * (512 + 128) / 4 + 31 * 512 / 128) * 2,
        61 * 512 * 128 * 2,
        0,
    ),
    "MiniMax-Text-01": (456, 45.9, 10 * 2 * 8 * 128 * 2, 0, 70 * 64 * 128 * 128 * 4),
    "MiniMax-Text-01-hf": (456, 45.9, 10 * 2 * 8 * 128 * 2, 0, 70 * 64 * 128 * 128 * 4),
    "Ring-mini-linear-2.0": (16.4, 1.6, 4 * 2 * 4 * 128 * 2, 0, 16 * 16 * 128 * 128 * 4),
    "Jamba-v0.1": (52, 12, 4 * 2 * 8 * 128 * 2, 0, 28 * (8192 * 16 * 4 + (8192 + 2 * 16) * 3 * 2)),
    "Falcon-H1-34B-Instruct": (
        34,
        34,
        72 * 2 * 4 * 128 * 2,
        0,
        72 * (32 * 128 * 256 * 4 + (4096 + 2 * 2 * 256) * 3 * 2),
    ),
    "ERNIE-4.5-21B-A3B": (21.8, 3.35, 28 * 2 * 4 * 128 * 2, 0, 0),
    "ERNIE-4.5-300B-A47B": (300, 47, 54 * 2 * 8 * 128 * 2, 0, 0),
    "LFM2-1.2B": (1.17, 1.17, 6 * 2 * 8 * 64 * 2, 0, 0),
    "LFM2-8B-A1B": (8.3, 1.5, 6 * 2 * 8 * 64 * 2, 0, 0),
    "Bamba-9B": (
        9.8,
        9.8,
        3 * 2 * 8 * 128 * 2,
        0,
        29 * (128 * 64 * 128 * 4 + (8192 + 2 * 128) * 3 * 2),
    ),
}


@pytest.fixture
def config_of(tmp_path):
    def write(name, config):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        return folder / "config.json"

    return write


@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_configuration_tells_what_a_token_and_a_sequence_keep(config_of, name):
    total, active, kv, windows, state = EXPECTED[name]
    read = call("catalog", "models", config_of(name, CONFIGS[name]), "--json", check=0).json
    assert read["kv_bytes_per_token"] == kv
    assert (read["window_bytes"], read["state_bytes"]) == (windows, state)
    assert read["params_total"] == pytest.approx(total * 1e9, rel=0.025)
    if active is not None:
        # Some makers count the embedding, of which a token reads one row.
        looked_up = read["parts"]["embedding"]
        low = read["params_active"]
        high = read["params_active"] + looked_up
        assert low * 0.93 <= active * 1e9 <= high * 1.05


def test_layers_that_compress_by_an_unknown_ratio_are_refused_by_name(config_of):
    """As newer versions of Transformers may write it: taken for full attention, a token would keep
    far too much.
    """
    config = {**CONFIGS["DeepSeek-V4-Pro"], "layer_types": ["heavily_compressed_attention"] * 61}
    del config["compress_ratios"]
    message = refused("catalog", "models", config_of("new", config))
    assert "`layer_types` is 'heavily_compressed_attention', not a name" in message
    assert "`compress_ratios` does" in message


# Of one of eight cards that share each tensor: its part of windows and state, and the weights of
# the whole model by the bits of a weight. KV that is compressed is whole on every card.
ON_A_CARD = [
    (
        "Llama-4-Maverick-17B-128E-Instruct",
        "fp8",
        400e9,
        "sliding-window KV",
        36 * 2 * 1 * 128 * (8192 + 8192) * 2,
    ),
    ("MiMo-V2-Flash", "fp8", 309e9, "sliding-window KV", 39 * 1 * (192 + 128) * (128 + 8192) * 2),
    (
        "Kimi-Linear-48B-A3B-Instruct",
        "fp8",
        49e9,
        "linear-attention state",
        EXPECTED["Kimi-Linear-48B-A3B-Instruct"][4] / 8,
    ),
    (
        "MiniMax-Text-01",
        "fp8",
        456e9,
        "linear-attention state",
        EXPECTED["MiniMax-Text-01"][4] / 8,
    ),
    ("Jamba-v0.1", "fp8", 52e9, "linear-attention state", EXPECTED["Jamba-v0.1"][4] / 8),
    (
        "DeepSeek-V4-Pro",
        "mxfp4",
        1573e9 * 4.25 / 8,
        "sliding-window KV",
        61 * 512 * (128 + 8192) * 2,
    ),
]


@pytest.mark.parametrize(
    ("name", "quant", "weights", "term", "kept_bytes"),
    ON_A_CARD,
    ids=[row[0] for row in ON_A_CARD],
)
def test_a_plan_has_the_weights_the_windows_and_the_state_of_a_published_model(
    config_of, name, quant, weights, term, kept_bytes
):
    layout = ["--engine", "vllm", "--tp", "8", "--quant", quant]
    words = [
        "plan",
        config_of(name, CONFIGS[name]),
        "--gpu",
        "8x h200",
        *layout,
        "-c",
        "1",
        "--context",
        "20000",
    ]
    (plan,) = call(*words, "--spec", "none", "--json", check=0).json["plans"][:1]
    memory = {row["term"]: row["bytes"] for row in plan["memory"]}
    assert memory["weights"] * 8 == pytest.approx(weights, rel=0.05)
    assert memory[term] == kept_bytes

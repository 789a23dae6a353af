"""config.json files as they are published, and as they are not."""

import json
import random
import time

import pytest

from skep.catalog.models import geometry
from skep.errors import UserError
from skep.weights.config_json import (
    Quantization,
    geometry_from_config,
    quantization_from_config,
    read_config,
    read_quantization,
)

NAMES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "vocab_size")


def shape(layers, hidden, heads, kv_heads, vocab, **more):
    return {**dict(zip(NAMES, (layers, hidden, heads, kv_heads, vocab), strict=True)), **more}


def every(period, layers, usual, other):
    return [other if (i + 1) % period == 0 else usual for i in range(layers)]


LLAMA = shape(32, 4096, 32, 8, 128256, model_type="llama", intermediate_size=14336, max_position_embeddings=131072,
              tie_word_embeddings=False)  # fmt: skip
QWEN35 = shape(
    64, 5120, 24, 4, 248320, model_type="qwen3_5_text", head_dim=256, intermediate_size=17408,
    full_attention_interval=4, layer_types=every(4, 64, "linear_attention", "full_attention"), linear_conv_kernel_dim=4,
    linear_key_head_dim=128, linear_num_key_heads=16, linear_num_value_heads=48, linear_value_head_dim=128,
    max_position_embeddings=262144, mtp_num_hidden_layers=1,
)  # fmt: skip
MOE35 = {
    **QWEN35, **shape(40, 2048, 16, 2, 248320), "layer_types": None, "linear_num_value_heads": 32, "num_experts": 256,
    "num_experts_per_tok": 8, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    "intermediate_size": None, "model_type": "qwen3_5_moe_text",
}  # fmt: skip
DEEPSEEK = shape(
    61, 7168, 128, 128, 129280, model_type="deepseek_v3", intermediate_size=18432, moe_intermediate_size=2048,
    n_routed_experts=256, n_shared_experts=1, num_experts_per_tok=8, first_k_dense_replace=3, moe_layer_freq=1,
    kv_lora_rank=512, q_lora_rank=1536, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
    num_nextn_predict_layers=1, max_position_embeddings=163840,
    quantization_config={"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
)  # fmt: skip
NEMOTRON = shape(
    52, 2688, 32, 2, 131072, model_type="nemotron_h", head_dim=128, intermediate_size=1856, moe_intermediate_size=1856,
    hybrid_override_pattern="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", mamba_num_heads=64,
    mamba_head_dim=64, ssm_state_size=128, n_groups=8, conv_kernel=4, mlp_hidden_act="relu2", n_routed_experts=128,
    num_experts_per_tok=6, moe_shared_expert_intermediate_size=3712, max_position_embeddings=262144,
)  # fmt: skip
GEMMA4 = shape(
    30, 2816, 16, 8, 262144, model_type="gemma4_text", head_dim=256, global_head_dim=512, num_global_key_value_heads=2,
    intermediate_size=2112, moe_intermediate_size=704, num_experts=128, top_k_experts=8, enable_moe_block=True,
    sliding_window=1024, layer_types=every(6, 30, "sliding_attention", "full_attention"),
    max_position_embeddings=262144, tie_word_embeddings=True,
)  # fmt: skip
GPT_OSS = shape(
    24, 2880, 64, 8, 201088, model_type="gpt_oss", head_dim=64, intermediate_size=2880, num_local_experts=32,
    num_experts_per_tok=4, sliding_window=128, max_position_embeddings=131072,
    quantization_config={"quant_method": "mxfp4"},
)  # fmt: skip
PUBLISHED = {
    "llama-3.1-8b": LLAMA,
    "qwen3.6-27b": {"model_type": "qwen3_5", "text_config": QWEN35, "tie_word_embeddings": False},
    "qwen3.6-35b-a3b": {"model_type": "qwen3_5_moe", "text_config": MOE35, "tie_word_embeddings": False},
    "deepseek-v3": DEEPSEEK,
    "nemotron-3-nano-30b-a3b": NEMOTRON,
    "gemma-4-26b-a4b": {"model_type": "gemma4", "text_config": GEMMA4},
    "gpt-oss-20b": GPT_OSS,
    "qwen3-30b-a3b": shape(48, 2048, 32, 4, 151936, model_type="qwen3_moe", head_dim=128, intermediate_size=6144,
                           moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8, decoder_sparse_step=1,
                           mlp_only_layers=[], max_position_embeddings=40960, sliding_window=None,
                           use_sliding_window=False, max_window_layers=48),
    "qwen2.5-coder-32b": shape(64, 5120, 40, 8, 152064, model_type="qwen2", intermediate_size=27648,
                               max_position_embeddings=32768, sliding_window=131072, use_sliding_window=False),
    "mixtral-8x7b": shape(32, 4096, 32, 8, 32000, model_type="mixtral", intermediate_size=14336, num_local_experts=8,
                          num_experts_per_tok=2, max_position_embeddings=32768, sliding_window=None),
    "gemma-3-27b": {"model_type": "gemma3", "text_config": shape(
        62, 5376, 32, 16, 262208, model_type="gemma3_text", head_dim=128, intermediate_size=21504,
        sliding_window=1024, max_position_embeddings=131072)},
    "gemma-2-9b": shape(42, 3584, 16, 8, 256000, model_type="gemma2", head_dim=256, intermediate_size=14336,
                        sliding_window=4096, max_position_embeddings=8192),
    "minimax-m2.7": shape(62, 3072, 48, 8, 200064, model_type="minimax_m2", head_dim=128, intermediate_size=1536,
                          num_local_experts=256, num_experts_per_tok=8, shared_intermediate_size=0, num_mtp_modules=3,
                          attn_type_list=[1] * 62, max_position_embeddings=204800),
    "mistral-small-4-119b": {"model_type": "mistral3", "text_config": shape(
        36, 4096, 32, 32, 131072, model_type="mistral4", intermediate_size=12288, moe_intermediate_size=2048,
        n_shared_experts=1, n_routed_experts=128, num_experts_per_tok=4, kv_lora_rank=256, qk_rope_head_dim=64,
        v_head_dim=128, qk_nope_head_dim=64, first_k_dense_replace=0, max_position_embeddings=262144)},
}  # fmt: skip
# The last two are of published checkpoints, which a plain configuration does not tell.
NOT_COMPARED = {"id", "title", "aliases", "origins", "params_total", "params_active", "vision_params"}
NOT_COMPARED |= {"native_bits", "kept_small"}


@pytest.mark.parametrize("slug", PUBLISHED)
def test_a_published_configuration_gives_the_geometry_of_the_catalogue(slug):
    """Field by field; parameters are counted, as no configuration states them."""
    read, known = geometry_from_config(json.dumps(PUBLISHED[slug]), slug), geometry(slug)
    compared = set(known.__dataclass_fields__) - NOT_COMPARED
    assert {key: getattr(read, key) for key in compared} == {key: getattr(known, key) for key in compared}
    assert read.params_total == pytest.approx(known.params_total, rel=0.02)
    assert read.params_active == pytest.approx(known.params_active, rel=0.1)


def test_a_window_without_a_pattern_slides_in_every_layer():
    """Mistral 7B of the first version; phi-3's window is as long as its context, so nothing slides."""
    mistral = shape(32, 4096, 32, 8, 32000, model_type="mistral", intermediate_size=14336, sliding_window=4096)
    assert (geometry_from_config(mistral, "m").sliding_layers, geometry_from_config(mistral, "m").full_layers) == (
        32,
        0,
    )
    phi = {**mistral, "model_type": "phi3", "sliding_window": 262144, "max_position_embeddings": 131072}
    assert geometry_from_config(phi, "p").full_layers == 32


def test_an_unknown_architecture_is_read_by_the_usual_keys():
    known = {**LLAMA, "model_type": "something_new", "architectures": ["SomethingNewForCausalLM"]}
    assert geometry_from_config(known, "new").params_total == pytest.approx(8.03e9, rel=0.001)


def test_a_vision_tower_is_counted_beside_the_text_model():
    tower = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304}
    read = geometry_from_config({**PUBLISHED["qwen3.6-27b"], "vision_config": tower}, "q")
    assert read.vision_params == pytest.approx(0.41e9, rel=0.02)
    assert read.params_total == pytest.approx(26.87e9, rel=0.01)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (None, None),
        ({"quant_method": "fp8"}, Quantization("fp8", 8.0)),
        ({"quant_method": "mxfp4"}, Quantization("mxfp4", 4.25)),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, Quantization("awq", 4.0)),
        ({"quant_method": "gptq", "bits": 8}, Quantization("gptq", 8.0)),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4}}}},
         Quantization("compressed-tensors", 4.0)),
        ({"quant_method": "modelopt", "config_groups": {"a": {"weights": {"num_bits": 8}},
                                                        "b": {"weights": {"num_bits": 4}}}},
         Quantization("modelopt", 4.0)),
        ({"quant_method": "new"}, Quantization("new", None)),
        ({}, Quantization("unknown", None)),
    ],
)  # fmt: skip
def test_the_quantization_stands_beside_the_geometry(said, expected):
    config = {**LLAMA, "quantization_config": said}
    assert quantization_from_config(config, "x") == expected
    assert geometry_from_config(config, "x").native_bits == (expected.bits if expected else None)


def test_a_file_or_its_folder_is_read(tmp_path):
    folder = tmp_path / "My Model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(GPT_OSS))
    assert read_config(folder / "config.json") == read_config(folder / "config.json")
    assert (read_config(folder).layers, read_config(folder / "config.json").title) == (24, "My Model")
    assert read_quantization(folder) == Quantization("mxfp4", 4.25)
    with pytest.raises(UserError, match="there is no file"):
        read_config(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("num_hidden_layers", 0, "`num_hidden_layers` is 0, not a whole number from 1 to 1000"),
        ("num_hidden_layers", None, "has no `num_hidden_layers`"),
        ("num_hidden_layers", "32", "`num_hidden_layers` is '32'"),
        ("num_hidden_layers", 10**12, "`num_hidden_layers` is 1000000000000"),
        ("num_hidden_layers", True, "`num_hidden_layers` is True"),
        ("hidden_size", -4096, "`hidden_size` is -4096"),
        ("hidden_size", 4097, "`num_attention_heads` is 32, not a divisor of the hidden size 4097"),
        ("hidden_size", [4096], "`hidden_size` is [4096]"),
        ("num_key_value_heads", 7, "`num_key_value_heads` is 7, not a divisor of the 32 heads"),
        ("num_attention_heads", 0, "`num_attention_heads` is 0"),
        ("vocab_size", 10**1000, "`vocab_size` is a huge number"),
        ("vocab_size", 1.5, "`vocab_size` is 1.5"),
        ("vocab_size", float("nan"), "`vocab_size` is nan"),
        ("intermediate_size", None, "has no `intermediate_size`"),
        ("intermediate_size", {}, "`intermediate_size` is {}"),
        ("layer_types", ["full_attention"], "`layer_types` is ['full_attention'], not a list of 32"),
        ("layer_types", "full", "`layer_types` is 'full', not a list"),
        ("layer_types", ["sliding_attention"] * 32, "`sliding_window` is None"),
        ("layer_types", ["linear_attention"] * 32, "has no `mamba_num_heads`"),
        ("hybrid_override_pattern", "MMM", "`hybrid_override_pattern` is 'MMM', not 32 letters"),
        ("num_experts", -1, "`num_experts` is -1"),
        ("num_experts", 8, "has no `num_experts_per_tok`"),
        ("tie_word_embeddings", "yes", "`tie_word_embeddings` is 'yes', not true or false"),
        ("max_position_embeddings", -1, "`max_position_embeddings` is -1"),
        ("quantization_config", {"quant_method": 4}, "`quant_method` is 4, not a text"),
        ("quantization_config", {"bits": 1e9}, "`bits` is 1000000000.0"),
    ],
)
def test_a_wrong_value_is_named_with_its_key_and_file(key, value, said):
    with pytest.raises(UserError) as caught:
        geometry_from_config({**LLAMA, key: value}, "my/config.json")
    assert caught.value.message.startswith("`my/config.json`")
    assert said in caught.value.message
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 160


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '"x"', "{'a'}", "[" * 100_000, b"\xff\xfe", '{"a": ' + "9" * 5000 + "}", " " * (5 << 20)],
    ids=range(10),
)  # fmt: skip
def test_what_is_not_json_is_one_line(text):
    with pytest.raises(UserError) as caught:
        geometry_from_config(text, "broken.json")
    assert "`broken.json`" in caught.value.message
    assert "\n" not in caught.value.message


def test_damaged_configurations_give_an_error_or_a_sane_geometry():
    """Keys dropped, doubled, swapped for nonsense: never a traceback, never a negative size."""
    seed = time.time_ns() % 10**6
    print("seed", seed)
    rng = random.Random(seed)
    nonsense = [None, 0, -1, 1, 3, 10**12, 1e308, float("inf"), "8", "", [], [1], {}, {"a": []}, True, 0.5, [None] * 64]
    refused = 0
    for _ in range(3000):
        config = json.loads(json.dumps(rng.choice(list(PUBLISHED.values()))))
        inner = config.get("text_config", config)
        for _ in range(rng.randrange(1, 4)):
            key = rng.choice(list(inner))
            if rng.random() < 0.3:
                inner.pop(key)
            else:
                inner[key] = rng.choice(nonsense)
            if not inner:
                break
        try:
            read = geometry_from_config(config, "damaged")
        except UserError:
            refused += 1
        else:
            assert 0 < read.params_active <= read.params_total < 1e19
            assert min(read.full_layers, read.sliding_layers, read.linear_layers, read.experts) >= 0
            assert read.full_layers + read.sliding_layers + read.linear_layers <= read.layers
            assert read.kv_bytes_per_token(2) >= 0
    assert refused > 300

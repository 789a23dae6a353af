"""config.json files as they are published, and as they are not."""

import json
import random
import time
from pathlib import Path

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

FILES = sorted(Path(__file__).with_name("configs").glob("*.json"))
PUBLISHED = {path.stem: json.loads(path.read_text()) for path in FILES}
LLAMA = PUBLISHED["llama-3.1-8b"]
# The last two are of published checkpoints, which a plain configuration does not tell.
NOT_COMPARED = {
    "id",
    "title",
    "aliases",
    "origins",
    "params_total",
    "params_active",
    "vision_params",
}
NOT_COMPARED |= {"native_bits", "kept_small"}


@pytest.mark.parametrize("slug", PUBLISHED)
def test_a_published_configuration_gives_the_geometry_of_the_catalogue(slug):
    """Field by field; parameters are counted, as no configuration states them."""
    read = geometry_from_config(json.dumps(PUBLISHED[slug]), slug)
    model = geometry(slug)
    compared = set(model.__dataclass_fields__) - NOT_COMPARED
    assert {key: getattr(read, key) for key in compared} == {
        key: getattr(model, key) for key in compared
    }
    assert read.params_total == pytest.approx(model.params_total, rel=0.02)
    assert read.params_active == pytest.approx(model.params_active, rel=0.1)


def test_a_window_without_a_pattern_slides_in_every_layer():
    """Mistral 7B of the first version; phi-3's window is as long as its context, so nothing
    slides.
    """
    read = geometry_from_config({**LLAMA, "model_type": "mistral", "sliding_window": 4096}, "m")
    assert (read.sliding_layers, read.full_layers) == (32, 0)
    assert (
        geometry_from_config(
            {**LLAMA, "model_type": "phi3", "sliding_window": 262144}, "p"
        ).full_layers
        == 32
    )


def test_an_unknown_architecture_is_read_by_the_usual_keys():
    config = {**LLAMA, "model_type": "something_new", "architectures": ["SomethingNewForCausalLM"]}
    assert geometry_from_config(config, "new").params_total == pytest.approx(8.03e9, rel=0.001)


def test_a_vision_tower_is_counted_beside_the_text_model():
    tower = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304}
    read = geometry_from_config({**PUBLISHED["qwen3.6-27b"], "vision_config": tower}, "q")
    assert read.vision_params == pytest.approx(0.41e9, rel=0.02)
    assert read.params_total == pytest.approx(26.87e9, rel=0.01)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (None, None),
        ({"quant_method": "fp8"}, Quantization("fp8", 8.0)),
        ({"quant_method": "mxfp4"}, Quantization("mxfp4", 4.25)),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, Quantization("awq", 4.0)),
        ({"quant_method": "gptq", "bits": 8}, Quantization("gptq", 8.0)),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4}}},
            },
            Quantization("compressed-tensors", 4.0),
        ),
        (
            {
                "quant_method": "modelopt",
                "config_groups": {
                    "a": {"weights": {"num_bits": 8}},
                    "b": {"weights": {"num_bits": 4}},
                },
            },
            Quantization("modelopt", 4.0),
        ),
        ({"quant_method": "new"}, Quantization("new", None)),
        ({}, Quantization("unknown", None)),
    ],
)
def test_the_quantization_stands_beside_the_geometry(document, expected):
    config = {**LLAMA, "quantization_config": document}
    assert quantization_from_config(config, "x") == expected
    assert geometry_from_config(config, "x").native_bits == (expected.bits if expected else None)


def test_a_file_or_its_folder_is_read(tmp_path):
    folder = tmp_path / "My Model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(PUBLISHED["gpt-oss-20b"]))
    assert read_config(folder / "config.json") == read_config(folder / "config.json")
    assert (read_config(folder).layers, read_config(folder / "config.json").title) == (
        24,
        "My Model",
    )
    assert read_quantization(folder) == Quantization("mxfp4", 4.25)
    with pytest.raises(UserError, match="there is no file"):
        read_config(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num_hidden_layers", 0, "`num_hidden_layers` is 0, not a whole number from 1 to 1000"),
        ("num_hidden_layers", None, "has no `num_hidden_layers`"),
        ("num_hidden_layers", "32", "`num_hidden_layers` is '32'"),
        ("num_hidden_layers", 10**12, "`num_hidden_layers` is 1000000000000"),
        ("num_hidden_layers", True, "`num_hidden_layers` is True"),
        ("hidden_size", -4096, "`hidden_size` is -4096"),
        (
            "hidden_size",
            4097,
            "`num_attention_heads` is 32, not a divisor of the hidden size 4097",
        ),
        ("hidden_size", [4096], "`hidden_size` is [4096]"),
        ("num_key_value_heads", 7, "`num_key_value_heads` is 7, not a divisor of the 32 heads"),
        ("num_attention_heads", 0, "`num_attention_heads` is 0"),
        ("vocab_size", 10**1000, "`vocab_size` is a huge number"),
        ("vocab_size", 1.5, "`vocab_size` is 1.5"),
        ("vocab_size", float("nan"), "`vocab_size` is nan"),
        ("intermediate_size", None, "has no `intermediate_size`"),
        ("intermediate_size", {}, "`intermediate_size` is {}"),
        (
            "layer_types",
            ["full_attention"],
            "`layer_types` is ['full_attention'], not a list of 32",
        ),
        ("layer_types", "full", "`layer_types` is 'full', not a list"),
        ("layer_types", ["sliding_attention"] * 32, "`sliding_window` is None"),
        ("layer_types", ["linear_attention"] * 32, "has no `mamba_num_heads`"),
        ("hybrid_override_pattern", "MMM", "`hybrid_override_pattern` is 'MMM', not 32 letters"),
        (
            "block_configs",
            [{}] * 32,
            "`block_configs.0` is {}, not a table with `attention` and `ffn`",
        ),
        (
            "block_configs",
            [{"attention": {}, "ffn": {}}] * 32,
            "has no `block_configs.0.num_key_value_heads`",
        ),
        (
            "block_configs",
            [{"attention": {"no_op": True}, "ffn": {"ffn_mult": -1}}] * 32,
            "`block_configs.0.ffn_mult`",
        ),
        (
            "block_configs",
            [{"attention": {"no_op": True}, "ffn": {"moe": {}}}] * 32,
            "`block_configs.0.moe` is {}",
        ),
        (
            "block_configs",
            [{"attention": {"no_op": True}, "ffn": {"no_op": True}}] * 32,
            "not a list with",
        ),
        ("model_type", "llama4_text", "`sliding_window` is None, not a window"),
        (
            "compress_ratios",
            [4, 128],
            "`compress_ratios` is [4, 128], not a list of 32 numbers of tokens",
        ),
        ("hybrid_layer_pattern", [2] * 32, "not a list of 0 and 1"),
        ("attn_type_list", [[]] * 32, "not a list of 0 and 1"),
        (
            "linear_attn_config",
            {"full_attn_layers": [0]},
            "is [0], not a list of layers from 1 to 32",
        ),
        ("linear_attn_config", {"full_attn_layers": [4]}, "has no `linear_attn_config.num_heads`"),
        ("attn_layer_period", 33, "`attn_layer_period` is 33"),
        ("num_experts", -1, "`num_experts` is -1"),
        ("num_experts", 8, "has no `num_experts_per_tok`"),
        ("tie_word_embeddings", "yes", "`tie_word_embeddings` is 'yes', not true or false"),
        ("max_position_embeddings", -1, "`max_position_embeddings` is -1"),
        ("quantization_config", {"quant_method": 4}, "`quant_method` is 4, not a text"),
        ("quantization_config", {"bits": 1e9}, "`bits` is 1000000000"),
    ],
)
def test_a_wrong_value_is_named_with_its_key_and_file(key, value, message):
    with pytest.raises(UserError) as caught:
        geometry_from_config({**LLAMA, key: value}, "my/config.json")
    assert caught.value.message.startswith("`my/config.json`")
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 160


def test_embeddings_of_each_layer_are_refused_by_name():
    """Gemma 4 E2B: two billion of its five were not counted, and it seemed to fit where it does
    not.
    """
    text = {
        "num_hidden_layers": 35,
        "num_kv_shared_layers": 20,
        "hidden_size_per_layer_input": 256,
    }
    config = {**PUBLISHED["gemma-3-27b"], "model_type": "gemma4", "hidden_size_per_layer_input": 0}
    with pytest.raises(UserError) as caught:
        geometry_from_config({**config, "text_config": {**config["text_config"], **text}}, "gemma")
    assert caught.value.message.startswith("`gemma`: `hidden_size_per_layer_input` is 256, not 0")
    assert caught.value.hint == "plan a GGUF file of it, whose tensors tell all of its parameters"


@pytest.mark.parametrize(
    ("key", "value", "family"),
    [
        ("block_types", ["recurrent", "attention"], "RecurrentGemma"),
        ("mb_per_layer", 2, "Phi-4-mini-flash"),
    ],
)
def test_families_whose_layers_are_not_counted_are_refused_by_name(key, value, family):
    """RecurrentGemma's 2.7 billion parameters were counted as 4.75, all layers taken as full
    attention.
    """
    with pytest.raises(UserError) as caught:
        geometry_from_config({**LLAMA, key: value}, "mine")
    assert caught.value.message == f"`mine`: skep does not count the layers of {family} (`{key}`)"


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "bert" + "x" * 100_000},
        {"architectures": ["A\nForMaskedLM"] * 1000},
        {"layer_types": ["compress" + "\x1b" * 1000] * 32},
    ],
    ids=["type", "architectures", "layers"],
)
def test_what_a_file_calls_things_is_told_in_one_short_line(config):
    """Names of a thousand lines, or with signs that a terminal takes for commands."""
    with pytest.raises(UserError) as caught:
        geometry_from_config({**LLAMA, **config}, "my/config.json")
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 250


def test_the_name_of_an_unknown_format_is_one_short_line():
    quantization = quantization_from_config(
        {"quantization_config": {"quant_method": "\x1b[31mx\n" * 1000}}, "x"
    )
    assert quantization.method.isprintable()
    assert len(quantization.method) <= 100


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '"x"',
        "{'a'}",
        "[" * 100_000,
        b"\xff\xfe",
        '{"a": ' + "9" * 5000 + "}",
    ],
    ids=range(9),
)
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
    nonsense = [
        None,
        0,
        -1,
        1,
        3,
        10**12,
        1e308,
        float("inf"),
        "8",
        "",
        [],
        [1],
        {},
        {"a": []},
        True,
        0.5,
        [None] * 64,
    ]
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
            assert (
                min(read.full_layers, read.sliding_layers, read.linear_layers, read.experts) >= 0
            )
            # These keep a window beside it.
            both = 0 if read.full_entries is None else read.full_layers
            assert (
                read.full_layers + read.sliding_layers + read.linear_layers <= read.layers + both
            )
            assert read.kv_bytes_per_token(2) >= 0
    assert refused > 300

"""`skep catalog` as a user runs it."""

import json

import pytest


@pytest.mark.parametrize(("what", "name"), [("gpus", "rtx-3090"), ("models", "qwen3.6-27b")])
def test_the_list_is_a_table_with_every_name(skep, what, name):
    done = skep("catalog", what, check=0)
    lines = done.stdout.splitlines()
    assert lines[0].startswith(what[:-1].upper())
    assert any(line.startswith(f"{name} ") for line in lines)
    assert len(lines) > 90
    assert done.stderr == ""


def test_a_card_shows_every_value_with_its_source(skep):
    done = skep("catalog", "gpus", "NVIDIA GeForce RTX 3090", check=0)
    (bandwidth,) = (line.split() for line in done.stdout.splitlines() if line.startswith("bandwidth_gbs"))
    assert bandwidth[1:3] == ["936", "A"]
    assert len(bandwidth) > 3
    document = json.loads(skep("catalog", "gpus", "rtx-3090", "--json", check=0).stdout)
    assert (document["id"], document["memory_gib"], document["formats"]) == ("rtx-3090", 24, ["fp16", "bf16", "int8"])
    assert document["origins"]["nvlink_gbs"]["confidence"] == "A"


def test_a_model_shows_its_parts_and_what_it_keeps(skep):
    done = skep("catalog", "models", "qwen3.6 27b", check=0)
    for words in ("linear_layers", "65,536 B", "146.8 MiB", "AWQ 4-bit", "vision"):
        assert words in done.stdout, words
    document = json.loads(skep("catalog", "models", "qwen3.6-27b", "--json", check=0).stdout)
    assert (document["kv_bytes_per_token"], document["state_bytes"]) == (65536, 153944064)
    assert 15e9 < document["weights_bytes"]["awq"] < 22e9
    assert sum(
        document["parts"][part] for part in ("embedding", "head", "attention", "linear", "mlp")
    ) == pytest.approx(document["params_total"], rel=0.01)


def test_all_of_them_are_one_document(skep):
    cards = json.loads(skep("catalog", "gpus", "--json", check=0).stdout)
    models = json.loads(skep("catalog", "models", "--json", check=0).stdout)
    assert len(cards) > 100
    assert len(models) > 90
    assert all({"id", "title", "origins"} <= set(entry) for entry in (*cards, *models))


def test_a_configuration_serves_where_a_model_is_not_listed(skep, tmp_path):
    config = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
              "intermediate_size": 14336, "vocab_size": 128256}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "131,072 B" in skep("catalog", "models", "./config.json", check=0).stdout
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 0}))
    done = skep("catalog", "models", tmp_path, check=2)
    assert "`num_hidden_layers` is 0" in done.stderr
    assert skep("catalog", "models", "missing.gguf").returncode == 1


@pytest.mark.parametrize(
    ("what", "typed", "near"), [("gpus", "rtx 3095", "rtx-3090"), ("models", "qwen3.6-28b", "qwen3.6-27b")]
)
def test_an_unknown_name_is_one_line_and_the_nearest_names(skep, what, typed, near):
    done = skep("catalog", what, typed, check=2)
    assert done.stdout == ""
    error, hint = done.stderr.splitlines()
    assert (typed in error, f"`{near}`" in hint) == (True, True)

"""`skep catalog` and `skep calibrate validate` as a user runs them."""

import csv
import json
from pathlib import Path

import pytest
from in_process import call, refused
from installation import installation

DATA = Path(__file__).parent.parent / "data"
pytestmark = pytest.mark.usefixtures("paths")


@pytest.mark.parametrize(
    ("kind", "name", "count"), [("gpus", "rtx-3090", 100), ("models", "qwen3.6-27b", 90)]
)
def test_the_list_is_a_table_with_every_name_and_one_document(kind, name, count):
    done = call("catalog", kind, check=0)
    lines = done.out.splitlines()
    assert lines[0].startswith(kind[:-1].upper())
    assert any(line.startswith(f"{name} ") for line in lines)
    entries = call("catalog", kind, "--json", check=0).json
    assert len(lines) - 1 == len(entries) > count
    assert all({"id", "title", "origins"} <= set(entry) for entry in entries)
    assert done.err == ""


def test_a_card_shows_every_value_with_its_source():
    done = call("catalog", "gpus", "NVIDIA GeForce RTX 3090", check=0)
    (bandwidth,) = (
        line.split() for line in done.out.splitlines() if line.startswith("bandwidth_gbs")
    )
    assert bandwidth[1:3] == ["936", "A"]
    assert len(bandwidth) > 3


def test_the_document_of_a_card_has_its_memory_formats_and_sources():
    document = call("catalog", "gpus", "rtx-3090", "--json", check=0).json
    assert (document["id"], document["memory_gib"]) == ("rtx-3090", 24)
    assert document["formats"] == ["fp16", "bf16", "int8"]
    assert document["origins"]["nvlink_gbs"]["confidence"] == "A"


@pytest.mark.parametrize(
    "words", ["linear_layers", "65,536 B", "146.8 MiB", "AWQ 4-bit", "vision"]
)
def test_a_model_shows_its_layers_memory_quantizations_and_abilities(words):
    assert words in call("catalog", "models", "qwen3.6 27b", check=0).out


def test_the_document_of_a_model_has_its_bytes_and_its_parts():
    document = call("catalog", "models", "qwen3.6-27b", "--json", check=0).json
    assert (document["kv_bytes_per_token"], document["state_bytes"]) == (65536, 153944064)
    assert 15e9 < document["weights_bytes"]["awq"] < 22e9
    assert sum(
        document["parts"][part] for part in ("embedding", "head", "attention", "linear", "mlp")
    ) == pytest.approx(document["params_total"], rel=0.01)


def test_a_configuration_serves_where_a_model_is_not_listed(tmp_path):
    config = {
        "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "131,072 B" in call("catalog", "models", "./config.json", check=0).out
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 0}))
    assert "`num_hidden_layers` is 0" in refused("catalog", "models", tmp_path)
    refused("catalog", "models", "missing.gguf")


@pytest.mark.parametrize(
    ("kind", "typed", "near"),
    [("gpus", "rtx 3095", "rtx-3090"), ("models", "qwen3.6-28b", "qwen3.6-27b")],
)
def test_an_unknown_name_is_one_line_and_the_nearest_names(kind, typed, near):
    message, _, hint = refused("catalog", kind, typed).partition(" | ")
    assert (typed in message, f"`{near}`" in hint) == (True, True)


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Every 20th row of the published points."""
    path = tmp_path_factory.mktemp("points") / "few.csv"
    with (DATA / "published_points.csv").open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)[::20]
        with path.open("w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, reader.fieldnames)
            writer.writeheader()
            writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def validation(few, tmp_path_factory):
    """The document of a validation."""
    with installation(tmp_path_factory.mktemp("validation")):
        return call("validate", few, "--json", check=0).json


def test_every_row_of_a_validation_is_either_predicted_or_named(validation):
    assert validation["rows"] == 46
    assert validation["predicted"] + len(validation["unpredicted"]) == 46
    assert validation["predicted"] == len(validation["points"])


def test_a_row_that_is_not_predicted_has_its_reason(validation):
    assert all(set(entry) == {"row", "why"} for entry in validation["unpredicted"])


def test_a_validation_says_how_far_off_the_predictions_are(validation):
    assert 0 < validation["median_ape"] < validation["p90_ape"]


def test_a_validation_groups_its_rows_by_concurrency_and_by_source(validation):
    assert set(validation["groups"]) == {"C=1", "C>1"}
    rows_of_sources = [source["rows"] for source in validation["sources"].values()]
    assert sum(rows_of_sources) == validation["predicted"]


def test_each_prediction_of_a_validation_stands_inside_its_interval(validation):
    for point in validation["points"]:
        assert point["low"] < point["predicted"] < point["high"]
        assert point["published"] > 0


def test_a_validation_prints_its_groups_and_sources_and_names_what_it_leaves_out(few):
    done = call("validate", few, check=0)
    assert "rows predicted" in done.err
    assert "not predicted, quant" in done.err
    assert done.out.splitlines()[1].startswith("all ")
    assert "source github.com" in done.out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no column"),
        ("a,b\n1,2\n", "no column concurrency, gpu, model, quant, tok_s"),
        ("gpu,model\nx,y\n", "no column concurrency, quant, tok_s"),
    ],
)
def test_a_file_that_is_no_table_is_one_line_and_an_empty_one_an_empty_report(
    tmp_path, text, words
):
    path = tmp_path / "points.csv"
    path.write_text(text)
    assert words in refused("validate", path)
    assert "cannot be read" in refused("validate", tmp_path / "none.csv")
    path.write_text("gpu,model,quant,concurrency,tok_s\n")
    json = call("validate", path, "--json", check=0).json
    assert (json["rows"], json["predicted"], json["median_ape"]) == (0, 0, None)

"""`skep validate` as a user runs it."""

import csv
import json
from pathlib import Path

import pytest

DATA = Path(__file__).parent.parent / "data"


@pytest.fixture
def few(tmp_path):
    """Every 20th row of the published points."""
    with (DATA / "published_points.csv").open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)[::20]
        path = tmp_path / "few.csv"
        with path.open("w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, reader.fieldnames)
            writer.writeheader()
            writer.writerows(rows)
    return path


def test_the_document_has_every_row_either_predicted_or_named(skep, few):
    told = json.loads(skep("validate", few, "--json", check=0).stdout)
    assert told["rows"] == told["predicted"] + len(told["unpredicted"]) == 46
    assert told["predicted"] == len(told["points"])
    assert 0 < told["median_ape"] < told["p90_ape"]
    assert set(told["groups"]) == {"C=1", "C>1"}
    assert sum(source["rows"] for source in told["sources"].values()) == told["predicted"]
    assert len(told["baselines"]) == 2
    for point in told["points"]:
        assert point["low"] < point["predicted"] < point["high"]
        assert point["published"] > 0
    assert all(set(entry) == {"row", "why"} for entry in told["unpredicted"])


def test_the_table_says_how_far_off_and_what_was_left_out(skep, few):
    done = skep("validate", few, check=0)
    assert "never fitted on their own source" in done.stderr
    assert "not predicted, bits" in done.stderr
    assert done.stdout.splitlines()[1].startswith("all ")
    assert "roofline" in done.stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no column"),
        ("a,b\n1,2\n", "no column concurrency, gpu, model"),
        ("gpu,model\nx,y\n", "no column concurrency"),
    ],
)
def test_a_file_that_is_no_such_table_is_one_line(skep, tmp_path, text, words):
    path = tmp_path / "points.csv"
    path.write_text(text)
    done = skep("validate", path, check=2)
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_a_file_that_is_not_there_is_one_line(skep, tmp_path):
    assert "cannot be read" in skep("validate", tmp_path / "none.csv", check=2).stderr


def test_a_table_without_rows_is_an_empty_report(skep, tmp_path):
    path = tmp_path / "points.csv"
    path.write_text("gpu,model,concurrency\n")
    told = json.loads(skep("validate", path, "--json", check=0).stdout)
    assert (told["rows"], told["predicted"], told["median_ape"]) == (0, 0, None)

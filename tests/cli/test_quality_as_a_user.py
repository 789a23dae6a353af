"""What somebody who never saw `skep bench quality` and `mixed` met; what is still open is marked."""

import csv
import io
import json

import pytest
from typer.testing import CliRunner

from skep.cli.main import app_of, parts_of
from skep.testing.process import FakeEngine

pytestmark = pytest.mark.slow

APP = app_of(parts_of(["bench"]))
FIB = (
    "Sure:\n```python\ndef fib(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a\n```"
)
ADD = "```python\ndef add(a, b):\n    return a + b\n```"
# Each kind of checker that a bank of one's own may have: prompt, checker, an answer that is right.
KINDS = (
    ("What is 17 + 25? The number only.", {"kind": "number", "answer": 42}, "42"),
    ("Write fib(n).", {"kind": "python", "entry_point": "fib", "tests": "assert fib(10) == 55"}, FIB),
    ("Capital of France? One word.", {"kind": "exact", "answer": "Paris"}, "Paris"),
    ("Is the sky blue?", {"kind": "choice", "answer": "yes", "options": ["yes", "no"]}, "yes"),
    ("Name two colours.", {"kind": "contains", "all": ["red", "green"]}, "red and green"),
    ("Name a date.", {"kind": "regex", "pattern": r"\d{4}-\d\d-\d\d"}, "It is 2024-05-06."),
    ("Write add(a, b).", {"kind": "cases", "entry_point": "add", "cases": [[[1, 2], 3], [[0, 0], 0]]}, ADD),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A bank with every kind, and an engine's answers to it."""
    made = tmp_path_factory.mktemp("own")
    bank = [{"id": one["kind"], "prompt": asked, "checker": one} for asked, one, _ in KINDS]
    answers = [{"prompt": asked, "answer": said} for asked, _, said in KINDS]
    for name, lines in (("own.jsonl", bank), ("answers.jsonl", answers)):
        (made / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return made


@pytest.fixture(scope="module")
def engine(folder):
    """Knows the bank; answers anything else with words that do not end before the limit."""
    with FakeEngine(slots=8, token_ms=0.2, model="knowing", answers=folder / "answers.jsonl") as started:
        yield started


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """`skep bench ARGS...` in this process, with a store of its own."""
    homes = {f"XDG_{name}_HOME": str(tmp_path_factory.mktemp(name.lower())) for name in ("CONFIG", "DATA", "STATE")}
    return lambda *args: CliRunner(env=homes).invoke(APP, ["bench", *map(str, args)])


@pytest.fixture(scope="module")
def measured(bench, folder, engine):
    """The bank with every kind, measured once for all tests."""
    args = ("--url", engine.url, "--bank", folder / "own.jsonl", "-c", "1,2", "--delta", "45", "--seed", "1")
    done = bench("quality", *args, "--json")
    assert done.exit_code in (0, 1), (done.output, done.exception)
    return json.loads(done.stdout)


def test_every_kind_of_checker_in_a_bank_of_ones_own_takes_a_right_answer(measured):
    (level,) = measured["levels"]
    assert level["difference"]["base_rate"] == level["difference"]["rate"] == 1.0


def test_the_document_of_a_trial_names_model_and_seed(measured):
    assert measured["model"] == "knowing"
    assert measured["seed"] == 1


def test_requests_in_a_spreadsheet_name_their_item(bench, measured):
    table = bench("export", measured["run_id"], "--requests", "--format", "csv").stdout
    rows = list(csv.DictReader(io.StringIO(table)))
    assert {row["item"] for row in rows if row["outcome"]} == {one["kind"] for _, one, _ in KINDS}


def test_answers_that_were_all_cut_are_not_blamed_on_the_bank(bench, engine):
    done = bench("quality", "--url", engine.url, "--bank", "drills:1", "--items", "20", "-c", "1,2", "--delta", "45")
    assert "an easier bank is needed" not in done.output
    assert "20 of 20 answers at C=1 were cut at the token limit" in done.output


def test_no_advice_is_not_the_advice_that_no_level_will_do(bench, engine):
    done = bench("mixed", "--url", engine.url, "--levels", "2", "--repeats", "1")
    assert "C=1 was not measured" in done.stdout
    assert "no level will do" not in done.stdout

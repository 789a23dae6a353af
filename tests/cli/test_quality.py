"""`skep bench quality` and `skep bench mixed` as a user runs them."""

import csv
import io
import json

import pytest
from in_process import call, refused

from skep.errors import UserError
from skep.host.installation import extra_hint
from skep.quality.judging import check_packages
from skep.report.quality import EXIT_LOST, EXIT_OK, EXIT_UNSHOWN
from skep.testing.process import FakeEngine
from skep.workload.items import Checker, Item

pytestmark = pytest.mark.usefixtures("paths")  # each test has an installation of its own
COUNT = 70
NOBODY = ("--url", "http://127.0.0.1:9")
FIB = (
    "Sure:\n```python\ndef fib(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, "
    "a + b\n    return a\n```"
)
# Each kind of checker that a bank of one's own may have: prompt, checker, an answer that is right.
KINDS = (
    ("What is 17 + 25? The number only.", {"kind": "number", "answer": 42}, "42"),
    (
        "Write fib(n).",
        {"kind": "python", "entry_point": "fib", "tests": "assert fib(10) == 55"},
        FIB,
    ),
    ("Capital of France? One word.", {"kind": "exact", "answer": "Paris"}, "Paris"),
    ("Is the sky blue?", {"kind": "choice", "answer": "yes", "options": ["yes", "no"]}, "yes"),
    ("Name two colours.", {"kind": "contains", "all": ["red", "green"]}, "red and green"),
    ("Name a date.", {"kind": "regex", "pattern": r"\d{4}-\d\d-\d\d"}, "It is 2024-05-06."),
)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A bank of numbers, one with every kind of checker, and an engine's answers to both."""
    folder = tmp_path_factory.mktemp("bank")
    numbers = [
        {
            "id": f"n{n}",
            "prompt": f"say number {n}.",
            "checker": {"kind": "number", "answer": n},
            "max_tokens": 8,
        }
        for n in range(COUNT)
    ]
    write(folder / "numbers.jsonl", numbers)
    write(
        folder / "kinds.jsonl",
        [
            {"id": checker["kind"], "prompt": prompt, "checker": checker}
            for prompt, checker, _ in KINDS
        ],
    )
    answers = [
        {"prompt": f"say number {n}.", "answer": f"It is {n}", "wrong": "It is -1"}
        for n in range(COUNT)
    ]
    write(
        folder / "answers.jsonl",
        answers + [{"prompt": prompt, "answer": answer} for prompt, _, answer in KINDS],
    )
    write(
        folder / "wordy.jsonl",
        [{"prompt": "e", "answer": "I would rather keep bees than write this."}],
    )
    return folder


@pytest.fixture(scope="module")
def good(folder):
    """Knows the banks; answers anything else with words that do not end before the limit."""
    with FakeEngine(
        slots=8, token_ms=0.2, model="knowing", answers=folder / "answers.jsonl"
    ) as engine:
        yield engine


def quality(engine, bank, *words, check):
    return call(
        "bench", "quality", "--url", engine.url, "--bank", bank, "--seed", "1", *words, check=check
    )


def test_quality_that_holds_is_said_and_drills_are_made_as_many_as_are_wanted(folder, good):
    done = quality(good, folder / "numbers.jsonl", "-c", "1,4", "--delta", "10", check=EXIT_OK)
    assert "quality holds up to C=4: a loss of 10 points or more is excluded (95 %)" in done.out
    assert "95 % bounds" in done.out
    assert "about" in done.err
    assert "C=1 against itself: 0 of 70 verdicts changed" in done.err
    # The engine knows none of the answers.
    document = quality(
        good, "drills:1", "-c", "2", "--items", "12", "--json", check=EXIT_UNSHOWN
    ).json
    assert (document["bank"], document["items"]) == ("drills:1", 12)


@pytest.mark.slow
def test_too_few_items_are_told_before_and_nothing_is_claimed_after(folder, good):
    done = quality(
        good, folder / "numbers.jsonl", "-c", "2,4", "--items", "20", check=EXIT_UNSHOWN
    )
    before, after = done.err.split("C=2 and C=1 in turns", 1)
    assert "UNDERPOWERED" in before
    assert "--delta" in before
    assert "nothing can be claimed" in done.out
    assert "not shown: a loss of up to" in done.out
    assert "not measured: C=4" in after
    assert "no degradation" not in done.out + done.err
    assert "holds up to" not in done.out + done.err


def test_worse_answers_end_with_exit_code_4_and_json_has_the_figures(folder):
    with FakeEngine(
        slots=8, answers=folder / "answers.jsonl", worse_above="1:0.6", seed=1
    ) as engine:
        document = quality(
            engine, folder / "numbers.jsonl", "-c", "4,8", "--json", check=EXIT_LOST
        ).json
    (level,) = document["levels"]
    assert (level["claim"], level["difference"]["items"], level["concurrency"]) == (
        "worse",
        COUNT,
        4,
    )
    assert dict(level["load"]["outcomes"])["wrong"] == level["difference"]["lost"]
    assert document["skipped"] == [8]
    assert document["holds_up_to"] is None


@pytest.mark.slow
@pytest.mark.needs("bwrap")
def test_every_kind_of_checker_in_a_bank_of_ones_own_takes_a_right_answer(folder, good):
    measured = quality(
        good, folder / "kinds.jsonl", "-c", "1,2", "--delta", "45", "--json", check=None
    ).json
    assert (measured["model"], measured["seed"]) == ("knowing", 1)
    (level,) = measured["levels"]
    assert level["difference"]["base_rate"] == level["difference"]["rate"] == 1.0
    table = call("bench", "export", measured["run_id"], "--requests", "--format", "csv").out
    rows = list(csv.DictReader(io.StringIO(table)))
    assert {row["item"] for row in rows if row["outcome"]} == {
        checker["kind"] for _, checker, _ in KINDS
    }


@pytest.mark.slow
def test_answers_that_were_all_cut_are_not_blamed_on_the_bank(good):
    done = quality(good, "drills:1", "--items", "20", "-c", "1,2", "--delta", "45", check=None)
    assert "use an easier bank" not in done.out + done.err
    assert "20 of 20 answers at C=1 were cut at the token limit" in done.out + done.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--bank nonsense", "--bank `nonsense` is unknown"),
        ("--bank drills:9", "no such grade"),
        ("--bank ~/nowhere/bank.jsonl", "cannot be read: No such file"),
        ("--bank nul\0.jsonl", "cannot be read"),
        ("--concurrency 1", "no level to compare with C=1"),
        ("--concurrency four", "not a list of positive numbers"),
        ("--delta 0", "not a loss that can be tested"),
        ("--delta nan", "not a loss that can be tested"),
        ("--items 3 --concurrency 4", "3 items cannot keep 4 agents busy"),
        ("--items 10000000", "too large"),
        ("--timeout soon", "not a duration"),
    ],
)
def test_bad_wishes_are_one_clear_line_with_a_hint(words, expected):
    message = refused("bench", "quality", *words.split(" "), *NOBODY)
    assert expected in message
    assert not message.endswith("| None")


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe\x00garbage\x80\n", b'{"prompt": "x", "checker": {"kind": "magic"}}\n'],
)
def test_a_bad_bank_file_is_one_clear_line(tmp_path, content):
    """tests/workload/test_banks.py has what may be wrong with a line."""
    (tmp_path / "bank.jsonl").write_bytes(content)
    refused("bench", "quality", "--bank", "./bank.jsonl", "-c", "2", *NOBODY)


@pytest.fixture(scope="module")
def wordy(folder):
    """Gives the same few words to everything, and no code."""
    with FakeEngine(slots=8, token_ms=1, model="wordy", answers=folder / "wordy.jsonl") as started:
        yield started


def mixed(engine, *words, check=0):
    return call("bench", "mixed", "--url", engine.url, "--repeats", "1", *words, check=check)


@pytest.mark.needs("bwrap")
def test_mixed_work_ends_with_tables_a_computed_advice_and_json_with_every_verdict(wordy):
    done = mixed(wordy, "--levels", "1,3")
    for words in (
        "TTFT of turn 1",
        "S2 tests",
        "aggregate tok/s",
        "passed tasks/min",
        "did not pass",
        "axes",
        "P1+S1-S2",
        "no code in the answer",
        "none of 8 answers passed, at any level: no level does this work",
    ):
        assert words in done.out
    for words in (
        "`skep runs report ",
        "C=3, P1+S1-S2, run 2 of 2: 5 requests",
        "judging: 8 answers",
    ):
        assert words in done.err
    (run,) = mixed(wordy, "--levels", "1,2", "--json").json["runs"]
    assert run["model"] == "wordy"
    assert [level["name"] for level in run["levels"]] == ["P1", "P1+S1"]
    assert len(run["axes"]) == 6
    assert {verdict["outcome"] for verdict in run["verdicts"] if verdict["item"] != "S1"} == {
        "no answer"
    }
    assert run["advice"]["concurrency"] is None


@pytest.mark.needs("bwrap")
@pytest.mark.slow
def test_no_advice_is_not_the_advice_that_no_level_will_do(good):
    done = mixed(good, "--levels", "2")
    assert "C=1 was not measured" in done.out
    assert "no level will do" not in done.out


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize(
    ("words", "says", "hint"),
    [
        ("--levels 1,4", "there is no level 4", "2 (P1+S1)"),
        ("--concurrency many", "is not a list", "--concurrency"),
        ("--form sustained", "`--form` was removed", ""),
        ("--timeout 0s", "--timeout `0s`", "15m"),
        ("--key-env NO_SUCH_VARIABLE", "`NO_SUCH_VARIABLE` is not set", "export"),
        ("--model wordi", "does not serve `wordi`", "did you mean `wordy`?"),
    ],
)
def test_bad_input_for_mixed_work_is_one_line_that_names_the_value(wordy, words, says, hint):
    message = refused("bench", "mixed", "--url", wordy.url, *words.split())
    assert says in message
    assert hint in message.partition(" | ")[2]


@pytest.mark.needs("bwrap")
def test_an_absent_or_failing_engine_is_an_error_and_missing_packages_are_named():
    refused("bench", "mixed", *NOBODY, code=1)
    with FakeEngine() as broken:
        broken.fault(kind="500", times=None)
        assert "answered no warm-up request" in refused(
            "bench", "mixed", "--url", broken.url, code=1
        )
    with pytest.raises(UserError, match="a_gone, b_gone are not installed") as caught:
        check_packages(
            [Item("x", (), Checker("python", {"packages": ["b_gone", "json", "a_gone"]}))]
        )
    assert caught.value.hint == extra_hint("quality")

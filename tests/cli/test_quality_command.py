"""`skep bench quality` as a user runs it."""

import json

import pytest
from typer.testing import CliRunner

from skep.cli.main import app_of, parts_of
from skep.cli.quality_run import EXIT_LOST, EXIT_OK, EXIT_UNSHOWN
from skep.errors import UserError
from skep.testing.process import FakeEngine

COUNT = 70
APP = app_of(parts_of(["bench"]))


@pytest.fixture
def bench(env, monkeypatch):
    """`skep bench ARGS...` in this process."""
    for name, value in env.items():
        monkeypatch.setenv(name, value)

    def run(*args, url=None):
        at = ("--url", url) if url else ()
        return CliRunner().invoke(APP, ["bench", *map(str, args), *at])

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A bank of numbers and an engine's answers to it."""
    made = tmp_path_factory.mktemp("bank")
    bank = [
        {"id": f"n{n}", "prompt": f"say number {n}.", "checker": {"kind": "number", "answer": n}, "max_tokens": 8}
        for n in range(COUNT)
    ]
    answers = [{"prompt": f"say number {n}.", "answer": f"It is {n}", "wrong": "It is -1"} for n in range(COUNT)]
    for name, lines in (("numbers.jsonl", bank), ("answers.jsonl", answers)):
        (made / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return made


@pytest.fixture(scope="module")
def good(folder):
    with FakeEngine(slots=8, token_ms=0.2, answers=folder / "answers.jsonl") as engine:
        yield engine


def test_quality_that_holds_is_said(bench, folder, good):
    args = ("quality", "--bank", folder / "numbers.jsonl", "-c", "1,4", "--delta", "10", "--seed", "1")
    done = bench(*args, url=good.url)
    assert done.exit_code == EXIT_OK, (done.output, done.exception)
    assert "quality holds up to C=4: a loss of 10 points or more is excluded (95 %)" in done.stdout
    assert "95 % bounds" in done.stdout
    assert "about" in done.stderr
    assert "C=1 against itself: 0 of 70 verdicts changed" in done.stderr
    assert "quality holds up to C=4" in done.stdout


@pytest.mark.slow
def test_too_few_items_are_told_before_and_nothing_is_claimed_after(bench, folder, good):
    done = bench(
        "quality", "--bank", folder / "numbers.jsonl", "-c", "2,4", "--items", "20", "--seed", "1", url=good.url
    )
    assert done.exit_code == EXIT_UNSHOWN
    before, after = done.stderr.split("C=2 and C=1 in turns", 1)
    assert "UNDERPOWERED" in before
    assert "--delta" in before
    assert "nothing can be claimed" in done.stdout
    assert "not shown: a loss of up to" in done.stdout
    assert "not walked: C=4" in after
    assert "no degradation" not in done.output
    assert "holds up to" not in done.output


def test_worse_answers_end_with_exit_code_4_and_json_has_the_figures(bench, folder):
    with FakeEngine(slots=8, answers=folder / "answers.jsonl", worse_above="1:0.6", seed=1) as engine:
        done = bench(
            "quality", "--bank", folder / "numbers.jsonl", "-c", "4,8", "--seed", "1", "--json", url=engine.url
        )
    assert done.exit_code == EXIT_LOST
    document = json.loads(done.stdout)
    (level,) = document["levels"]
    assert (level["claim"], level["difference"]["items"], level["concurrency"]) == ("worse", COUNT, 4)
    assert dict(level["load"]["outcomes"])["wrong"] == level["difference"]["lost"]
    assert document["skipped"] == [8]
    assert document["holds_up_to"] is None


def test_drills_are_made_as_many_as_are_wanted(bench, good):
    done = bench("quality", "--bank", "drills:1", "-c", "2", "--items", "12", "--seed", "1", "--json", url=good.url)
    document = json.loads(done.stdout)
    assert (document["bank"], document["items"]) == ("drills:1", 12)
    assert done.exit_code == EXIT_UNSHOWN  # the engine knows none of the answers


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--bank", "nonsense"), "--bank `nonsense` is unknown"),
        (("--bank", "drills:9"), "no such grade"),
        (("--bank", "drills:"), "no such grade"),
        (("--bank", "~/nowhere/bank.jsonl"), "cannot be read: No such file"),
        (("--bank", "."), "cannot be read"),
        (("--bank", "nul\0.jsonl"), "cannot be read"),
        (("--concurrency", "1"), "no level to hold against C=1"),
        (("--concurrency", "four"), "not a list of positive numbers"),
        (("--delta", "0"), "no loss that could be tested"),
        (("--delta", "0.03"), "no loss that could be tested"),
        (("--delta", "much"), "no loss that could be tested"),
        (("--delta", "nan"), "no loss that could be tested"),
        (("--items", "3", "--concurrency", "4"), "3 items cannot keep 4 agents busy"),
        (("--items", "10000000"), "too large"),
        (("--budget", "0s"), "leaves no time"),
        (("--timeout", "soon"), "not a duration"),
    ],
)
def test_bad_wishes_are_one_clear_line(bench, args, message):
    done = bench("quality", *args, url="http://127.0.0.1:9")
    assert isinstance(done.exception, UserError), (done.exception, done.output)
    assert message in done.exception.message
    assert done.exception.hint


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not json\n",
        b"[]\n",
        b"\xff\xfe\x00garbage\x80\n",
        b'{"id": "a"}\n',
        b'{"prompt": "x", "checker": {"kind": "magic"}}\n',
        b'{"prompt": "x", "checker": {"kind": "number", "answer": 1}}\n\x00\n',
        b'{"id": "a", "prompt": "x", "checker": {"kind": "number", "answer": 1}}\n' * 2,
        b"[" * 100_000,
    ],
)
def test_a_bad_bank_file_is_one_clear_line(bench, tmp_path, content):
    path = tmp_path / "bank.jsonl"
    path.write_bytes(content)
    done = bench("quality", "--bank", path, "-c", "2", url="http://127.0.0.1:9")
    assert isinstance(done.exception, UserError), (done.exception, done.output)
    assert "\n" not in done.exception.message

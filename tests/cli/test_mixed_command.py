"""`skep bench mixed` as a user meets it: tables, JSON, and bad input said in one line."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from skep.bench.sweep import Progress
from skep.cli.main import app
from skep.cli.mixed import judged_lines, load_lines, need_packages
from skep.cli.mixed_tables import degradation, print_mixed
from skep.errors import SkepError, UserError
from skep.quality.mixed_figures import mixed_summary
from skep.records import Request
from skep.testing.gateway_process import GatewayProcess
from skep.testing.process import FakeEngine
from skep.verdicts import Outcome, Verdict


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """The same few words to everything, and no code."""
    path = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    path.write_text(json.dumps({"prompt": "e", "answer": "I would rather keep bees than write this."}))
    return path


@pytest.fixture(scope="module")
def engine(answers):
    with FakeEngine(slots=8, token_ms=1, model="wordy", answers=answers) as started:
        yield started


@pytest.fixture
def bench(tmp_path, monkeypatch):
    for name in ("CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))

    def run(*args):
        return CliRunner().invoke(app, ["bench", "mixed", *args])

    return run


def test_the_tables_of_the_write_up_and_a_computed_advice_come_out(engine, bench):
    done = bench("--url", engine.url, "--repeats", "1", "--levels", "1,3")
    assert done.exit_code == 0, done.output
    out = done.stdout
    for heading in ("turn 1 TTFT", "S2 ", "aggregate tok/s", "finished tasks/min", "keywords", "advice", "axes"):
        assert heading in out
    assert "P1+S1-S2" in out
    assert "no code in the answer" in out
    assert "none of 8 answers passed, at any level: no level does this work" in out
    assert "`skep report " in done.stderr
    assert ", then 8 answers are executed" in done.stderr
    assert "executing 8 answers" in done.stderr


def test_json_has_all_figures_and_every_verdict(engine, bench):
    done = bench("--url", engine.url, "--repeats", "1", "--levels", "1,2", "--form", "sustained", "--json")
    (run,) = json.loads(done.stdout)["runs"]
    assert (run["model"], run["form"]) == ("wordy", "sustained")
    assert [level["name"] for level in run["levels"]] == ["P1", "P1+S1"]
    assert len(run["axes"]) == 6
    assert {one["outcome"] for one in run["verdicts"] if one["item"] != "S1"} == {"no answer"}
    assert run["advice"]["concurrency"] is None


@pytest.mark.parametrize(
    ("args", "says", "hint"),
    [
        (["--levels", "1,4"], "there is no level 4", "2 (P1+S1)"),
        (["--levels", "many"], "is not a list", "--levels"),
        (["--form", "endless"], "--form `endless` is unknown", "published or sustained"),
        (["--repeats", "5000"], "--repeats 5000", "1,000"),
        (["--timeout", "0s"], "--timeout `0s`", "15m"),
        (["--model", "a", "--model", "a"], "--model `a` is given twice", "--repeats"),
        (["--key-env", "NO_SUCH_VARIABLE"], "`NO_SUCH_VARIABLE` is not set", "export"),
        (["--model", "wordi"], "does not serve `wordi`", "did you mean `wordy`?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_that_names_the_value(engine, bench, args, says, hint):
    done = bench("--url", engine.url, *args)
    assert isinstance(done.exception, UserError), done.output
    assert says in done.exception.message
    assert hint in done.exception.hint


def test_nobody_at_the_url_is_said_before_anything_is_measured(bench):
    done = bench("--url", "http://127.0.0.1:9")
    assert isinstance(done.exception, SkepError)
    assert done.exception.exit_code == 1


def test_an_engine_that_fails_every_request_ends_with_an_error(bench):
    with FakeEngine() as broken:
        broken.fault(kind="500", times=None)
        done = bench("--url", broken.url)
    assert "did not answer" in done.exception.message
    assert done.exception.exit_code == 1


def test_packages_that_answers_need_are_named_with_how_to_get_them():
    need_packages([])
    with pytest.raises(UserError, match="aiofiles, pytest are not installed") as caught:
        need_packages(["aiofiles", "pytest"])
    assert caught.value.hint == "pip install 'skep[quality]'"


WIDEST = 110


def conversation(level, repeat, answers, tokens=1000):
    """Turns that were answered (True), failed (False), or have no row."""
    rows = [
        Request(
            level, repeat, place, f"P1.{place + 1}", place * 100.0, place * 100.0 + 99.0,
            first_token_s=place * 100.0 + 12.0, last_token_s=place * 100.0 + 99.0, output_tokens=tokens,
            traffic="primary", session=0, turn=place, answer="x",
        )
        for place in range(len(answers))
    ]  # fmt: skip
    return [row if ok else replace(row, error_kind="timeout") for row, ok in zip(rows, answers, strict=True)]


def beside(level, repeat):
    return [
        Request(level, repeat, 1000 * n + again, f"S{n}", again, again + 200.0, output_tokens=400, traffic="side")
        for n in range(1, level)
        for again in range(8)
    ]


def summary_of(rows, outcome=Outcome.PASSED, model="m"):
    verdicts = [
        Verdict(
            row.level, row.repeat, row.index, row.kind, outcome if row.ok else Outcome.TIMED_OUT,
            detail="" if row.ok else "no answer within 900 s; " * 9, keywords=row.index % 2 == 0,
            keywords_missing=("HTTPException", "min_length", "field_validator"),
        )
        for row in rows
    ]  # fmt: skip
    return mixed_summary("r", model, "published", rows, verdicts, simulated=False), verdicts


def printed(capsys, *summaries):
    print_mixed([summary for summary, _ in summaries], {"r": summaries[0][1]})
    return capsys.readouterr().out


def test_turns_after_a_failed_one_are_shown_as_not_asked_and_cut_ones_are_not(capsys):
    out = printed(capsys, summary_of(conversation(1, 0, [True, False])))
    assert "C=1: turn 3 was not asked 1x, as one before it had failed" in out
    assert "not asked" not in printed(capsys, summary_of(conversation(1, 0, [True, True])))


def test_no_table_is_wider_than_a_terminal_of_110_columns(capsys):
    """Long times, many answers, failures with long stories, turns that were not asked."""
    talks = ([True, False], [True, False], [True, True, True])
    rows = [
        row
        for level in (1, 2, 3, 5)
        for repeat, answers in enumerate(talks)
        for row in (*conversation(level, repeat, answers), *beside(level, repeat))
    ]
    out = printed(capsys, summary_of(rows))
    tables, _, _ = out.partition("advice")
    assert [line for line in tables.splitlines() if len(line) > WIDEST] == []
    assert "turn 3 was not asked 2x" in tables


def test_a_factor_of_times_has_a_star_and_the_tokens_where_the_answers_are_not_as_long(capsys):
    whole = [True] * 3
    alone, loaded, side = conversation(1, 0, whole), conversation(2, 0, whole), beside(2, 0)
    short = summary_of([*alone, *conversation(2, 0, whole, tokens=400), *side], model="brief")
    alike = summary_of([*alone, *loaded, *side])
    out, _, both = printed(capsys, short, alike).partition("side by side")
    assert out.count("1.0x*") == 2
    assert "  C=2: 1.0x* of C=1 for 1,200 tokens instead of 3,000" in out
    assert "(1.0x*)" in both
    assert "(1.0x)" in both
    assert "  brief, C=2: 1.0x* of C=1 for 1,200 tokens instead of 3,000" in both


def test_the_time_left_says_what_follows(capsys):
    progress = Progress(2, 0, 0, 4, 0, 0, None, 1, 1, 0.83, {1: [80.0]}, label="P1+S1")
    load_lines("then 91 answers are executed")(progress)
    told = capsys.readouterr().err
    assert told == ("P1+S1 run 1: 4 requests · about 830 ms left, 1 more run at most, then 91 answers are executed\n")


def test_executing_is_told_about_every_ten_seconds_where_there_is_no_bar(capsys):
    now = [0.0]
    show = judged_lines(91, lambda: now[0])
    for done in range(91):
        show(done)
        now[0] += 0.5
    told = capsys.readouterr().err.splitlines()
    assert told == [f"executed {done} of 91 answers" for done in (20, 40, 60, 80)]


def test_degradation_is_a_share_of_what_it_was_alone():
    assert degradation(290.0, 64.0) == "290 ms (+353 %)"
    assert degradation(110.0, 135.0) == "110 ms (-19 %)"
    assert degradation(64.0, 64.0) == "64 ms"
    assert degradation(64.0, None) == "64 ms"
    assert degradation(None, 64.0) == "–"


@pytest.mark.slow
def test_two_models_are_measured_one_after_the_other_and_shown_side_by_side(engine, answers, bench, gateway):
    with FakeEngine(slots=8, token_ms=5, model="slower", answers=answers) as other:
        door = gateway()
        table = [(engine, "wordy"), (other, "slower")]
        replicas = [
            {"name": model, "url": one.url, "model": model, "slots": 8, "confirms": True} for one, model in table
        ]
        GatewayProcess.serve(door, replicas)
        chosen = ["--model", "slower", "--model", "wordy", "--repeats", "1", "--levels", "1"]
        done = bench("--url", door.url, *chosen)
        unchosen = bench("--url", door.url)
    assert "serves 2 models" in unchosen.exception.message
    assert "--model; given several times" in unchosen.exception.hint
    assert done.exit_code == 0, done.output
    _, _, both = done.stdout.partition("side by side")
    rows = {line[:24].strip(): line.split()[-2:] for line in both.splitlines()}
    assert rows[""] == ["slower", "wordy"]
    slower, wordy = map(float, rows["axis: solo speed"])
    assert slower < wordy == 1.0

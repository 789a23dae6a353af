"""`skep bench mixed` as a user meets it: tables, JSON, and bad input said in one line."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from skep.cli.main import app
from skep.cli.mixed import need_packages
from skep.cli.mixed_tables import degradation, print_primary
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


def turn_row(answers):
    """One repeat of C=1, with turns that were answered (True), failed (False), or have no row."""
    rows = [
        Request(1, 0, place, f"P1.{place + 1}", place, place + 1.0, traffic="primary", session=0, turn=place)
        for place in range(len(answers))
    ]
    rows = [row if ok else replace(row, error_kind="timeout") for row, ok in zip(rows, answers, strict=True)]
    verdicts = [Verdict(1, 0, row.index, row.kind, Outcome.PASSED if row.ok else Outcome.TIMED_OUT) for row in rows]
    return mixed_summary("r", "m", "published", rows, verdicts, simulated=False).levels


def test_turns_after_a_failed_one_are_shown_as_not_asked_and_cut_ones_are_not(capsys):
    print_primary(turn_row([True, False]))
    assert "not asked" in capsys.readouterr().out
    print_primary(turn_row([True, True]))
    assert "not asked" not in capsys.readouterr().out


def test_degradation_is_a_share_of_what_it_was_alone():
    assert degradation(290.0, 64.0) == "290 ms (+353 %)"
    assert degradation(110.0, 135.0) == "110 ms (-19 %)"
    assert degradation(64.0, 64.0) == "64 ms"
    assert degradation(64.0, None) == "64 ms"
    assert degradation(None, 64.0) == "–"


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
    assert done.exit_code == 0, done.output
    _, _, both = done.stdout.partition("side by side")
    rows = {line[:24].strip(): line.split()[-2:] for line in both.splitlines()}
    assert rows[""] == ["slower", "wordy"]
    slower, wordy = map(float, rows["axis: solo speed"])
    assert slower < wordy == 1.0

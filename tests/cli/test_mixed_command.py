"""`skep bench mixed` as a user meets it: tables, JSON, and bad input said in one line."""

import json
import re

import pytest
from typer.testing import CliRunner

from skep.cli.main import app
from skep.cli.quality_run import need_packages
from skep.errors import SkepError, UserError
from skep.testing.process import FakeEngine


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


def test_tables_and_a_computed_advice_come_out(engine, bench):
    done = bench("--url", engine.url, "--repeats", "1", "--levels", "1,3")
    assert done.exit_code == 0, done.output
    out = done.stdout
    for heading in ("TTFT of turn 1", "S2 tests", "aggregate tok/s", "passed tasks/min", "did not pass", "axes"):
        assert heading in out
    assert "P1+S1-S2" in out
    assert "no code in the answer" in out
    assert "none of 8 answers passed, at any level: no level does this work" in out
    assert "`skep report " in done.stderr
    assert "C=3, P1+S1-S2, run 2 of 2: 5 requests" in done.stderr
    assert "judging: 8 answers" in done.stderr


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
    assert "answered no request of the warm-up" in done.exception.message
    assert done.exception.exit_code == 1


def test_packages_that_answers_need_are_named_with_how_to_get_them():
    need_packages([])
    with pytest.raises(UserError, match="aiofiles, pytest are not installed") as caught:
        need_packages(["aiofiles", "pytest"])
    assert caught.value.hint == "pip install 'skep[quality]'"


@pytest.mark.slow
def test_two_models_are_measured_one_after_the_other_and_shown_side_by_side(engine, answers, bench, start_gateway):
    with FakeEngine(slots=8, token_ms=5, model="slower", answers=answers) as other:
        gateway = start_gateway()
        table = [(engine, "wordy"), (other, "slower")]
        replicas = [
            {"name": model, "url": one.url, "model": model, "slots": 8, "confirms": True} for one, model in table
        ]
        gateway.serve(replicas)
        chosen = ["--model", "slower", "--model", "wordy", "--repeats", "1", "--levels", "1"]
        done = bench("--url", gateway.url, *chosen)
        unchosen = bench("--url", gateway.url)
    assert "serves 2 models" in unchosen.exception.message
    assert "--model; given several times" in unchosen.exception.hint
    assert done.exit_code == 0, done.output
    speeds = dict(re.findall(r"^([AB]) +solo speed +([\d.]+)", done.stdout, re.MULTILINE))
    assert done.stdout.startswith("A  slower, side tasks published")
    assert float(speeds["A"]) < float(speeds["B"]) == 1.0

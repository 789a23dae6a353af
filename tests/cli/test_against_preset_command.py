"""`skep bench sweep --against-preset` on a live engine, as a user runs it."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from skep.cli.main import app
from skep.errors import UserError
from skep.testing.process import FakeEngine

OWN = """
title = "Mine"
engine = "llamacpp"
model = "smollm2-135m"
checkpoint = "fake-model"
served_as = "fake-model"
hardware = "rtx-3090"
source = "measured a minute ago"
slots = 2

[[published]]
tok_s = 100.0
metric = "output"
concurrency = 2
input_tokens = 400
output_tokens = 8

[[published]]
tok_s = 50.0
metric = "output"
concurrency = 1
"""
QUICK = ("--seed", "6", "--tasks", "2", "--runs", "2", "--warm-up", "quick")


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    for name in ("CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    folder = tmp_path / "config" / "skep" / "presets"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text(OWN)

    def invoke(*args):
        done = CliRunner().invoke(app, ["bench", "sweep", *args])
        if isinstance(done.exception, UserError):
            raise done.exception
        assert done.exit_code == 0, (done.output, done.exception)
        return done

    return invoke


def test_the_published_shape_is_run_and_the_share_of_it_told(sweep):
    with FakeEngine(slots=2, token_ms=2) as engine:
        done = sweep("--url", engine.url, "--against-preset", "mine", *QUICK, "--json")
    document = json.loads(done.stdout)
    assert [level["concurrency"] for level in document["levels"]] == [2]
    against = document["against_preset"]
    assert set(against) == {"preset", "shape", "differences", "figures"}
    assert against["shape"] == {"input_tokens": pytest.approx(400, rel=0.1), "output_tokens": 8}
    first, second = against["figures"]
    assert set(first) == {
        "figure", "published", "measured", "interval", "runs", "clock", "ratio", "ratio_interval", "fair", "why",
    }  # fmt: skip
    assert first["ratio"] == pytest.approx(first["measured"] / 100)
    assert min(first["runs"]) <= first["measured"] <= max(first["runs"])
    assert first["interval"] is None or len(first["runs"]) > 2
    assert "lengths are not published" in second["why"]


def test_another_model_is_refused_before_anything_is_measured(sweep, tmp_path):
    with FakeEngine(slots=2, token_ms=2) as engine, pytest.raises(UserError, match="`fake-model` answers at"):
        sweep("--url", engine.url, "--against-preset", "qwen3.6-27b-2x3090-replicas")
    assert not (tmp_path / "data" / "skep").exists()


def test_other_cards_are_said_before_the_run_and_put_the_share_in_brackets(sweep, tmp_path):
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has cards")
    with FakeEngine(slots=2, token_ms=2) as engine:
        done = sweep("--url", engine.url, "--against-preset", "mine", *QUICK)
    said = done.stderr
    warned, begun = said.index("warning: measured on rtx-3090, no card is seen here"), said.index("as published")
    assert warned < begun
    assert "not said" in done.stdout
    assert " %)" in done.stdout
    assert "under other conditions" in said


def test_what_the_user_says_stays_and_the_table_tells_what_it_costs(sweep):
    with FakeEngine(slots=2, token_ms=2) as engine:
        done = sweep("--url", engine.url, "--against-preset", "mine", *QUICK, "-c", "1", "--max-tokens", "4")
    assert "of it" in done.stdout
    assert "C=1" in done.stderr
    assert "figure 1 (100 tok/s output at C=2): not compared" in done.stderr
    assert "can be compared with this run" in done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--against-preset", "mnie"), "no preset is called `mnie`"),
        (("--against-preset", "mine", "--shape-of", "2"), "lengths of figure 2"),
        (("--against-preset", "mine", "--shape-of", "7"), "--shape-of 7 is no published figure"),
        (("--against-preset", "mine", "--to-saturation"), "contradict each other"),
        (("--against-preset", "mine", "--shape", "conversation"), "runs plain prompts"),
        (("--shape-of", "1"), "goes with --against-preset"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_measured(sweep, args, said):
    with pytest.raises(UserError, match=said):
        sweep("--url", "http://127.0.0.1:1", *args)

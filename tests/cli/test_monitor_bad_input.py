"""What `skep monitor` refuses: nonsense, secrets in the wrong place, and a verdict on nothing."""

import contextlib
import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.main import get_command

from skep.cli.main import app_of
from skep.cli.monitor_run import when_ready
from skep.errors import EndpointError, SkepError, UserError
from skep.monitor.records import HOUR_S, Heat, Probe, ProbeOutcome, ProbeSample, ProbeShape, ProbeTarget
from skep.monitor.store import SeriesStore
from skep.paths import Paths, user_paths
from skep.store.database import open_store

APP = get_command(app_of(["monitor"]))


@pytest.fixture
def paths(tmp_path, monkeypatch) -> Paths:
    for name in ("CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    for name in ("XDG_RUNTIME_DIR", "SKEP_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return user_paths(os.environ)


@pytest.fixture
def monitor(paths):
    def run(*words):
        """What it printed, what it said, and what was raised."""
        out, err, raised = io.StringIO(), io.StringIO(), None
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                APP.main(["monitor", *words], prog_name="skep")
            except (SkepError, SystemExit) as error:
                raised = error if getattr(error, "code", 1) else None
        return out.getvalue(), err.getvalue(), raised

    return run


def refused(done):
    raised = done[2]
    assert isinstance(raised, UserError), done
    return f"{raised.message} | {raised.hint}"


URL = ("--url", "http://127.0.0.1:1", "--no-check")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--url", "http://me:hunter2@127.0.0.1:1", "--no-check"), "a user"),
        (("--url", "http://127.0.0.1:1/v1?key=hunter2", "--no-check"), "--key-env"),
        ((*URL, "--key-env", "sk-hunter2"), "name of a variable"),
        ((*URL, "--timeout", "0s"), "too short"),
        ((*URL, "--every", "99999999d"), "too rare"),
        ((*URL, "--model", "a\nb"), "printed"),
    ],
)
def test_what_must_not_be_stored_is_refused_and_not_repeated(monitor, words, said):
    told = refused(monitor("add", "box", *words))
    assert said in told
    assert "hunter2" not in told
    assert json.loads(monitor("list", "--json")[0]) == []


@pytest.mark.parametrize("option", ["--prompt-tokens", "--short", "--long"])
def test_an_answer_without_end_is_refused(monitor, option):
    raised = monitor("add", "box", *URL, option, "99999999999999999999")[2]
    assert (type(raised), raised.code) == (SystemExit, 2)


def test_a_variable_that_is_not_set_is_told_where_nobody_checks(monitor):
    assert "`NO_SUCH_KEY` is not set here" in monitor("add", "box", *URL, "--key-env", "NO_SUCH_KEY")[1]


def test_models_that_are_being_loaded_are_not_probed():
    """Each start of a hive would have been an outage. The end of the hive ends the wait."""
    theirs, ours = os.pipe()
    try:
        phases = iter(["starting", "ready"])
        assert when_ready(theirs, lambda: next(phases))
        assert list(phases) == []
        assert when_ready(theirs, lambda: None)
        os.close(ours)
        assert not when_ready(theirs, lambda: "starting")
    finally:
        os.close(theirs)


def test_a_model_with_a_slash_in_its_name_is_found_by_it(monitor, paths):
    """What the gateway saw of `org/model` is a target of its own, and no series of a target `gateway:org`."""
    with open_store(paths.store) as store:
        at = time.time() - 60
        probe = Probe("gateway:org/model", 0, 1, at, at, ProbeOutcome.DONE, started_at=at)
        SeriesStore(store).append_probe(probe, [ProbeSample(at, Heat.HOT, ProbeShape.SHORT, 1, tok_s=50.0)])
    (found,) = json.loads(monitor("series", "gateway:org/model", "--json")[0])
    assert found["series"] == "gateway:org/model/hot/short/c1/tok_s"
    (again,) = json.loads(monitor("series", found["series"], "--json")[0])
    assert again["series"] == found["series"]
    refused(monitor("series", "gateway:org/other"))


def test_a_probe_of_nothing_makes_no_file(monitor, paths):
    refused(monitor("probe", "box"))
    assert not paths.store.exists()


def test_nothing_watched_is_not_called_well(monitor, paths):
    """A cron job of another user looks at another store, and would be content for ever."""
    refused(monitor("check", "--json"))
    with open_store(paths.store):
        pass
    assert "nothing is watched here" in refused(monitor("check"))


def test_notes_are_one_printable_line_of_a_time_that_can_be(monitor, paths):
    assert monitor("note", "a\0b\nc \x1b[31mred")[2] is None
    with open_store(paths.store) as store:
        (event,) = SeriesStore(store).events(0, time.time() + 1)
    assert event.text == "a b c [31mred"
    assert "1970" in refused(monitor("note", "x", "--at", "99999999999d"))
    assert "1970" in refused(monitor("note", "x", "--at", "1900-01-01"))
    assert monitor("thin", "--older", "99999999999d", "--yes")[2] is None
    assert monitor("export", "--since", "99999999999d")[2] is None


def test_a_loop_that_does_not_come_with_the_hive_is_not_promised(monitor, paths):
    with open_store(paths.store) as store:
        SeriesStore(store).put_target(ProbeTarget("box", "http://127.0.0.1:1", added_at=time.time()))
    assert "and `skep up` does" in monitor("status")[1]
    paths.config.mkdir(parents=True)
    (paths.config / "skep.toml").write_text("[monitor]\nwith_up = false\n")
    said = monitor("status")[1]
    assert "`skep monitor run` starts it" in said
    assert "skep up" not in said


def test_a_target_without_room_is_busy_everywhere(monitor, paths):
    now = time.time()
    with open_store(paths.store) as store:
        series = SeriesStore(store)
        series.put_target(ProbeTarget("box", "http://127.0.0.1:1", added_at=now - 9 * HOUR_S))
        for hours in (3, 2, 1):
            at = now - hours * HOUR_S + 60
            fault = {"error_kind": "busy", "error": "HTTP 429: come later"}
            series.append_probe(Probe("box", 0, int(at // HOUR_S), at, at, ProbeOutcome.FAILED, started_at=at, **fault))
    out, err, raised = monitor("status")
    assert raised is None
    assert "busy" in out
    assert "HTTP 429: come later" in err
    found = json.loads(monitor("check", "--json")[0])
    assert (found["ok"], found["targets"][0]["state"]) == (True, "busy")


def test_a_reader_that_leaves_early_is_no_error(paths):
    """`skep monitor export | head -1`."""
    with open_store(paths.store) as store:
        series = SeriesStore(store)
        for slot in range(60):  # more than a pipe holds
            at = 1e9 + slot * HOUR_S
            series.append_probe(Probe("box", 0, slot, at, at, ProbeOutcome.DONE, started_at=at, model="m" * 5000))
    command = [sys.executable, "-m", "skep", "monitor", "export", "--csv"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout.readline().startswith(b"at,")
        child.stdout.close()
        said = child.stderr.read()
    assert b"Traceback" not in said
    assert b"BrokenPipe" not in said


def test_a_store_of_before_the_monitor_is_told_or_brought_up_to_date(monitor, paths):
    paths.store.parent.mkdir(parents=True)
    script = Path(__file__).parents[1] / "store" / "versions" / "5.sql"
    with contextlib.closing(sqlite3.connect(paths.store)) as connection:
        connection.executescript(script.read_text())
    for words in (("status",), ("list", "--json"), ("check",), ("series",), ("export",), ("note", "x")):
        raised = monitor(*words)[2]
        assert raised is None or isinstance(raised, SkepError), words
    assert isinstance(monitor("add", "box", "--url", "http://127.0.0.1:1")[2], EndpointError)
    assert monitor("add", "box", *URL)[2] is None
    shutil.rmtree(paths.store.parent)

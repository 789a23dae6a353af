"""`skep monitor` as its users type it: what is added, what is refused, what is shown."""

import contextlib
import os
import socket
import sqlite3
import time
from functools import partial
from pathlib import Path

import pytest
from hive_client import answering, eventually, free_port
from in_process import call, refused

from skep.monitor.loop import hold_monitor_lock, wait_while
from skep.monitor.records import (
    DAY_S,
    HOUR_S,
    Alert,
    AlertRule,
    EventKind,
    Heat,
    MonitorEvent,
    Probe,
    ProbeOutcome,
    ProbeSample,
    ProbeShape,
    ProbeTarget,
)
from skep.monitor.store import SeriesStore
from skep.store.database import open_store
from skep.supervisor.main import something_to_watch
from skep.testing.process import FakeEngine

pytestmark = pytest.mark.usefixtures("paths")  # each test has an installation of its own
NOBODY = ("--url", "http://127.0.0.1:1", "--no-check")
monitor = partial(call, "monitor")
refusal = partial(refused, "monitor")


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(slots=4, token_ms=0.2) as running:
        yield running


@pytest.fixture
def series(paths):
    with open_store(paths.store) as store:
        yield SeriesStore(store)


def put_target(series, *names):
    for name in names or ("box",):
        series.put_target(
            ProbeTarget(name, "http://127.0.0.1:1", added_at=time.time() - 2 * DAY_S)
        )


def probed(series, name, at, speed=80.0, outcome=ProbeOutcome.DONE, **fields):
    probe = Probe(
        name, 0, int(at // HOUR_S), at, at + 5, outcome, started_at=at, **{"model": "m", **fields}
    )
    if speed:
        samples = [ProbeSample(at, Heat.HOT, ProbeShape.SHORT, 1, tok_s=speed, ttft_ms=20.0)]
    else:
        samples = []
    series.append_probe(probe, samples)


def test_a_target_is_asked_when_it_is_added_and_its_schedule_is_printed(engine):
    options = ("--every", "30m", "-c", "4", "--no-long")
    errors = monitor("add", "box", "--url", engine.url, *options, check=0).err
    assert "fake-model" in errors
    assert "every 30 min (short 64, c4)" in errors
    assert "starts probing" in errors


def test_a_target_is_listed_with_its_settings(engine, paths):
    options = ("--every", "30m", "-c", "4", "--no-long", "--slower", "5%")
    monitor("add", "box", "--url", engine.url, *options, check=0)
    (row,) = monitor("list", "--json").json
    settings = {"kind": "replica", "every_s": 1800, "long_tokens": 0, "slower_pct": 5}
    assert {name: row[name] for name in settings} == settings
    assert something_to_watch(paths.store)


def test_a_name_that_is_taken_is_refused_with_how_to_free_it(engine):
    monitor("add", "box", *NOBODY, check=0)
    message = refusal("add", "box", "--url", engine.url)
    assert "watched already" in message
    assert "skep monitor remove box" in message


def test_a_removed_target_is_watched_no_longer_and_listed_on_demand(paths):
    monitor("add", "box", *NOBODY, check=0)
    monitor("remove", "box", check=0)
    assert not something_to_watch(paths.store)
    assert "there are no targets" in monitor("list").err
    assert [row["name"] for row in monitor("list", "--all", "--json").json] == ["box"]


def test_the_alerts_of_a_removed_target_are_closed(series):
    put_target(series)
    series.open_alert(Alert(AlertRule.DOWN, "box", 1.0, "box is down"))
    monitor("remove", "box", check=0)
    assert series.alerts(open_only=True) == []


def test_a_removed_target_comes_back_under_its_name(engine):
    monitor("add", "box", *NOBODY, check=0)
    monitor("remove", "box", check=0)
    monitor("add", "box", "--url", engine.url, check=0)
    assert [row["name"] for row in monitor("list", "--json").json] == ["box"]


def test_a_target_added_while_the_loop_runs_is_probed_soon(engine, paths):
    with hold_monitor_lock(paths):
        errors = monitor("add", "box", "--url", engine.url, "--every", "30m", check=0).err
    assert errors.splitlines()[1:] == [
        "it is probed every 30 min (short 64, long 512)",
        "the first probe begins soon; `skep monitor status` shows it",
    ]


def test_a_look_at_nothing_makes_no_file_and_nothing_watched_is_not_called_well(paths):
    """A cron job of another user looks at another store, and would be content for ever."""
    assert monitor("list", "--json").json == []
    assert monitor("status", "--json").json["targets"] == []
    for words in (["check"], ["check", "--json"]):
        assert "nothing is watched here" in refusal(*words)
    for words in (["remove", "box"], ["probe", "box"]):
        assert "there is no target `box`" in refusal(*words)
    assert not paths.store.exists()
    assert not something_to_watch(paths.store)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["a/b"], "not a valid target name"),
        (["http://127.0.0.1:9999"], "the name comes first: `skep monitor add box --url URL`"),
        (["x" * 65], "not a valid target name"),
        (["box", "--every", "5s"], "too often"),
        (["box", "--every", "soon"], "not a duration"),
        (["box", "--every", "99999999d"], "too long"),
        (["box", "--timeout", "0s"], "too short"),
        (["box", "--slower", "0%"], "--slower"),
        (["box", "--slower", "slow"], "--slower"),
        (["box", "--api", "grpc"], "--api"),
        (["box", "--model", "other"], "does not serve `other`"),
        (["box", "--model", "a\nb"], "printed"),
        (["box", "--key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY"),
        (["box", "--key-env", "sk-hunter2"], "name of a variable"),
        (["-x-"], "-x"),
        *(
            (["box", option, "9" * 20], option)
            for option in ("--prompt-tokens", "--short", "--long")
        ),
        (["box", "--url", "ftp://x"], "ftp"),
        (["box", "--url", "http://me:hunter2@127.0.0.1:1", "--no-check"], "a user"),
        (["box", "--url", "http://127.0.0.1:1/v1?key=hunter2", "--no-check"], "--key-env"),
    ],
)
def test_nonsense_and_secrets_are_refused_in_one_line_and_not_repeated(engine, words, hint):
    message = refusal("add", *words, *([] if "--url" in words else ["--url", engine.url]))
    assert hint in message
    assert "hunter2" not in message
    assert monitor("list", "--json").json == []


def test_a_url_at_which_nobody_answers_or_something_else_does_is_refused():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert "--no-check" in refusal("add", "box", "--url", url, code=1)
        added = monitor(
            "add", "box", "--url", url, "--no-check", "--key-env", "NOT_SET_YET", check=0
        ).err
    assert "not asked" in added
    assert "NOT_SET_YET" in refusal("probe", "box", code=1)
    with answering(200, b"<!doctype html><title>Log in</title>") as (url, _):
        assert "not a model list" in refusal("add", "page", "--url", url, code=1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        before = time.monotonic()
        refusal("add", "silent", "--url", url, "--timeout", "200ms", code=1)
    assert time.monotonic() - before < 5


def test_an_expired_key_is_refused_and_its_value_is_nowhere(monkeypatch, paths):
    monkeypatch.setenv("CLOUD_KEY", "sk-very-secret")
    with answering(401, b'{"error": {"message": "expired"}}', "application/json") as (url, _):
        add = ("add", "cloud", "--url", url, "--key-env", "CLOUD_KEY")
        assert "refuses the API key (HTTP 401)" in refusal(*add, code=1)
        monitor(*add, "--no-check", check=0)
        failed = monitor("probe", "cloud", check=1)
    assert "401" in failed.error.message
    columns = (
        monitor("status", "--json").out + monitor("list", "--json").out + failed.out + failed.err
    )
    assert "CLOUD_KEY" in columns
    assert "sk-very-secret" not in columns
    assert b"sk-very-secret" not in paths.store.read_bytes()


@pytest.mark.parametrize(
    "words", [["remove"], ["probe"], ["note", "x", "--target"]], ids=lambda words: words[0]
)
def test_an_unknown_target_is_refused_with_near_names(series, words):
    put_target(series)
    probed(series, "box", time.time() - HOUR_S)
    message = refusal(*words, "boxx")
    assert "`boxx`" in message
    assert "`box`" in message


def test_a_probe_by_hand_is_shown_and_kept(engine):
    monitor("add", "box", "--url", engine.url, "--short", "8", "--long", "16")
    json = monitor("probe", "box", "--json", check=0).json
    assert [(sample["heat"], sample["shape"]) for sample in json["samples"]] == [
        ("cold", "short"),
        ("hot", "short"),
        ("hot", "long"),
    ]
    assert json["probe"]["outcome"] == "done"
    (target,) = monitor("status", "--json").json["targets"]
    assert target["state"] == "ok"
    assert target["readings"][0]["value"] > 0
    out = monitor("status").out
    assert "box" in out
    assert "tok/s" in out
    assert "hot short c1" in monitor("probe", "box").out


def test_the_loop_probes_once_what_is_due_and_leaves(engine, paths, monkeypatch):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monitor("add", "box", "--url", engine.url, "--short", "8", "--no-long")
    done = monitor("run", "--once", check=0)
    assert "monitor.probed target='box' outcome=done" in done.err
    assert done.out == ""
    with hold_monitor_lock(paths):
        assert "pid" in refusal("run", code=1)
        assert monitor("status", "--json").json["loop"]["running"]
    assert not monitor("status", "--json").json["loop"]["running"]


def test_check_ends_with_4_while_something_is_wrong(series):
    now = time.time()
    put_target(series)
    probed(series, "box", now - 60)
    monitor("check", check=0)
    alert = series.open_alert(
        Alert(AlertRule.SLOWER, "box", now, "box: 12 % slower than its 7-day median")
    )
    done = monitor("check", check=4)
    assert done.out == "box: 12 % slower than its 7-day median\n"
    assert "\n" not in done.error.message
    assert monitor("check", "--json", check=4).json["wrong"][0]["rule"] == "slower"
    assert "alert: box: 12 %" in monitor("status").err
    series.close_alert(alert, now, "it is back")
    assert monitor("check", "--json").json["ok"]


@pytest.fixture
def slower(series):
    """A target `box` that has lost a quarter of its speed 20 hours ago."""
    put_target(series)
    for hours in range(40, 0, -1):
        probed(series, "box", time.time() - hours * HOUR_S, 80.0 if hours > 20 else 60.0)


def test_status_begins_with_which_target_is_faster(series):
    put_target(series, "box", "cloud")
    now = time.time()
    for hour in range(30, 0, -1):
        probed(series, "box", now - hour * HOUR_S, 73.7)
        probed(series, "cloud", now - hour * HOUR_S, 33.8)
    done = monitor("status", check=0)
    assert done.out.splitlines()[0].startswith(
        "box is 118 % faster than cloud (7-day medians 73.7 and 33.8)"
    )
    (headline,) = monitor("status", "--json").json["headlines"]
    assert headline["medians"] == [73.7, 33.8]


def test_two_targets_are_compared_with_how_they_are_probed(series):
    put_target(series, "box", "cloud", "new")
    now = time.time()
    for hour in range(30, 0, -1):
        probed(series, "box", now - hour * HOUR_S, 73.7)
        probed(series, "cloud", now - hour * HOUR_S, 33.8)
    done = monitor("compare", "box", "cloud", "--since", "30h", check=0)
    headline, titles, first, *_ = done.out.splitlines()
    assert headline.startswith("box is 118 % faster than cloud (30-hour medians 73.7 and 33.8)")
    assert titles.split()[:5] == ["KIND", "OF", "RUN", "box", "cloud"]
    assert first.split()[-4:] == ["29", "/", "29", "worse"]
    assert "box, cloud: a probe every 1 h" in done.err
    document = monitor("compare", "cloud", "box", "--json").json
    assert document["headline"]["sentence"].startswith("cloud is 54 % slower than box")
    assert "no kind of run in common" in monitor("compare", "box", "new", check=0).err


def test_a_target_is_not_compared_with_itself_or_with_an_unknown_one(series):
    put_target(series, "box")
    assert "cannot be compared with itself" in refusal("compare", "box", "box")
    assert "there is no target `cluod`" in refusal("compare", "box", "cluod")
    assert "not a time" in refusal("compare", "box", "box", "--since", "soon")


def test_status_says_why_and_what_a_note_has_brought(series, slower):
    now = time.time()
    put_target(series, "down", "old")
    probed(
        series,
        "down",
        now - 60,
        None,
        ProbeOutcome.FAILED,
        error_kind="connect",
        error="connection refused",
    )
    probed(series, "old", now - DAY_S)
    series.append_event(
        MonitorEvent(now - 20.5 * HOUR_S, EventKind.NOTE, "NVLink bridges removed", "box")
    )
    err = monitor("status", check=0).err
    for words in (
        "down: connection refused",
        "old: not probed since",
        "the loop is not running",
        "NVLink bridges removed",
        "-25.0 %",
    ):
        assert words in err


def test_a_note_of_the_past_is_compared_at_once(slower):
    json = monitor(
        "note", "driver 580", "--target", "box", "--at", "1230m", "--json", check=0
    ).json
    assert json["event"]["text"] == "driver 580"
    assert json["around"][0]["ratio"]["estimate"] == pytest.approx(0.75)
    assert "compares before and after once new probes have run" in monitor("note", "just now").err


def test_notes_are_one_printable_line_of_a_time_that_can_be(series):
    monitor("note", "a\0b\nc \x1b[31mred", check=0)
    (event,) = series.events(0, time.time() + 1)
    assert event.text == "a b c [31mred"
    refusal("note", " ")
    for at, why in (
        ("99999999999d", "1970"),
        ("1900-01-01", "1970"),
        ("2199-01-01", "future"),
        ("yesterday", "time"),
    ):
        assert why in refusal("note", "x", "--at", at)


def test_models_that_are_being_loaded_are_not_probed():
    """Each start of a hive would have been an outage. The end of the hive ends the wait."""
    theirs, ours = os.pipe()
    try:
        phases = iter(["starting", "ready"])
        assert wait_while(lambda: next(phases) == "starting", theirs, 0.5)
        assert list(phases) == []
        assert wait_while(lambda: False, theirs, 0.5)
        os.close(ours)
        assert not wait_while(lambda: True, theirs, 0.5)
    finally:
        os.close(theirs)


def test_a_target_without_room_is_busy_everywhere(series):
    put_target(series)
    for hours in (3, 2, 1):
        fault = {"error_kind": "busy", "error": "HTTP 429: come later"}
        probed(
            series, "box", time.time() - hours * HOUR_S + 60, None, ProbeOutcome.FAILED, **fault
        )
    page = monitor("status", check=0)
    assert "busy" in page.out
    assert "HTTP 429: come later" in page.err
    assert monitor("check", "--json").json["ok"]


def test_a_store_of_before_the_monitor_is_told_or_brought_up_to_date(paths):
    paths.store.parent.mkdir(parents=True)
    script = Path(__file__).parents[1] / "store" / "versions" / "5.sql"
    with contextlib.closing(sqlite3.connect(paths.store)) as connection:
        connection.executescript(script.read_text())
    for words in ("status", "list --json", "check", "note x"):
        done = monitor(*words.split())
        assert done.code == 0 or done.error is not None, words
    refusal("add", "box", "--url", "http://127.0.0.1:1", code=1)
    monitor("add", "box", *NOBODY, check=0)


def test_the_dashboard_wants_a_key_beyond_loopback():
    assert "skep key add" in refused("web", "--host", "0.0.0.0", "--port", "0")


def test_a_model_that_is_swapped_behind_its_url_begins_a_new_series_and_is_told_once():
    port = free_port()
    messages = []
    for model in ("small", "large", "large"):
        with FakeEngine(model=model, port=port, token_ms=1) as engine:
            if model == "small":
                monitor("add", "box", "--url", engine.url, "--short", "8", "--no-long", check=0)
            messages.append(
                [
                    line
                    for line in monitor("probe", "box", check=0).err.splitlines()
                    if "begin anew" in line
                ]
            )
            probed_at = int(time.time())
        # Two probes of one second are one.
        eventually(lambda before=probed_at: int(time.time()) > before)
    assert messages == [
        [],
        ["model changed from small.gguf to large.gguf; its series begin anew"],
        [],
    ]

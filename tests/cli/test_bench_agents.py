"""`skep bench agents` as a user runs it: its table, its misuse, Ctrl-C, and what others read."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from in_process import call, refused
from installation import installation
from msgspec.structs import replace

from skep.store.database import open_store
from skep.store.records import GatewayRequest
from skep.testing.process import FakeEngine

FAST = {"slots": 4, "token_ms": 0.5, "prefix_cache": "used", "ctx": 32_768}
SHORT = ("--shape", "small", "--turns-at-most", "3", "--pause-scale", "0.001", "--seed", "4")


@pytest.fixture(autouse=True)
def _own_folders(paths):
    """Each test has an installation of its own."""


def agents(engine, *words, check=0):
    return call("bench", "agents", "--url", engine.url, *SHORT, *words, check=check)


@dataclass(frozen=True)
class StoredAgents:
    out: str
    errors: str
    run: dict
    listing: str
    markdown: str
    csv: str
    document: dict
    page: str


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """One run of two levels, as the commands for stored runs show it."""
    with installation(tmp_path_factory.mktemp("agents")), FakeEngine(**FAST) as engine:
        done = agents(engine, "-c", "1,2", "--sessions", "2")
        (run,) = call("runs", "--json", check=0).json
        call("runs", "report", "last", "-o", "out.html", check=0)
        return StoredAgents(
            done.out,
            done.err,
            run,
            call("runs", check=0).out,
            call("runs", "export", "last", check=0).out,
            call("runs", "export", "last", "--format", "csv", check=0).out,
            call("runs", "export", "last", "--format", "json", check=0).json,
            Path("out.html").read_text(),
        )


def test_it_prints_a_row_a_level_with_turns_and_hits(stored):
    head, *rows = stored.out.splitlines()
    assert ("turns/min" in head, "possible" in head, "warm" in head) == (True, True, True)
    assert [row.split()[0] for row in rows] == ["1", "2"]


def test_it_says_before_how_sessions_are_cut(stored):
    (headline,) = [line for line in stored.errors.splitlines() if "sessions at once" in line]
    assert "cut at 3 turns" in headline
    assert "pauses x 0.001" in headline
    assert "seed 4" in headline


def test_it_says_that_no_cliff_is_shown(stored):
    assert "no session cliff is shown up to 2 sessions" in stored.errors
    assert "--runs 3" in stored.errors


def test_the_run_is_listed_with_its_kind_and_levels(stored):
    assert (stored.run["kind"], stored.run["state"]) == ("agents", "done")
    assert " agents " in stored.listing
    assert " 1,2 " in stored.listing


def test_the_run_is_exported_by_level(stored):
    assert "| turns/min |" in stored.markdown
    assert stored.csv.startswith("sessions,sessions_ended")
    assert [level["sessions"] for level in stored.document["levels"]] == [1, 2]


def test_the_run_is_drawn_with_its_own_page(stored):
    assert "sessions of agents" in stored.page
    assert "Turns a minute" in stored.page


def test_the_document_is_what_the_schema_says():
    with FakeEngine(**FAST) as engine:
        document = agents(engine, "-c", "1", "--sessions", "1", "--json").json
    assert document["levels"][0]["sessions_ended"] == 1
    assert document["cliff"] is None


def test_auto_says_where_the_search_stopped():
    with FakeEngine(**FAST) as engine:
        done = agents(engine, "-c", "auto", "--sessions", "1", "--turns-at-most", "2")
    document = call("runs", "export", "last", "--format", "json", check=0).json
    assert "the search stopped at" in done.err
    listing = call("runs", check=0).out
    assert document["search"]["at"] == document["levels"][-1]["sessions"]
    assert " auto " in listing


def test_a_context_that_no_session_fits_into_is_one_line():
    with FakeEngine(ctx=4_096) as engine:
        line = refused("bench", "agents", "--url", engine.url)
    assert line == (
        "sessions of `--shape coding` need a context of 32,768 tokens, this is 4,096 | "
        "serve with a longer context"
    )


def test_a_shape_that_is_not_there_is_one_line():
    assert refused("bench", "agents", "--url", "http://127.0.0.1:9", "--shape", "huge") == (
        "no shape of sessions is called `huge` | there are coding, small"
    )


def test_turns_that_fail_are_counted_and_make_the_exit_code_1():
    with FakeEngine(**FAST) as engine:
        engine.fault(kind="close-mid", after_tokens=300, times=None)
        called = agents(engine, "-c", "1", "--sessions", "2", check=1)
    assert called.error.message.startswith("2 of ")
    assert "requests failed" in called.error.message


def test_ctrl_c_keeps_the_levels_that_had_ended():
    argv = [sys.executable, "-m", "skep", "bench", "agents", *SHORT, "-c", "1,2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with FakeEngine(**{**FAST, "token_ms": 2}) as engine:
        process = subprocess.Popen([*argv, "--sessions", "2", "--url", engine.url], **pipes)
        next(line for line in process.stderr if line.startswith("2 sessions run 1"))
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert [line.split()[0] for line in output.splitlines()] == ["sessions", "1"]
    assert "error: interrupted with 2 sessions" in errors
    assert "hint: the finished levels are kept" in errors


def test_requests_of_a_run_have_their_session_and_turn():
    with FakeEngine(**FAST) as engine:
        agents(engine, "-c", "1", "--sessions", "2")
    rows = json.loads(call("runs", "export", "last", "--requests", "--format", "json").out)
    places = {(row["session"], row["turn"]) for row in rows if row["level"]}
    assert places == {(session, turn) for session in range(2) for turn in range(3)}


def test_runs_of_agents_and_of_a_sweep_are_not_compared():
    """Their levels are of another kind: sessions, and requests."""
    with FakeEngine(**FAST) as engine:
        agents(engine, "-c", "1", "--sessions", "1", "--turns-at-most", "2")
        sweep = ("-c", "1", "--tasks", "2", "--runs", "1", "--max-tokens", "4", "--quick")
        call("bench", "sweep", "--url", engine.url, *sweep, check=0)
    assert "compare runs of one kind" in refused("runs", "compare", "last~1", "last")
    assert "are only drawn beside their like" in refused("runs", "report", "last~1", "last")


def write_trace(*lines):
    """Write a trace of AIPerf's form, and return its path."""
    path = Path("trace.jsonl")
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_trace_is_replayed_with_its_own_lengths():
    path = write_trace(
        {"session_id": "a", "input_length": 300, "output_length": 7},
        {"session_id": "a", "input_length": 90, "output_length": 5, "delay": 10},
    )
    words = ("--trace", path, "-c", "1", "--sessions", "2", "--seed", "3")
    with FakeEngine(**FAST) as engine:
        done = call("bench", "agents", "--url", engine.url, *words, check=0)
    rows = json.loads(call("runs", "export", "last", "--requests", "--format", "json").out)
    outputs = [row["output_tokens"] for row in rows if row["level"] and not row["session"]]
    assert outputs == [7, 5]
    assert "trace.jsonl: 1 session, 2 turns" in done.err


def test_a_trace_that_no_context_holds_is_one_line():
    path = write_trace({"session_id": "a", "input_length": 90_000})
    with FakeEngine(**FAST) as engine:
        line = refused("bench", "agents", "--url", engine.url, "--trace", path)
    assert line == (
        "no session of `trace.jsonl` fits: the shortest begins with 90,000 tokens, the context "
        "is 32,768 | serve with a longer context"
    )


def test_a_trace_of_another_format_is_one_line():
    path = write_trace({"prompt": "hello"})
    line = refused("bench", "agents", "--url", "http://127.0.0.1:9", "--trace", path)
    assert line.startswith("line 1 of `trace.jsonl` is no request of a trace | a line is Mooncake")


def test_a_log_without_sessions_is_one_line():
    line = refused("bench", "agents", "--url", "http://127.0.0.1:9", "--from-log", "7d")
    assert line.startswith("the gateway has recorded no session in the last 7d | ")


def test_a_trace_and_a_log_are_not_replayed_at_once():
    words = ("--from-log", "7d", "--trace", "trace.jsonl")
    line = refused("bench", "agents", "--url", "http://127.0.0.1:9", *words)
    assert line == "--trace and --from-log are both given | choose one of them"


def test_the_sessions_of_this_box_are_replayed(paths):
    """Two turns that the gateway has recorded within the last week."""
    names = {"session": "5e55", "conversation": "c0", "pause_s": 0.0}
    request = GatewayRequest(
        id="r1",
        arrived_at=time.time() - 60,
        path="/v1/chat/completions",
        model="m",
        priority="normal",
        flow=None,
        replica="r0",
        attempts=1,
        outcome="answered",
        status=200,
        code=None,
        streamed=True,
        queued_s=0.0,
        first_byte_s=0.1,
        ended_s=1.0,
        prompt_tokens=400,
        cached_tokens=0,
        output_tokens=6,
        request_bytes=1,
        response_bytes=1,
        turn=1,
        **names,
    )
    later = replace(
        request,
        id="r2",
        arrived_at=request.arrived_at + 9,
        prompt_tokens=600,
        output_tokens=4,
        turn=2,
    )
    with open_store(paths.store) as store:
        store.append_gateway_requests([request, later])
    words = ("--from-log", "7d", "-c", "1", "--sessions", "1", "--seed", "3")
    with FakeEngine(**FAST) as engine:
        done = call("bench", "agents", "--url", engine.url, *words, check=0)
    assert "log of 7d: 1 session, 2 turns" in done.err
    rows = json.loads(call("runs", "export", "last", "--requests", "--format", "json").out)
    assert [row["output_tokens"] for row in rows if row["level"]] == [6, 4]

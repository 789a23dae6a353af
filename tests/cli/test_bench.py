"""`skep bench` as a user runs it: every command once, its likely misuse, Ctrl-C, and what others
read of it.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from hive_client import eventually
from in_process import call, refused
from installation import installation
from terminal import Terminal

from skep.bench.session import SessionProgress
from skep.report.liveview import LevelLines
from skep.store.database import open_store
from skep.store.records import RunState
from skep.testing.process import FakeEngine
from skep.units import number

TWICE = ("--runs", "2", "--max-tokens", "4")
SHORT_ANSWERS = ("--max-tokens", "8", "--warm-up", "quick")
QUICK = ("-c", "1,2", "--tasks", "2", *TWICE, "--warm-up", "quick")


@pytest.fixture(autouse=True)
def _own_folders(paths):
    """Each test has an installation of its own."""


@pytest.fixture
def engine():
    with FakeEngine(slots=2, token_ms=2, ttft_ms=5) as running:
        yield running


def bench(command, engine, *words, check=0):
    return call("bench", command, "--url", engine.url, *words, check=check)


@dataclass(frozen=True)
class StoredSweep:
    url: str
    out: str
    errors: str
    run: dict
    listing: str
    report_errors: str
    page: str


def stored_sweep(url, out, errors):
    """The only sweep of this installation, as the commands for stored runs show it."""
    (run,) = call("runs", "--json", check=0).json
    report = call("report", run["id"][:11], "-o", "out.html", check=0)
    page = Path("out.html").read_text()
    return StoredSweep(url, out, errors, run, call("runs", check=0).out, report.err, page)


@pytest.fixture(scope="module")
def finished_sweep(tmp_path_factory):
    with (
        installation(tmp_path_factory.mktemp("finished")),
        FakeEngine(slots=2, token_ms=2, ttft_ms=5) as engine,
    ):
        done = bench("sweep", engine, *QUICK)
        return stored_sweep(engine.url, done.out, done.err)


def test_a_sweep_prints_a_table_and_says_what_is_measured(finished_sweep):
    assert "eff tok/s" in finished_sweep.out
    assert "C=1,2; steady" in finished_sweep.errors


def test_a_finished_sweep_is_listed(finished_sweep):
    run = finished_sweep.run
    assert (run["state"], run["model"]) == ("done", "fake-model")
    assert run["id"] in finished_sweep.listing


def test_the_requests_of_a_run_are_counted_with_its_warm_up(finished_sweep):
    assert finished_sweep.run["requests"] > 8


def test_a_sweep_is_drawn_in_its_report(finished_sweep):
    assert "fake-model" in finished_sweep.page
    assert "<svg" in finished_sweep.page


def test_a_report_fetches_nothing_from_anywhere(finished_sweep):
    """The only address in it is that of the server that was measured."""
    addresses = set(re.findall(r"https?://[^\s\"'<>/]+", finished_sweep.page))
    assert addresses == {finished_sweep.url}


def test_auto_doubles_and_says_where_it_stopped_and_why(tmp_path):
    """Two slots, past which nothing is gained.

    The terminal, the list, the report and the document say the same.
    """
    with FakeEngine(slots=2, token_ms=4) as engine:
        how = ("-c", "auto", "--runs", "2", "--max-tokens", "8", "--warm-up", "quick")
        done = bench("sweep", engine, *how)
    assert "C=1,2,4 and on" in done.err
    (reason,) = re.findall(r"^The search stopped at C = .*", done.err, re.MULTILINE)
    document = call("runs", "export", "last", "--format", "json", check=0).json
    levels = [level["concurrency"] for level in document["levels"]]
    assert levels == [2**place for place in range(len(levels))]
    assert document["search"]["at"] == levels[-1]
    # Which it is depends on how busy we are.
    assert reason.startswith(f"The search stopped at C = {levels[-1]}: ")
    call("report", check=0)
    assert reason in (tmp_path / "report.html").read_text()
    assert " auto " in call("runs", check=0).out


def test_answers_may_be_1024_tokens_long_and_the_quick_mode_says_that_it_cut_them(engine, paths):
    """Coding answers that were cut at 128 tokens by default were no real load, and nothing said
    so.
    """
    once = ("-c", "1", "--tasks", "2", "--runs", "1", "--warm-up", "quick")
    assert "up to 1,024 out;" in bench("sweep", engine, *once).err
    done = bench("sweep", engine, *once, "--quick")
    assert "up to 128 out (quick);" in done.err
    assert "quick: 2 of 2 answers were cut at 128 tokens; real answers are longer" in done.err
    quick, whole = stored_runs(paths)
    assert [run.config["workload"]["max_tokens"] for run in (quick, whole)] == [128, 1024]
    fixed = bench("sweep", engine, *once, "--output-tokens", "4", "--fixed-output")
    assert "cut at" not in fixed.err


def test_auto_says_that_the_budget_ended():
    with FakeEngine(slots=64, token_ms=10) as engine:
        how = ("-c", "auto", "--budget", "1s", "--max-tokens", "8", "--warm-up", "quick")
        done = bench("sweep", engine, *how)
    assert re.search(
        r"The search stopped at C = \d+: the budget ended before two levels past the knee",
        done.err,
    )


def test_a_budget_that_the_warm_up_spent_leaves_each_agent_one_task(engine):
    """A first level had all of its tasks, however long they took."""
    done = bench("sweep", engine, "-c", "auto", "--budget", "1ms", *SHORT_ANSWERS, "--json")
    (level,) = done.json["levels"]
    assert (level["concurrency"], level["requests"]) == (1, 1)


def test_two_servers_are_compared_and_the_slower_one_ends_with_4():
    slow = {"slots": 2, "ttft_ms": 20}
    with FakeEngine(token_ms=3, **slow) as a, FakeEngine(token_ms=12, **slow) as b:
        load = ("-c", "1,2", "--tasks", "2", "--runs", "3", "--max-tokens", "16")
        done = call("bench", "ab", a.url, b.url, *load, check=4)
    assert re.search(r"A is run (\S+), B is run (\S+);", done.err)
    assert done.out.rstrip().splitlines()[-1].startswith("REGRESSION: B is worse than A")


@pytest.mark.parametrize(
    "shape",
    [
        "burst",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("conversation", "shared-prefix")
        ),
    ],
)
def test_every_shape_is_measured_at_every_level(engine, shape):
    how = (
        "--shape",
        shape,
        "--turns",
        "2",
        "--think",
        "10ms",
        "--prompt-tokens",
        "200",
        "--seed",
        "3",
    )
    done = bench("sweep", engine, "-c", "1,2", *how, *TWICE, "--json")
    levels = done.json["levels"]
    assert [level["concurrency"] for level in levels] == [1, 2]
    assert all(
        level["requests"] >= 2 * level["concurrency"] and not level["failed"] for level in levels
    )
    assert all(level["truncated"] == level["requests"] for level in levels)


def test_a_promise_is_kept_up_to_the_slots():
    """One slot and 80 ms a request: the second agent waits twice as long as promised."""
    with FakeEngine(slots=1, token_ms=10) as engine:
        load = (
            "-c",
            "1,2,4",
            "--runs",
            "1",
            "--slo",
            "ttft=40ms",
            "--max-tokens",
            "8",
            "--tasks",
            "4",
        )
        done = bench("sweep", engine, *load, "--warm-up", "quick")
    assert "ttft_p95=40ms is met up to C=1; not at C=2" in done.err


def test_the_speedup_of_a_swarm_is_told_by_wall_time_and_by_tokens(paths):
    with FakeEngine(slots=4, token_ms=5) as engine:
        common = ("--tasks", "4", "--agents", "1,4", "--prompt-tokens", "60", "--max-tokens", "16")
        done = bench("serial-vs-swarm", engine, *common, "--json")
    document = done.json
    assert document["speedups"]["by_tokens"]
    assert document["speedups"]["by_wall"] > 1.5
    assert document["speedups"]["truncated_serial"] == 4
    assert stored_runs(paths)[0].kind == "serial-vs-swarm"


def test_a_sample_of_the_serial_side_is_enough(tmp_path):
    """The tasks of the sample are the first of those that the swarm does."""
    with FakeEngine(slots=12, token_ms=5) as engine:
        common = (
            "--tasks",
            "12",
            "--agents",
            "1,12",
            "--sample",
            "3",
            "--prompt-tokens",
            "60",
            "--max-tokens",
            "16",
        )
        done = bench("serial-vs-swarm", engine, *common)
    assert re.search(
        r"one at a time .* to .*, scaled from 3 of 12 tasks\), 12 at once .*x by wall time \(",
        done.err,
    )
    assert re.search(
        r"^prompt \+ output: \S+ tok/s one at a time, \S+ tok/s with 12 at once$",
        done.err,
        re.MULTILINE,
    )
    document = call("runs", "export", "last", "--format", "json", check=0).json
    assert [level["requests"] for level in document["levels"]] == [3, 12]
    assert (document["speedups"]["sampled"], document["speedups"]["tasks"]) == (3, 12)
    between = document["speedups"]["by_wall_interval"]
    assert between["low"] <= document["speedups"]["by_wall"] <= between["high"]
    call("report", check=0)
    assert "Serial, scaled from 3 tasks" in (tmp_path / "report.html").read_text()


def test_an_open_load_has_a_row_for_each_rate(engine, paths, tmp_path):
    how = ("--rate", "20,40", "--arrivals", "constant", "--for", "500ms", "--max-tokens", "4")
    done = bench("open", engine, *how)
    assert re.search(r"^ +20 .*\n +40 ", done.out, re.MULTILINE)
    (run,) = stored_runs(paths)
    assert (run.kind, run.state, run.config["rates"]) == ("open", RunState.DONE, [20.0, 40.0])
    call("report", check=0)
    assert "40 requests/s" in (tmp_path / "report.html").read_text()


WRONG = [
    ("sweep --slo nonsense", "--slo `nonsense`"),
    ("sweep --precision 150%", "--precision `150%`"),
    ("sweep --url ftp://x", "`ftp://x` is not an http(s) URL"),
    ("sweep --concurrency 0,1", "--concurrency `0,1`"),
    ("sweep --concurrency 1,100000", "--concurrency 100000"),
    ("sweep --key-env NO_SUCH_VARIABLE", "NO_SUCH_VARIABLE"),
    ("sweep --timeout soon", "`soon` is not a duration"),
    ("sweep --tasks 1", "--tasks 1 cannot keep 8 agents busy"),
    ("serial-vs-swarm --agents 2,4", "--concurrency `2,4`"),
    ("serial-vs-swarm --tasks 50 --sample 60", "--sample 60 is more than --tasks 50"),
    ("open --rate 0", "--rate `0`"),
    ("open --arrivals uniform", "--arrivals `uniform`"),
    ("open --rate 2000 --for 1h", "2000 requests a second for 3600 s make 7,200,000"),
    ("export --format xyz", "--format `xyz`"),
    ("export --format csv -o no/where.csv", "`no/where.csv`"),
    ("compare one two", "no runs yet"),
]


@pytest.mark.parametrize(("line", "words"), WRONG, ids=[line for line, _ in WRONG])
def test_wrong_input_is_exit_code_2_and_names_the_value(line, words):
    message = refused("bench", *line.split())
    assert words in message
    assert not message.endswith("| None")


def test_a_server_that_is_not_there_or_has_another_model_is_named(engine):
    assert "127.0.0.1:9 cannot be reached" in refused(
        "bench", "sweep", "--url", "http://127.0.0.1:9", code=1
    )
    message = refused("bench", "sweep", "--url", engine.url, "--model", "fake-modell")
    assert "does not serve `fake-modell`" in message
    assert "did you mean `fake-model`?" in message
    assert engine.state()["requests"] == 0


def test_failed_requests_make_the_exit_code_1():
    with FakeEngine(
        slots=2, token_ms=20
    ) as engine:  # slow enough that the fault comes before the last request
        load = ("-c", "1", "--tasks", "100", "--runs", "1", "--max-tokens", "2")
        process = begin("sweep", "--url", engine.url, *load)
        engine.wait_for(requests=30, timeout_s=60)  # the warm-up is over
        engine.fault(kind="500", times=1)
        table, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert table.rstrip().endswith(" 1")


def test_a_killed_run_keeps_its_rows_and_is_shown_as_incomplete(engine, paths, tmp_path):
    process = begin("sweep", "--url", engine.url, "-c", "2", "--tasks", "5000", *SHORT_ANSWERS)
    engine.wait_for(requests=40, timeout_s=60)  # the store has been made long since
    eventually(lambda: stored_runs(paths)[0].requests > 20)
    process.kill()
    process.communicate(timeout=60)
    engine.wait_for(running=0, timeout_s=60)
    (run,) = stored_runs(paths)
    assert run.state is RunState.INCOMPLETE
    call("report", "last", check=0)
    assert "incomplete" in (tmp_path / "report.html").read_text().lower()


def test_closed_standard_files_are_no_crash(engine):
    """cron jobs and daemons start so."""
    words = (
        f"{sys.executable} -m skep bench sweep --url {engine.url} {' '.join(QUICK)} --json <&- "
        ">&- 2>&-"
    )
    assert subprocess.run(["bash", "-c", words], capture_output=True).returncode == 0


LONG = {
    "sweep": ["-c", "2", "--tasks", "900", "--max-tokens", "8"],
    "serial-vs-swarm": ["--tasks", "900", "--prompt-tokens", "60"],
    "open": ["--rate", "30", "--max-tokens", "8"],
}


@pytest.mark.parametrize(
    ("command", "number"), [*((name, signal.SIGINT) for name in LONG), ("sweep", signal.SIGTERM)]
)
def test_an_interrupted_run_is_kept_and_leaves_nothing_running(engine, paths, command, number):
    before = 40 if command == "sweep" else 25  # the warm-up and the measuring of lengths are over
    process = begin(command, *LONG[command], "--url", engine.url)
    engine.wait_for(requests=before, timeout_s=60)
    assert_interrupted(process, number)
    engine.wait_for(running=0)
    (run,) = stored_runs(paths)
    assert (run.kind, run.state, run.error) == (command, RunState.INTERRUPTED, None)
    assert run.requests > 0


@dataclass(frozen=True)
class InterruptedSweep:
    announcement: str
    code: int
    stored: StoredSweep
    levels: list


@pytest.fixture(scope="module")
def interrupted_sweep(tmp_path_factory):
    """A sweep that got Ctrl-C in its third level."""
    words = ("-c", "1,2,8", "--runs", "1", "--max-tokens", "8", "--warm-up", "quick")
    with (
        installation(tmp_path_factory.mktemp("interrupted")),
        FakeEngine(slots=2, token_ms=20) as engine,
    ):
        process = begin("sweep", "--url", engine.url, *words)
        line = next(line for line in process.stderr if line.startswith("C=8 run 1"))
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        export = call("runs", "export", "last", "--format", "json", check=0).json
        stored = stored_sweep(engine.url, output, errors)
        return InterruptedSweep(line, process.returncode, stored, export["levels"])


def test_a_level_says_beforehand_how_many_requests_it_has(interrupted_sweep):
    assert "24 requests" in interrupted_sweep.announcement


def test_ctrl_c_prints_the_levels_that_were_finished(interrupted_sweep):
    assert interrupted_sweep.code == 130
    lines = interrupted_sweep.stored.out.splitlines()
    assert [line.split()[0] for line in lines] == ["C", "1", "2"]


def test_ctrl_c_says_at_which_level_and_how_to_draw_the_finished_ones(interrupted_sweep):
    sentence = (
        "error: interrupted at C=8\nhint: the finished levels are kept: `skep runs report "
        f"{interrupted_sweep.stored.run['id']}` draws them\n"
    )
    assert interrupted_sweep.stored.errors.endswith(sentence)


def test_an_interrupted_sweep_is_listed_as_such_and_not_as_failed(interrupted_sweep):
    run = interrupted_sweep.stored.run
    assert (run["state"], run["error"]) == ("interrupted", None)
    assert " interrupted " in interrupted_sweep.stored.listing


def test_the_report_of_an_interrupted_sweep_says_so_and_speaks_of_no_failure(interrupted_sweep):
    stored = interrupted_sweep.stored
    assert f"{stored.run['id']} (interrupted) written" in stored.report_errors
    assert "This run is interrupted; the finished levels are kept. " in stored.page
    _, _, rest = stored.page.partition("This run is interrupted")
    assert "failed" not in rest.partition("</p>")[0]


def test_the_export_of_an_interrupted_sweep_has_the_finished_levels(interrupted_sweep):
    assert [level["concurrency"] for level in interrupted_sweep.levels] == [1, 2]


def test_an_unfinished_level_is_told_with_the_same_figure_everywhere(tmp_path):
    """The command said that no level was finished, while the dashboard showed 8.9 tok/s at C=1."""
    with FakeEngine(slots=2, token_ms=2) as engine:
        words = (
            "-c",
            "1",
            "--runs",
            "1",
            "--tasks",
            "400",
            "--max-tokens",
            "16",
            "--warm-up",
            "quick",
        )
        process = begin("sweep", "--url", engine.url, *words)
        next(line for line in process.stderr if line.startswith("C=1 run 1"))
        engine.wait_for(requests=engine.state()["requests"] + 10)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
    (level,) = call("runs", "export", "last", "--format", "json", check=0).json["levels"]
    sentence = (
        f"no level was finished: the figures are of the {level['requests']} requests that had "
        "ended"
    )
    assert errors.splitlines()[-2] == "error: interrupted at C=1"
    assert errors.splitlines()[-1].startswith(f"hint: {sentence}: `skep runs report ")
    assert output.splitlines()[1].split()[1] == number(level["effective_tok_s"])
    call("runs", "report", "last", check=0)
    assert sentence in (tmp_path / "report.html").read_text()


def test_a_run_that_ends_in_its_warm_up_says_that_nothing_was_measured(engine):
    """It said that what was measured is kept, and the list of runs had 0 requests."""
    engine.fault(kind="hang-first", times=1)
    process = begin("sweep", "--url", engine.url, *QUICK)
    # However long Python took to start.
    next(line for line in process.stderr if line.startswith("warming up"))
    engine.wait_for(running=1)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    engine.fault(kind="none")
    last_lines = [
        "error: interrupted while it warmed up",
        "hint: nothing was measured: it was still warming up",
    ]
    assert errors.splitlines()[-2:] == last_lines


def test_without_a_terminal_a_long_part_of_a_run_says_a_line_every_ten_seconds(capsys):
    now = [0.0]
    show = LevelLines(clock=lambda: now[0])
    for second in range(35):
        now[0] = float(second)
        show(SessionProgress(level=1, done=second // 9, total=6, in_flight=1, tok_s=8.9))
    assert capsys.readouterr().err.splitlines() == [
        "C=1 run 1: 6 requests",
        "C=1 run 1: 1 of 6 requests done, 1 in flight, 8.9 tok/s now",
        "C=1 run 1: 2 of 6 requests done, 1 in flight, 8.9 tok/s now",
        "C=1 run 1: 3 of 6 requests done, 1 in flight, 8.9 tok/s now",
    ]


def test_a_server_that_dies_is_told_by_kind(engine):
    options = ("-c", "2", "--tasks", "200", "--runs", "1", "--max-tokens", "8")
    process = begin("sweep", "--url", engine.url, *options)
    engine.wait_for(requests=60, timeout_s=60)
    engine.kill()
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 1
    assert "Traceback" not in errors
    assert re.search(r"error: \d+ of \d+ requests failed: .*x connect \(", errors)


def test_a_terminal_of_80_columns_sees_levels_and_the_moment(engine):
    """The view redraws itself: no line is wider than the terminal, and the table stands alone at
    the end.
    """
    # Each run outlasts several frames.
    words = (
        "--url",
        engine.url,
        "-c",
        "1,2",
        "--runs",
        "2",
        "--max-tokens",
        "120",
    )
    with contextlib.closing(
        Terminal(os.environ, "bench", "sweep", *words, columns=80, lines=24)
    ) as terminal:
        assert terminal.ended() == 0
    drawn, _, ending = terminal.raw.rpartition("\x1b[2K")
    frames = [
        re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", frame) for frame in re.split(r"\x1b\[2K", drawn)
    ]
    assert any("C=2 run 1" in frame and "in flight" in frame for frame in frames)
    assert all(len(line) <= 80 for frame in frames[1:] for line in frame.splitlines())
    assert "eff tok/s" in ending
    assert not re.search(r"\d in flight", ending)


def begin(*words):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-m", "skep", "bench", *words], **pipes)


def assert_interrupted(process, number):
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines()[-2].startswith("error: interrupted")
    assert errors.count("error:") == 1
    assert "Traceback" not in errors


def stored_runs(paths):
    with open_store(paths.store, read_only=True) as store:
        return store.runs(9)

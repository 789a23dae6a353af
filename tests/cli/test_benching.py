"""`skep bench` as a user runs it: every command once, its likely misuse, Ctrl-C, and what others read of it."""

import csv
import fcntl
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skep.bench.matrix import parse_matrix
from skep.cli.compare import plan_of
from skep.cli.main import app
from skep.errors import UserError
from skep.store.database import open_store
from skep.store.records import Request, RunState
from skep.testing.process import FakeEngine
from skep.workload.mix import parse_classes

ROOT = Path(__file__).parents[2]
TWICE = ("--runs", "2", "--max-tokens", "4")
MIX = """
[class.chat]
shape = "conversation"
agents = 1
priority = "interactive"
turns = 2
prompt_tokens = 60
max_tokens = 4
[class.hooks]
shape = "open"
rate = 20
arrivals = "constant"
prompt_tokens = 60
max_tokens = 4
"""
MOONCAKE = '{"timestamp": %d, "input_length": 600, "output_length": 5, "hash_ids": [1, %d]}'
BATCH = '{"custom_id": "%s", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [%s]}}'
QUESTION = '{"role": "user", "content": "why?"}'
TRACES = {
    "mooncake": [MOONCAKE % (0, 2), MOONCAKE % (200, 3)],
    "batch": [BATCH % ("a", QUESTION), BATCH % ("b", QUESTION)],
}


@pytest.fixture
def skep(env, tmp_path, forked):
    """As in the other suites, but for the end: nothing of `skep bench` stays behind that would have to be stopped."""
    return lambda *args, check=None: call(forked, env, tmp_path, *args, check=check)


@pytest.fixture
def engine():
    with FakeEngine(slots=2, token_ms=2, ttft_ms=5) as running:
        yield running


@pytest.fixture(scope="module")
def pair(tmp_path_factory, forked):
    """Two runs of an A/B measurement, made once: B is much slower. Gives the command, its outcome and the ids."""
    folder = tmp_path_factory.mktemp("pair")
    env = {**os.environ, "XDG_DATA_HOME": str(folder / "data"), "COLUMNS": "120", "NO_COLOR": "1"}

    def run(*args, check):
        return call(forked, env, folder, "bench", *args, check=check)

    slow = {"slots": 2, "ttft_ms": 20}
    with FakeEngine(token_ms=3, **slow) as a, FakeEngine(token_ms=12, **slow) as b:
        done = run("ab", a.url, b.url, "-c", "1,2", "--tasks", "2", "--runs", "3", "--max-tokens", "16", check=4)
    ids = re.search(r"A is run (\S+), B is run (\S+);", done.stderr).groups()
    return run, done, ids, folder


SHAPES = [
    "burst",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("conversation", "shared-prefix", "prefill")),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_measured_at_every_level(skep, engine, shape):
    how = ("--shape", shape, "--turns", "2", "--think", "10ms", "--prompt-tokens", "200", "--seed", "3")
    done = skep("bench", "sweep", "--url", engine.url, "-c", "1,2", *how, *TWICE, "--json", check=0)
    levels = json.loads(done.stdout)["levels"]
    assert [level["concurrency"] for level in levels] == [1, 2]
    assert all(level["requests"] >= 2 * level["concurrency"] and not level["failed"] for level in levels)
    assert all(level["truncated"] == level["requests"] for level in levels)


def test_a_search_for_saturation_tells_where_growth_ends(skep):
    """Where it is found depends on what else the machine does; the courses' own tests say where it must be."""
    with FakeEngine(slots=2, token_ms=5) as engine:
        limits = ("--to-saturation", "--max-concurrency", "8", "--max-tokens", "4")
        done = skep("bench", "sweep", "--url", engine.url, *limits, "--json", check=0)
    document = json.loads(done.stdout)
    assert "to saturation, C up to 8" in done.stderr
    assert set(document["turning"]) == {"knee", "knee_bracket", "cliff", "cliff_bracket", "drop_pct", "sure", "unclear"}
    assert document["turning"]["knee"] in (None, *range(1, 9))
    assert [level["concurrency"] for level in document["levels"]][:2] == [1, 2]


def test_a_promise_is_kept_up_to_the_slots(skep):
    """One slot and 80 ms a request: the second agent waits twice as long as promised."""
    with FakeEngine(slots=1, token_ms=10) as engine:
        limits = ("--slo", "ttft=40ms", "--max-concurrency", "4", "--max-tokens", "8", "--tasks", "4")
        done = skep("bench", "sweep", "--url", engine.url, *limits, check=0)
    assert "ttft_p95=40ms is kept up to C=1; not at C=2" in done.stderr


def test_the_speedup_of_a_swarm_is_told_in_four_forms(skep, tmp_path):
    with FakeEngine(slots=4, token_ms=5) as engine:
        common = ("--tasks", "4", "--agents", "1,4", "--prompt-tokens", "60", "--max-tokens", "16")
        done = skep("bench", "serial-vs-swarm", "--url", engine.url, *common, "--json", check=0)
    document = json.loads(done.stdout)
    assert {"by_wall", "by_tokens", "by_wall_whole", "by_tokens_whole"} <= set(document["speedups"])
    assert document["speedups"]["by_wall"] == document["speedup"] > 1.5
    assert document["speedups"]["truncated_serial"] == 4
    assert document["speedups"]["by_wall_whole"] is None  # no answer ended by itself: none is left to compare
    assert stored_runs(tmp_path)[0].kind == "serial-vs-swarm"


def test_an_open_load_has_a_row_for_each_rate(skep, engine, tmp_path):
    how = ("--rate", "20,40", "--arrivals", "constant", "--for", "500ms", "--max-tokens", "4")
    done = skep("bench", "open", "--url", engine.url, *how, check=0)
    assert re.search(r"^ +20 .*\n +40 ", done.stdout, re.MULTILINE)
    (run,) = stored_runs(tmp_path)
    assert (run.kind, run.state, run.config["rates"]) == ("open", RunState.DONE, [20.0, 40.0])
    skep("report", check=0)
    assert "40 requests/s" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_classes_of_traffic_are_reported_one_by_one(skep, engine, tmp_path):
    (tmp_path / "mix.toml").write_text(MIX)
    done = skep("bench", "classes", "mix.toml", "--url", engine.url, "--for", "1s", "--json", check=0)
    document = json.loads(done.stdout)
    assert [level["traffic"] for level in document["classes"]] == ["chat", "hooks"]
    assert sum(level["requests"] for level in document["classes"]) == document["levels"][0]["requests"]
    skep("report", check=0)
    assert "hooks" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("form", TRACES)
def test_a_trace_is_replayed_whole(skep, engine, tmp_path, form):
    (tmp_path / "trace.jsonl").write_text("\n".join(TRACES[form]))
    limits = ("--speed", "2", "--max-tokens", "5")
    done = skep("bench", "replay", "trace.jsonl", "--url", engine.url, *limits, "--json", check=0)
    (level,) = json.loads(done.stdout)["levels"]
    assert (level["requests"], level["failed"], level["output_tokens"]) == (2, 0, 10)


def test_a_comparison_beyond_the_threshold_ends_with_4(pair):
    run, done, (a, b), folder = pair
    assert done.stdout.rstrip().splitlines()[-1].startswith("REGRESSION: B is worse than A")
    document = json.loads(run("compare", a, b, "-o", "both.html", "--json", check=4).stdout)
    told = {"a", "b", "threshold", "comparisons", "regressions", "verdict", "verdict_in_words"}
    assert set(document) == told
    assert document["regressions"] >= 1
    assert {one["concurrency"] for one in document["comparisons"]} == {1, 2}
    slower = [one for one in document["comparisons"] if one["metric"] == "TPOT p50" and one["judgement"] == "worse"]
    assert slower
    assert all(1.05 < one["ratio"]["low"] < one["ratio"]["estimate"] < one["ratio"]["high"] for one in slower)
    assert "<svg" in (folder / "both.html").read_text()


def test_a_comparison_within_the_threshold_ends_with_0(pair):
    """The other way round all is better or the same."""
    run, _, (a, b), _ = pair
    turned = json.loads(run("compare", b, a, "--threshold", "60%", "--json", check=0).stdout)
    assert turned["regressions"] == 0
    assert "better" in {one["judgement"] for one in turned["comparisons"]}
    same = json.loads(run("compare", a, a, "--json", check=0).stdout)
    assert {one["judgement"] for one in same["comparisons"]} == {"not distinguishable"}


@pytest.mark.slow
def test_an_export_says_the_same_in_every_format(pair):
    run, _, (a, _), folder = pair
    document = json.loads(run("export", a, "--format", "json", check=0).stdout)
    rows = list(csv.DictReader(run("export", a, "--format", "csv", check=0).stdout.splitlines()))
    table = run("export", a, check=0).stdout
    for level, row in zip(document["levels"], rows, strict=True):
        assert float(row["effective_tok_s"]) == pytest.approx(level["effective_tok_s"], rel=1e-3)
        assert f"| {level['concurrency']} | {level['effective_tok_s']:.3g} " in table
    run("export", a, "--requests", "--format", "csv", "-o", "rows.csv", check=0)
    kept = list(csv.DictReader((folder / "rows.csv").read_text().splitlines()))
    assert len([row for row in kept if int(row["level"])]) == sum(level["requests"] for level in document["levels"])


def test_a_reader_that_leaves_early_is_no_crash(pair):
    _, _, (a, _), folder = pair
    words = f"{sys.executable} -m skep bench export {a} --requests --format json | head -1"
    env = {**os.environ, "XDG_DATA_HOME": str(folder / "data")}
    done = subprocess.run(["bash", "-c", words], env=env, capture_output=True, text=True)
    assert done.stdout == "[\n"
    assert done.stderr == ""


def test_a_matrix_keeps_the_row_of_a_configuration_that_failed(skep, engine, tmp_path):
    port = free_port()
    (tmp_path / "rigs.toml").write_text(f"""
concurrency = [1, 2]
tasks = 2
runs = 2
max_tokens = 4
[[config]]
name = "there"
url = "{engine.url}"
[[config]]
name = "started"
url = "http://127.0.0.1:{port}"
start = "{sys.executable} -m skep.testing.fake_engine --port {port}"
[[config]]
name = "broken"
url = "http://127.0.0.1:9"
start = "{sys.executable} -c 'raise SystemExit(3)'"
""")
    done = skep("bench", "matrix", "rigs.toml", "-o", "rigs.md", "--json")
    there, started, broken = json.loads(done.stdout)
    assert [level["concurrency"] for level in there["summary"]["levels"]] == [1, 2]
    assert there["boot_s"] is None
    assert started["boot_s"] > 0
    assert broken["summary"] is None
    assert "exit code 3" in broken["diagnosis"]
    assert re.search(r"^\| broken \| .*exit code 3", (tmp_path / "rigs.md").read_text(), re.MULTILINE)
    assert not is_open(port)


def test_results_of_another_tool_in_an_old_store_are_listed_without_figures(skep, tmp_path):
    """An older version stored them. They are not taken for something that skep measured."""
    with open_store(tmp_path / "data" / "skep" / "skep.sqlite3") as store:
        run = store.begin_run(
            kind="imported", created_at=1.0, model="m", url="file:a.json", fingerprint="f", config={}, host={},
            engine={}, simulated=False, skep_version="0",
        )  # fmt: skip
        store.append_requests(run, [Request(4, 0, 0, "imported", 0.0, 1.0, first_token_s=0.5, output_tokens=9)])
        store.end_run(run, 2.0, "done")
    assert run in skep("runs", check=0).stdout
    assert f"run `{run}` has no measured requests" in skep("report", run, check=2).stderr


WRONG = [
    ("sweep --slo nonsense", "--slo `nonsense`"),
    ("sweep --slo ttft=1s --to-saturation", "two different searches"),
    ("sweep --precision 150%", "--precision `150%`"),
    ("serial-vs-swarm --agents 2,4", "--agents `2,4`"),
    ("open --rate 0", "--rate `0`"),
    ("classes unknown.toml", "`speeed` is not known"),
    ("replay binary", "`binary` is not text"),
    ("replay empty", "holds no requests"),
    ("matrix broken.toml", "`broken.toml` is not TOML"),
    ("replay folder", "`folder` cannot be read"),
    ("export --format xyz", "--format `xyz`"),
    ("export --format csv -o no/where.csv", "`no/where.csv`"),
    ("compare one two", "no runs yet"),
]


def test_wrong_input_is_exit_code_2_and_names_the_value(env, tmp_path, monkeypatch):
    (tmp_path / "broken.toml").write_text("a = [")
    (tmp_path / "unknown.toml").write_text('[class.a]\nshape = "steady"\nagents = 1\nspeeed = 1\n')
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    for line, words in WRONG:
        done = CliRunner().invoke(app, ["bench", *line.split()], env=env)
        assert isinstance(done.exception, UserError), (line, done.output)
        assert (done.exception.exit_code, done.stdout) == (2, ""), line
        assert words in f"error: {done.exception.message}\nhint: {done.exception.hint}", (line, done.exception)
        assert done.exception.hint, line


def test_runs_that_cannot_be_compared_are_named(pair):
    run, _, (a, _), _ = pair
    assert "there is no run `zzz`" in run("compare", a, "zzz", check=2).stderr
    assert "could be" in run("compare", a[:9], a, check=2).stderr


LONG = {
    "sweep": ["-c", "2", "--tasks", "900", "--max-tokens", "8"],
    "serial-vs-swarm": ["--tasks", "900", "--prompt-tokens", "60"],
    "open": ["--rate", "30", "--max-tokens", "8"],
    "classes": ["mix.toml"],
}


INTERRUPTED = [(name, signal.SIGINT) for name in LONG] + [("sweep", signal.SIGTERM)]


@pytest.mark.parametrize(("command", "number"), INTERRUPTED)
def test_an_interrupted_run_is_kept_and_leaves_nothing_running(env, engine, tmp_path, command, number):
    (tmp_path / "mix.toml").write_text(MIX)
    before = 40 if command == "sweep" else 25  # the warm-up and the measuring of lengths are over
    process = begin(env, tmp_path, "bench", command, *LONG[command], "--url", engine.url)
    engine.wait_for(requests=before, timeout_s=60)
    assert_interrupted(process, number)
    engine.wait_for(running=0)
    (run,) = stored_runs(tmp_path)
    assert (run.kind, run.state, run.error) == (command, RunState.FAILED, "interrupted")
    assert run.requests > 0


def test_ctrl_c_in_the_warm_up_is_as_quiet(env, tmp_path):
    with FakeEngine(slots=2, token_ms=200) as engine:
        process = begin(env, tmp_path, "bench", "sweep", "--url", engine.url)
        engine.wait_for(requests=1, timeout_s=60)
        assert_interrupted(process, signal.SIGINT)
        engine.wait_for(running=0)


def test_ctrl_c_ends_the_server_that_a_matrix_has_started(env, tmp_path):
    port = free_port()
    (tmp_path / "rigs.toml").write_text(
        f'runs = 99\nmax_tokens = 50\n[[config]]\nname = "m"\nurl = "http://127.0.0.1:{port}"\n'
        f'start = "{sys.executable} -m skep.testing.fake_engine --port {port} --token-ms 5"\n'
    )
    process = begin(env, tmp_path, "bench", "matrix", "rigs.toml")
    for line in process.stderr:
        if line.startswith("warming up"):
            break
    assert is_open(port)
    assert_interrupted(process, signal.SIGINT)
    assert not is_open(port)


def test_a_server_that_dies_is_told_by_kind(env, tmp_path, engine):
    options = ("-c", "2", "--tasks", "200", "--runs", "1", "--max-tokens", "8")
    process = begin(env, tmp_path, "bench", "sweep", "--url", engine.url, *options)
    engine.wait_for(requests=60, timeout_s=60)
    engine.kill()
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 1
    assert "Traceback" not in errors
    assert re.search(r"error: \d+ of \d+ requests failed: .*x connect \(", errors)


def test_a_terminal_of_80_columns_sees_levels_and_the_moment(env, engine, tmp_path):
    """The view redraws itself: no line is wider than the terminal, and the table stands alone at the end."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        words = [sys.executable, "-m", "skep", "bench", "sweep", "--url", engine.url, "-c", "1,2"]
        kept = {key: value for key, value in env.items() if key != "COLUMNS"}
        os.execve(sys.executable, [*words, "--runs", "2", "--max-tokens", "30"], {**kept, "TERM": "xterm"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    seen = read_all(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    drawn, _, ending = seen.rpartition("\x1b[2K")
    frames = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", frame) for frame in re.split(r"\x1b\[2K", drawn)]
    assert any("C=2 run 1" in frame and "in flight" in frame for frame in frames)
    assert all(len(line) <= 80 for frame in frames[1:] for line in frame.splitlines())
    assert "eff tok/s" in ending
    assert "in flight" not in ending


def test_the_examples_of_the_page_are_valid():
    page = (ROOT / "docs" / "bench.md").read_text()
    matrix, mix = (tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL))
    assert len(parse_matrix(matrix)) > 2
    assert plan_of(matrix).concurrency == (1, 2, 4)
    assert {one.shape for one in parse_classes(mix["class"])} == {"conversation", "open", "steady"}


def call(forked, env, folder, *args, check):
    done = forked.run([*map(str, args)], env=env, cwd=folder, timeout=120)
    assert "Traceback" not in done.stderr, done.stderr
    assert check in (None, done.returncode), (done.returncode, done.stdout, done.stderr)
    return done


def begin(env, folder, *args):
    argv = [sys.executable, "-m", "skep", *args]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(argv, env=env, cwd=folder, **pipes)


def assert_interrupted(process, number):
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines()[-2] == "error: interrupted"
    assert errors.count("error:") == 1
    assert "Traceback" not in errors
    assert output == ""


def stored_runs(folder):
    with open_store(folder / "data" / "skep" / "skep.sqlite3", read_only=True) as store:
        return store.runs(9)


def read_all(descriptor):
    parts = []
    try:
        while part := os.read(descriptor, 65536):
            parts.append(part)
    except OSError:  # the other side of a terminal has ended
        pass
    os.close(descriptor)
    return b"".join(parts).decode()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0

"""`skep demo` on a small scale, and what it says on a machine that is too busy to measure."""

import json
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hive_client import eventually

from commands import environment, running_skep
from forked_processes import alive
from skep.bench import demo as measuring
from skep.bench.summary import summarise
from skep.cli import demo_page
from skep.host.processes import descendants
from skep.store.records import ClientSample, Request

FIGURE = re.compile(r"\d (tok/s|turns/min|s|ms|min)\b|\d×")


@dataclass(frozen=True)
class Demo:
    real: str
    simulated: list
    errors: str
    page: str
    report_path: Path
    runs: list
    levels_of_a_sweep: list
    leftover_folders: set


def demo_folders():
    return {*Path(tempfile.gettempdir()).glob("skep-demo-*")}


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """One small demo, and what it has stored."""
    small = {"DEMO_LEVELS": {4: 8, 8: 16}, "DEMO_TOKENS": 128, "DEMO_TASKS": 6}
    folder = tmp_path_factory.mktemp("demo")
    folders_before = demo_folders()
    with (
        running_skep(environment(folder), folder) as skep,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in small.items():
            patch.setattr(measuring, name, value)
            patch.setattr(demo_page, name, value)
        done = skep("demo", check=0)
        runs = json.loads(skep("runs", "--json", check=0).stdout)
        export = skep("runs", "export", runs[1]["id"], "--format", "json", check=0)
    real, simulated = done.stdout.split("(real)\n")
    report_path = folder / "report.html"
    return Demo(
        real,
        simulated.splitlines(),
        done.stderr,
        report_path.read_text(),
        report_path,
        runs,
        json.loads(export.stdout)["levels"],
        demo_folders() - folders_before,
    )


def test_a_demo_shows_a_question_to_a_real_model_and_when_its_first_token_came(demo):
    assert "question: What is a GPU?" in demo.real
    assert "first token after" in demo.real


def test_a_demo_has_a_line_for_each_gateway_at_each_level(demo):
    gateways = [line.split("agents")[-1].split()[0] for line in demo.simulated[:6]]
    assert gateways == ["nginx", "no", "skep"] * 2


def test_a_demo_plays_sessions_of_agents_until_they_read_their_prompts_again(demo):
    lines = [line for line in demo.simulated if "turns/min" in line]
    assert [int(line.split()[1]) for line in lines] == [1, 2, 4, 8]
    assert all("turns/min" in line and "with KV in RAM" in line for line in lines)


def test_a_demo_ends_with_the_path_of_its_report(demo):
    assert demo.simulated[-1] == str(demo.report_path)


def test_every_line_with_a_simulated_figure_says_so(demo):
    lines = [*demo.simulated[:-1], *demo.errors.splitlines()]
    unmarked = [line for line in lines if FIGURE.search(line) and "SIMULATED" not in line]
    assert [line.split()[0] for line in unmarked] == ["published", "published", "done"]


def test_the_report_of_a_demo_is_drawn_and_says_that_it_is_simulated(demo):
    assert "SIMULATED 2x RTX 3090, no gateway" in demo.page
    assert "<svg" in demo.page


def test_the_runs_of_a_demo_are_stored_as_simulated(demo):
    assert [(run["kind"], run["simulated"], run["failed"]) for run in demo.runs] == [
        ("serial-vs-swarm", True, 0),
        ("sweep", True, 0),
        ("sweep", True, 0),
    ]


def test_speeds_of_a_demo_are_in_the_time_of_the_rig(demo):
    """They are not in that of this machine."""
    assert all(50 < level["effective_tok_s"] < 230 for level in demo.levels_of_a_sweep)


def test_a_demo_leaves_no_folder_behind(demo):
    assert demo.leftover_folders == set()


def summary_of(*levels, limited=False, failed=False):
    rows = [
        Request(
            level,
            0,
            n,
            "demo",
            0.0,
            10.0,
            1.0,
            1.0,
            9.0,
            8,
            100,
            200,
            "timeout" if failed else None,
        )
        for level in levels
        for n in range(level)
    ]
    samples = [ClientSample(level, 0, 120.0, 200.0, 0.1, limited) for level in levels]
    return summarise("r", rows, samples, simulated=True)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (
            {"limited": True},
            "this machine was too busy: the client was the limit (event loop lag 120 ms)",
        ),
        ({"failed": True}, "requests failed"),
    ],
)
def test_a_figure_that_would_mislead_is_left_out_with_the_reason(how, why):
    summary = summary_of(1, 4, **how)
    for line in (
        demo_page._level_line("skep", summary.levels[-1]),
        demo_page._swarm_line(summary),
    ):
        assert line.startswith("SIMULATED")
        assert "left out" in line
        assert why in line
        assert "tok/s" not in line


def test_ctrl_c_leaves_nothing_running(env, tmp_path):
    argv = [sys.executable, "-m", "skep", "demo"]
    process = subprocess.Popen(
        argv, env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert "question" in process.stdout.readline()
    pids = descendants(process.pid)
    assert len(pids) == 8  # supervisor, gateway, three guards, three engines
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "error: interrupted" in errors
    eventually(lambda: not any(alive(pid) for pid in pids))

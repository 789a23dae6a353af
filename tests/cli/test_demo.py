"""`skep demo` on a small scale, and what it says on a machine that is too busy to measure."""

import json
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hive_client import eventually

from forked_processes import alive
from skep.bench import demo as measuring
from skep.bench.summary import summarise
from skep.cli import demo_page
from skep.host.processes import descendants
from skep.store.records import ClientSample, Request

FIGURE = re.compile(r"\d (tok/s|s|ms|min)\b|\d×")


def test_every_line_with_a_simulated_figure_says_so_and_nothing_is_left(
    skep, monkeypatch, tmp_path
):
    small = {"DEMO_LEVELS": {4: 8, 8: 16}, "DEMO_TOKENS": 128, "DEMO_TASKS": 6}
    for name, value in small.items():
        monkeypatch.setattr(measuring, name, value)
        monkeypatch.setattr(demo_page, name, value)
    before = {*Path(tempfile.gettempdir()).glob("skep-demo-*")}
    done = skep("demo", check=0)
    real, simulated = done.stdout.split("(real)\n")
    assert "question: What is a GPU?" in real
    assert "first token after" in real
    *figures, path = simulated.splitlines()
    assert path == str(tmp_path / "report.html")
    assert [line.split("agents")[-1].split()[0] for line in figures[:6]] == [
        "nginx",
        "no",
        "skep",
    ] * 2
    lines = [line for line in (*figures, *done.stderr.splitlines()) if FIGURE.search(line)]
    unmarked = [line for line in lines if "SIMULATED" not in line]
    assert [line.split()[0] for line in unmarked] == ["published", "published", "done"]
    page = (tmp_path / "report.html").read_text()
    assert "SIMULATED 2x RTX 3090, no gateway" in page
    assert "<svg" in page
    runs = json.loads(skep("runs", "--json", check=0).stdout)
    assert [(run["kind"], run["simulated"], run["failed"]) for run in runs] == [
        ("serial-vs-swarm", True, 0),
        ("sweep", True, 0),
        ("sweep", True, 0),
    ]
    levels = json.loads(skep("runs", "export", runs[1]["id"], "--format", "json").stdout)["levels"]
    # In the rig's time, not in ours.
    assert all(50 < level["effective_tok_s"] < 230 for level in levels)
    assert {*Path(tempfile.gettempdir()).glob("skep-demo-*")} <= before


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

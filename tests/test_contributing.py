"""The six diffs that CONTRIBUTING.md links to apply to the tree, and the product shows what each
adds.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from skep.testing.process import FakeEngine

ROOT = Path(__file__).parent.parent
DIFFS = sorted((ROOT / "tests" / "contributing").glob("*.diff"))
LOG_LINE = "RuntimeError: Failed to find C compiler. Please specify via CC environment variable."


@pytest.fixture
def with_diff(tmp_path):
    """Return a function that applies a diff to a copy of the sources and returns a runner of that
    copy's `skep`.
    """

    def change(name):
        # With what is compiled: only what changes is anew.
        shutil.copytree(ROOT / "src", tmp_path / "src")
        apply = ["git", "apply", "--unidiff-zero", ROOT / "tests" / "contributing" / name]
        alone = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
        subprocess.run(apply, cwd=tmp_path, env=alone, check=True, timeout=30)
        home = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "COLUMNS": "200"}
        variables = {"PYTHONPATH": str(tmp_path / "src"), "PYTHONDONTWRITEBYTECODE": "1"}

        def skep(*words, code=0):
            command = [sys.executable, "-m", "skep", *map(str, words)]
            done = subprocess.run(
                command,
                cwd=tmp_path,
                env=home | variables,
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert done.returncode == code, done.stderr
            return done.stdout + done.stderr

        return skep

    return change


def program(path, script):
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_contributing_links_to_every_diff_and_each_is_short():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    assert [path.stem for path in DIFFS] == [
        "command",
        "endpoint",
        "engine",
        "gpu",
        "metric",
        "rule",
    ]
    for path in DIFFS:
        assert f"(tests/contributing/{path.name})" in page
        assert len(path.read_text().splitlines()) < 50, path.name


@pytest.mark.needs("git")
def test_a_new_gpu_is_in_the_catalogue_and_can_be_planned_for(with_diff):
    skep = with_diff("gpu.diff")
    assert "432  B" in skep("catalog", "gpus", "rtx-pro-4000-sff")
    assert "qwen3-8b on rtx-pro-4000-sff for 4 agents" in skep(
        "plan", "qwen3-8b", "--gpu", "rtx-pro-4000-sff"
    )


@pytest.mark.needs("git")
def test_a_new_engine_is_listed_and_started_with_its_own_flags(with_diff, tmp_path):
    skep = with_diff("engine.diff")
    assert "tensorrt_llm" in skep("engine", "list")
    trtllm = program(tmp_path / "trtllm-serve", "exit 0")
    words = (
        "--engine",
        "trtllm",
        "--binary",
        trtllm,
        "--slots",
        4,
        "--context",
        8192,
        "--dry-run",
    )
    model = "Qwen/Qwen3-8B"
    served = f"serve {model} --served_model_name {model} --host 127.0.0.1 --port PORT"
    limits = "--max_batch_size 4 --max_seq_len 8192 --tp_size 1"
    assert f"{trtllm} {served} {limits}" in skep("up", model, *words)


@pytest.mark.needs("git")
def test_a_new_engine_is_planned_beside_the_others(with_diff):
    skep = with_diff("engine.diff")
    plan = skep("plan", "qwen3-8b", "--gpu", "h200", "--engine", "vllm,trtllm", "--quant", "bf16")
    layouts = [line.split() for line in plan.splitlines() if line.startswith("TP=1")]
    assert {layout[1] for layout in layouts} == {"vllm", "trtllm"}


@pytest.mark.needs("git")
def test_a_new_engine_is_tuned_on_a_simulated_rig(with_diff):
    skep = with_diff("engine.diff")
    on_rig = ("--simulate", "--gpu", "h200", "--engine", "trtllm", "--budget", "10m")
    tuning = skep("tune", "qwen3-8b", *on_rig)
    assert "SIMULATED: qwen3-8b (trtllm) on h200" in tuning
    assert "step 0 baseline" in tuning


@pytest.mark.needs("git")
def test_a_new_rule_explains_an_engine_that_dies(with_diff, tmp_path):
    skep = with_diff("rule.diff")
    vllm = program(tmp_path / "vllm", f'echo "{LOG_LINE}" >&2; exit 1')
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "config.json").write_text("{}")
    serve = (
        f'model = "m"\nengine = "vllm"\ncheckpoint = "{tmp_path}/weights"\nbinary = '
        f'"{vllm}"\nslots = 2\n'
    )
    (tmp_path / "skep.toml").write_text(f"[gateway]\nport = 0\n\n[[serve]]\n{serve}")
    output = skep("up", code=1)
    assert (
        f"kernels cannot be compiled: no C compiler is here ({LOG_LINE}); `sudo apt install "
        "build-essential"
    ) in output


@pytest.mark.needs("git")
def test_a_new_command_is_in_the_help_and_runs(with_diff, tmp_path):
    skep = with_diff("command.diff")
    assert "  paths " in skep("help", "--all")
    assert f"data     {tmp_path}/.local/share/skep" in skep("paths")


@pytest.mark.needs("git")
def test_a_new_figure_of_a_sweep_is_in_its_table_and_its_json(with_diff):
    skep = with_diff("metric.diff")
    sweep = (
        "bench",
        "sweep",
        "-c",
        2,
        "--tasks",
        6,
        "--runs",
        1,
        "--output-tokens",
        12,
        "--quick",
    )
    with FakeEngine(slots=2, token_ms=1) as engine:
        assert "longest answer" in skep(*sweep, "--url", engine.url)
        assert '"longest_answer": 12' in skep(*sweep, "--url", engine.url, "--json")


@pytest.mark.needs("git")
def test_a_new_endpoint_of_the_gateway_answers(with_diff, tmp_path):
    skep = with_diff("endpoint.diff")
    with FakeEngine(slots=3) as engine:
        upstream = f'[[upstream]]\nurl = "{engine.url}"\nslots = 3\nmodel = "m"\n'
        (tmp_path / "skep.toml").write_text(f"[gateway]\nport = 0\n\n{upstream}")
        url = re.search(r"http://127\.0\.0\.1:\d+", skep("up", "-d"))[0]
        try:
            with urllib.request.urlopen(f"{url}/v1/slots") as answer:
                assert json.load(answer) == {"free": 3}
        finally:
            skep("down")

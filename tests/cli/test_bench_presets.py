"""`skep bench presets`: several presets started, measured and stopped in turn."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_programs import vllm_program
from in_process import call, refused

from skep.config.presets import presets_folder

QUICK = ("-c", "1,2", "--runs", "1", "--tasks", "2", "--output-tokens", "8", "--warm-up", "quick")
MINE = """title = "{name}"
engine = "vllm"
model = "qwen3-8b"
checkpoint = "{checkpoint}"
hardware = "2x rtx-3090"
source = "me"
slots = 2
served_as = "{name}"

[[published]]
tok_s = 100.0
metric = "output"
concurrency = 2
"""
BUS_ERROR = """
import signal
if value("--served-model-name") == "breaks":
    print("Fatal Python error: Bus error", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGBUS)
"""


@pytest.fixture
def own(paths, tmp_path):
    """Three presets of one's own, whose weights are a folder that is there."""
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "config.json").write_text(
        '{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}'
    )
    folder = presets_folder(paths)
    folder.mkdir(parents=True)
    for name in ("runs", "breaks", "runs-too"):
        (folder / f"{name}.toml").write_text(MINE.format(name=name, checkpoint=weights))


@pytest.fixture
def two_cards(two_3090s, presets, programs):
    program = programs / "vllm"
    program.write_text(vllm_program(BUS_ERROR))
    program.chmod(0o755)


@pytest.mark.usefixtures("two_cards")
def test_one_that_breaks_is_a_row_with_its_diagnosis_and_the_others_go_on(paths, tmp_path):
    done = call("bench", "presets", "runs", "breaks", "runs-too", *QUICK, "--json", check=0)
    first, broken, last = done.json["presets"]
    assert [row["preset"] for row in (first, broken, last)] == ["runs", "breaks", "runs-too"]
    assert [level["concurrency"] for level in first["levels"]] == [1, 2]
    assert [level["published_tok_s"] for level in first["levels"]] == [None, 100.0]
    assert [level["same_lengths"] for level in first["levels"]] == [None, False]
    assert last["failure"] is None
    assert broken["levels"] == []
    assert broken["failure"]["kind"] == "no-start"
    assert "SIGBUS" in broken["failure"]["cause"]
    assert not done.json["simulated"]
    runs = call("runs", "--json", check=0).json
    assert {run["id"] for run in runs} == {first["run"], last["run"]}
    assert {run["config"]["preset"] for run in runs} == {"runs", "runs-too"}
    page = (tmp_path / "report.html").read_text()
    assert "<svg " in page
    assert "breaks did not start" in page
    assert list((paths.state / "preset-sweeps").rglob("breaks-0.log"))


@pytest.mark.usefixtures("two_cards")
def test_where_nothing_could_be_measured_the_row_is_printed_and_the_command_fails(tmp_path):
    done = call("bench", "presets", "breaks", *QUICK, check=1)
    assert done.error.message == "no preset was measured"
    assert "BROKEN: did not start" in done.out
    assert "SIGBUS" in done.err
    assert not (tmp_path / "report.html").exists()


@pytest.mark.usefixtures("paths")
def test_on_named_cards_all_presets_are_simulated_without_their_authors_figures(tmp_path):
    names = ("qwen3-coder-30b-a3b-3090", "qwen2.5-coder-32b-2x3090-pcie")
    done = call(
        "bench", "presets", *names, *QUICK, "--simulate", "--gpu", "2x rtx-4090", "--json", check=0
    )
    for row in done.json["presets"]:
        assert (row["rig"], row["failure"]) == ("2x rtx-4090", None)
        assert [level["published_tok_s"] for level in row["levels"]] == [None, None]
    table = call(
        "bench",
        "presets",
        *names[:1],
        *QUICK,
        "--simulate",
        "--gpu",
        "2x rtx-4090",
        "-o",
        "b.html",
        check=0,
    )
    assert "SIMULATED: no model ran, these figures are a prediction for 2x rtx-4090" in table.err
    assert "[167*]" not in table.out
    assert "on 2x rtx-4090" in (tmp_path / "b.html").read_text()
    assert "--gpu needs --simulate" in refused("bench", "presets", *names, "--gpu", "2x rtx-4090")


@pytest.mark.usefixtures("paths")
def test_simulated_presets_say_so_and_a_broken_one_is_not_played(tmp_path):
    names = ("qwen3-coder-30b-a3b-3090", "qwen2.5-coder-32b-2x3090-pcie")
    done = call("bench", "presets", *names, *QUICK, "--simulate", check=0)
    header, measured, broken = done.out.splitlines()
    assert header.split() == ["PRESET", "C=1", "C=2", "CONTENTION", "RESULT"]
    assert "[167*]" in measured  # its author gives no lengths
    assert "[215*]" in measured
    assert "BROKEN: did not start" in broken
    assert "published, not simulated: SIGBUS while weights are loaded" in done.err
    assert "SIMULATED: no model ran, these figures are a prediction" in done.err
    (run,) = call("runs", "--json", check=0).json
    assert run["simulated"]
    page = (tmp_path / "report.html").read_text()
    assert "qwen2.5-coder-32b-2x3090-pcie did not start" in page
    assert "1 run<" in page


@pytest.mark.usefixtures("own", "programs")
def test_a_preset_that_lacks_its_cards_is_a_row_too():
    done = call("bench", "presets", "runs", *QUICK, "--json", check=1)
    (row,) = json.loads(done.out)["presets"]
    assert row["failure"]["kind"] == "refused"
    assert "this machine has no GPU" in row["failure"]["cause"]


@pytest.mark.usefixtures("paths")
def test_levels_that_the_sweep_finds_itself_are_columns_too():
    words = ("-c", "auto", *QUICK[2:], "--budget", "4s", "--simulate")
    done = call("bench", "presets", "qwen3-coder-30b-a3b-3090", *words, check=0)
    assert "1 preset, C=auto, " in done.err
    assert "C=2" in done.out.splitlines()[0].split()


@pytest.mark.usefixtures("paths")
def test_a_wrong_name_is_told_before_anything_starts():
    assert "no preset is called `no-such`" in refused(
        "bench", "presets", "qwen3-coder-30b-a3b-3090", "no-such"
    )
    assert "no preset is named" in refused("bench", "presets", "--simulate")


@pytest.mark.usefixtures("paths")
def test_ctrl_c_in_the_second_level_keeps_the_first_one_of_that_preset(tmp_path):
    names = ("qwen3-coder-30b-a3b-3090", "qwen2.5-coder-32b-3090")
    words = [sys.executable, "-m", "skep", "bench", "presets", *names, "--simulate", "--json"]
    words += [
        "-c",
        "1,2",
        "--runs",
        "1",
        "--tasks",
        "2",
        "--output-tokens",
        "256",
        "--warm-up",
        "quick",
    ]
    child = subprocess.Popen(
        words, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for line in child.stderr:
        if "requests" in line and line.startswith("C=2 run 1"):
            break
    child.send_signal(signal.SIGINT)
    out, errors = child.communicate(timeout=60)
    assert child.returncode == 130
    (row,) = json.loads(out)["presets"]
    assert (row["preset"], row["interrupted"]) == (names[0], True)
    assert [level["concurrency"] for level in row["levels"]] == [1]
    assert "stopped, 2 of 2 presets are not measured to the end" in errors
    assert (tmp_path / "report.html").exists()


@pytest.mark.usefixtures("paths")
def test_ctrl_c_ends_the_engine_and_keeps_what_was_measured(paths, tmp_path):
    names = ("qwen3-coder-30b-a3b-3090", "qwen2.5-coder-32b-3090")
    long = (
        "-c",
        "1",
        "--runs",
        "1",
        "--tasks",
        "500",
        "--output-tokens",
        "512",
        "--warm-up",
        "quick",
        "--simulate",
    )
    words = [sys.executable, "-m", "skep", "bench", "presets", *names, *long]
    child = subprocess.Popen(
        words, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for line in child.stderr:
        if "requests" in line and line.startswith("C=1 run 1"):
            break
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "stopped, 2 of 2 presets are not measured" in errors
    marked = (path for path in Path("/proc").glob("[0-9]*/environ") if _has(path, str(tmp_path)))
    assert [path.parent.name for path in marked if path.parent.name != str(os.getpid())] == []
    assert not (paths.state / "preset-sweeps").exists()


def _has(path, text):
    try:
        return text.encode() in path.read_bytes()
    except OSError:
        return False

"""`skep bench presets`: several presets started, measured and stopped in turn."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from fake_programs import vllm_program
from in_process import Called, call, refused
from installation import installation, installation_with_programs, write_program

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


@dataclass(frozen=True)
class PresetSweep:
    done: Called
    runs: list
    page: str
    logs: list


def sweep_presets(paths, *words):
    """Sweep the presets in this installation, and read what that has written."""
    done = call("bench", "presets", *words, *QUICK, check=0)
    return PresetSweep(
        done,
        call("runs", "--json", check=0).json,
        Path("report.html").read_text(),
        sorted(path.name for path in (paths.state / "preset-sweeps").rglob("*.log")),
    )


def write_presets(paths, folder):
    """Write three presets of a user, whose weights are a folder that is there."""
    weights = folder / "weights"
    weights.mkdir()
    (weights / "config.json").write_text(
        '{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}'
    )
    presets = presets_folder(paths)
    presets.mkdir(parents=True)
    for name in ("runs", "breaks", "runs-too"):
        (presets / f"{name}.toml").write_text(MINE.format(name=name, checkpoint=weights))


@pytest.fixture
def users_presets(paths, tmp_path):
    write_presets(paths, tmp_path)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Three presets of which the second one breaks."""
    folder = tmp_path_factory.mktemp("measured")
    with installation_with_programs(folder) as paths:
        write_presets(paths, folder)
        write_program(folder / "bin" / "vllm", vllm_program(BUS_ERROR))
        return sweep_presets(paths, "runs", "breaks", "runs-too", "--json")


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """Two shipped presets, of which the second one is known to break."""
    names = ("qwen3-coder-30b-a3b-3090", "qwen2.5-coder-32b-2x3090-pcie")
    with installation(tmp_path_factory.mktemp("simulated")) as paths:
        return sweep_presets(paths, *names, "--simulate")


@pytest.fixture
def two_cards(two_3090s, users_presets, programs):
    write_program(programs / "vllm", vllm_program(BUS_ERROR))


def test_each_preset_is_a_row_in_the_order_of_the_command_line(measured):
    rows = measured.done.json["presets"]
    assert [row["preset"] for row in rows] == ["runs", "breaks", "runs-too"]


def test_a_measured_level_stands_beside_the_published_figure_of_its_concurrency(measured):
    levels = measured.done.json["presets"][0]["levels"]
    assert [level["concurrency"] for level in levels] == [1, 2]
    assert [level["published_tok_s"] for level in levels] == [None, 100.0]
    assert [level["same_lengths"] for level in levels] == [None, False]


def test_a_preset_that_breaks_is_a_row_with_its_diagnosis(measured):
    broken = measured.done.json["presets"][1]
    assert broken["levels"] == []
    assert broken["failure"]["kind"] == "no-start"
    assert "SIGBUS" in broken["failure"]["cause"]


def test_the_log_of_a_preset_that_breaks_is_kept(measured):
    assert "breaks-0.log" in measured.logs


def test_after_a_preset_that_breaks_the_next_one_is_measured(measured):
    assert measured.done.json["presets"][2]["failure"] is None


def test_a_run_is_stored_for_each_preset_that_was_measured(measured):
    first, _, last = measured.done.json["presets"]
    assert {run["id"] for run in measured.runs} == {first["run"], last["run"]}
    assert {run["config"]["preset"] for run in measured.runs} == {"runs", "runs-too"}


def test_presets_measured_on_cards_are_not_called_simulated(measured):
    assert not measured.done.json["simulated"]


def test_measured_presets_are_drawn_with_the_one_that_did_not_start(measured):
    assert "<svg " in measured.page
    assert "breaks did not start" in measured.page


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


def test_the_table_of_presets_has_a_column_for_each_level(simulated):
    header = simulated.done.out.splitlines()[0]
    assert header.split() == ["PRESET", "C=1", "C=2", "CONTENTION", "RESULT"]


def test_published_figures_of_unknown_lengths_are_marked_in_the_table(simulated):
    """The author of this preset gives no lengths."""
    row = simulated.done.out.splitlines()[1]
    assert "[167*]" in row
    assert "[215*]" in row


def test_a_preset_that_its_author_saw_break_is_not_simulated(simulated):
    _, _, broken = simulated.done.out.splitlines()
    assert "BROKEN: did not start" in broken
    errors = simulated.done.err
    assert "published, not simulated: SIGBUS while weights are loaded" in errors


def test_simulated_presets_say_so_and_so_does_their_stored_run(simulated):
    errors = simulated.done.err
    assert "SIMULATED: no model ran, these figures are a prediction" in errors
    (run,) = simulated.runs
    assert run["simulated"]


def test_the_page_of_simulated_presets_names_the_one_that_did_not_start(simulated):
    assert "qwen2.5-coder-32b-2x3090-pcie did not start" in simulated.page
    assert "1 run<" in simulated.page


@pytest.mark.usefixtures("users_presets", "programs")
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

"""A preset held against its published figures: after a sweep of what serves it, and from start to
end.
"""

import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_programs import SMI, vllm_program

from commands import environment, running_skep
from skep.paths import user_paths

PUBLISHED = """
title = "A 27B on two cards"
engine = "vllm"
model = "qwen3.6-27b"
checkpoint = "{weights}"
hardware = "2x rtx-3090"
source = "a write-up"
slots = 2
context = 4096
options = {{ tp = 2, quant = "awq" }}

[[published]]
tok_s = 100.0
metric = "output"
concurrency = 1
input_tokens = 400
output_tokens = 16

[[published]]
tok_s = 4000.0
metric = "combined"
concurrency = 2
input_tokens = 400
output_tokens = 16
"""


def furnish(folder, programs, config):
    """A preset of one's own, `mine`, on a machine with two fake cards and a fake vLLM."""
    for name, text in (
        ("nvidia-smi", SMI),
        ("vllm", vllm_program().replace('"--token-ms", "1"', '"--token-ms", "10"')),
    ):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    weights = folder / "weights"
    weights.mkdir()
    (weights / "config.json").write_text("{}")
    presets = config / "presets"
    presets.mkdir(parents=True)
    (presets / "mine.toml").write_text(PUBLISHED.format(weights=weights))
    (folder / "skep.toml").write_text("[gateway]\nport = 0\n")


@pytest.fixture
def mine(paths, programs, tmp_path):
    furnish(tmp_path, programs, paths.config)
    return "mine"


@pytest.fixture
def typed(skep, programs):
    """What a user types on that machine."""
    return lambda *words, check=0: skep(*words, check=check, PATH=os.environ["PATH"])


QUICK = ("--runs", "3", "--budget", "60s")


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    """One check of `mine` from start to end, and what can be seen after it."""
    folder = tmp_path_factory.mktemp("check")
    programs = folder / "bin"
    programs.mkdir()
    env = environment(folder)
    env["PATH"] = f"{programs}:{Path(shutil.which('sh')).parent}"
    furnish(folder, programs, user_paths(env).config)
    with running_skep(env, folder) as skep:
        document = json.loads(skep("check", "mine", *QUICK, "--json", check=0).stdout)
        runs = json.loads(skep("runs", "--json", check=0).stdout)
        rows = json.loads(skep("ps", "--json", check=0).stdout)
    return SimpleNamespace(document=document, runs=runs, rows=rows, folder=folder)


def test_a_check_names_the_preset_its_source_and_its_cards(check):
    assert {name: check.document[name] for name in ("preset", "source", "hardware")} == {
        "preset": "mine",
        "source": "a write-up",
        "hardware": "2x rtx-3090",
    }


def test_a_check_has_a_planned_figure_beside_every_published_one(check):
    figures = check.document["figures"]
    assert [figure["published"]["tok_s"] for figure in figures] == [100.0, 4000.0]
    assert all(figure["planned_tok_s"] > 10 for figure in figures)


def test_the_share_of_a_check_is_that_of_the_published_figure(check):
    first = check.document["figures"][0]
    assert first["share"] == pytest.approx(first["measured_tok_s"] / 100)


def test_a_combined_figure_counts_the_tokens_that_go_in(check):
    """400 tokens in for 16 out."""
    output, combined = check.document["figures"]
    assert combined["measured_tok_s"] > 10 * output["measured_tok_s"]


def test_a_check_is_one_stored_run(check):
    assert [run["id"] for run in check.runs] == [check.document["run"]]


def test_a_check_stops_what_it_has_started_and_leaves_no_folder_of_its_start(check):
    assert check.rows == []
    assert not list((check.folder / "state").rglob("start-*"))


def test_the_planned_figure_of_a_check_is_that_of_the_plan_of_the_preset(mine, typed, paths):
    """Also where its author gives no lengths, which both take to be the same."""
    path = paths.config / "presets" / "mine.toml"
    page = path.read_text()
    silent = (
        page.replace("input_tokens = 400", "")
        .replace("output_tokens = 16", "")
        .replace("4096", "256")
    )
    for text in (page, silent):
        path.write_text(text)
        planned = json.loads(typed("plan", mine, "--json").stdout)["preset"]["figures"]
        checked = json.loads(
            typed("check", mine, "--runs", "1", "--budget", "5s", "--json").stdout
        )["figures"]
        assert [figure["planned_tok_s"] for figure in checked] == [
            figure["predicted_tok_s"] for figure in planned
        ]
        assert {figure["input_tokens"] for figure in planned} == {400 if text == page else 128}


def test_an_engine_that_dies_while_it_is_checked_is_told_with_its_end(
    mine, typed, programs, paths
):
    """Not after all its requests have failed, one by one; the log of the dead stays."""
    fault = json.dumps({"kind": "crash", "times": None, "exit_code": 3, "after_tokens": 12})
    program = programs / "vllm"
    program.write_text(
        program.read_text().replace('"--token-ms"', f'"--fault", {fault!r}, "--token-ms"')
    )
    done = typed("check", mine, *QUICK, check=1)
    assert "`mine` cannot be checked, it " in done.stderr
    assert "died under load" in done.stderr
    assert "code 3" in done.stderr
    assert list((paths.state / "checks").rglob("*.log"))
    assert json.loads(typed("ps", "--json").stdout) == []


def test_a_check_that_went_well_leaves_no_folder_of_its_own(mine, typed, paths):
    typed("check", mine, "-c", "1", "--runs", "1", "--budget", "20s")
    assert not (paths.state / "checks").exists()


def test_a_preset_that_its_author_could_not_start_is_called_broken_beforehand(mine, typed, paths):
    path = paths.config / "presets" / "mine.toml"
    path.write_text('broken = "no memory left"\n' + path.read_text())
    lines = typed("check", mine, "-c", "1", "--runs", "1", "--budget", "20s").stderr.splitlines()
    line = next(
        place
        for place, line in enumerate(lines)
        if "its author could not start it: no memory left" in line
    )
    assert line < next(
        place for place, line in enumerate(lines) if line.startswith("starting mine")
    )
    done = typed("check", "qwen2.5-coder-32b-2x3090-pcie", check=2).stderr
    assert "has no published figures: its author could not start it" in done
    assert "SIGBUS while weights are loaded" in done


@pytest.mark.parametrize("rig", [None, pytest.param("rtx-4090", marks=pytest.mark.slow)])
def test_a_check_of_a_simulated_rig_says_so_wherever_its_figures_stand(typed, rig):
    words = (
        "check",
        "qwen3-coder-30b-a3b-3090",
        "--simulate",
        "-c",
        "1",
        "--runs",
        "1",
        "--budget",
        "5s",
    )
    done = typed(*words, *(() if rig is None else ("--gpu", rig)))
    assert "SIMULATED" in done.stdout.splitlines()[0]
    assert "SIMULATED: no model ran, these figures are a prediction" in done.stderr
    assert f"simulated: on {rig or 'rtx-3090'}, not measured" in done.stderr
    assert "measured: here" not in done.stderr
    (run,) = json.loads(typed("runs", "--json").stdout)
    assert run["simulated"]


def test_cards_to_check_on_are_simulated_ones(mine, typed):
    assert "--gpu needs --simulate" in typed("check", mine, "--gpu", "rtx-4090", check=2).stderr
    assert (
        "--url names an endpoint"
        in typed("check", mine, "--simulate", "--url", "http://x", check=2).stderr
    )


def test_what_skep_serves_already_is_measured_where_it_is_the_preset(mine, typed):
    typed("up", mine, "-d")
    done = typed("check", mine, "-c", "1", *QUICK)
    assert "starting mine" not in done.stderr
    assert done.stdout.split("\n")[0].split() == [
        *("C", "tok/s", "of", "in", "/", "out", "published", "planned", "uncorrected", "measured"),
        *("95", "%", "of", "published"),
    ]
    assert (
        "planned is corrected by other published rows of this layout; uncorrected is what"
        in done.stderr
    )
    assert "published: a write-up; planned: for 2x rtx-3090; measured: here, now" in done.stderr
    stderr = typed("check", "qwen3.6-27b-2x3090-replicas", check=2).stderr
    assert "does not serve the preset `qwen3.6-27b-2x3090-replicas`" in stderr


def test_what_cannot_be_checked_is_said_before_anything_starts(mine, typed, paths):
    assert "no preset is called `absent`" in typed("check", "absent", check=2).stderr
    assert "`mine` has no figure at C=7" in typed("check", mine, "-c", "7", check=2).stderr
    path = paths.config / "presets" / "mine.toml"
    path.write_text(path.read_text().partition("[[published]]")[0])
    assert "`mine` has no published figures" in typed("check", mine, check=2).stderr


def test_a_sweep_is_shown_whatever_became_of_the_presets_file_meanwhile(mine, typed, paths):
    """A file that was broken after the start hid the table of all that was measured, and the exit
    code was 2.
    """
    typed("up", mine, "-d")
    (paths.config / "presets" / "mine.toml").write_text("[preset\n")
    done = typed(
        "bench",
        "sweep",
        "--runs",
        "1",
        "--warm-up",
        "quick",
        "--tasks",
        "3",
        "-c",
        "1",
        "--max-tokens",
        "8",
    )
    assert "eff tok/s" in done.stdout
    assert "no share of published figures: " in done.stderr


def test_a_sweep_of_a_preset_tells_the_share_of_its_published_figures(mine, typed):
    """One line, and where the lengths are others, that it is another load."""
    typed("up", mine, "-d")
    once = ("--runs", "3", "--warm-up", "quick", "--tasks", "4", "-c", "1,2,4", "--seed", "7")
    done = typed(
        "bench",
        "sweep",
        *once,
        "--prompt-tokens",
        "400",
        "--output-tokens",
        "16",
        "--fixed-output",
    )
    (line,) = [line for line in done.stderr.splitlines() if "has published" in line]
    assert line.startswith("share of the tok/s that mine has published: ")
    # Busy clients leave one out.
    assert re.search(r"\d % of 100 at C=1|\d % of 4,000 at C=2", line)
    assert "its lengths are" not in line
    once = ("--runs", "1", "--warm-up", "quick", "--tasks", "3", "-c", "1")
    done = typed("bench", "sweep", *once, "--output-tokens", "8")
    (line,) = [line for line in done.stderr.splitlines() if "has published" in line]
    assert "; its lengths are 400 and 16 tokens in and out, here " in line
    assert "repeats its load" in line

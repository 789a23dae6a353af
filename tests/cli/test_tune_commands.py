"""`skep tune` from its first word to a preset, on a rig in virtual time: no engine is started."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

from called import own_folders, tune

from skep.cli.tune_setup import prepare
from skep.cli.tune_target import TuneOptions
from skep.config.presets import preset, presets_folder
from skep.paths import user_paths
from skep.store.database import open_store
from skep.tuner.journal import TuningJournal
from skep.tuner.records import StageDecision, TuneStage
from skep.tuner.running import replay_answers
from skep.tuner.simulated import PlannedTruth, SimulatedBench
from skep.tuner.store import TuningStore
from skep.units import Interval

CLIMB = ("qwen3-8b", "--gpu", "rtx-4090", "--simulate", "--knobs", "graphs,slots", "--budget", "40m", "--seed", "3")
WISHES = TuneOptions("qwen3-8b", gpu="rtx-4090", simulate=True, knobs="graphs,slots", budget="40m", seed=3)


def test_a_climb_from_its_first_word_to_a_preset(tmp_path, monkeypatch):
    """One climb for all that only looks at it: a climb takes a second, looking none."""
    own_folders(monkeypatch, tmp_path)
    called = tune(*CLIMB, "--html", "page.html", "--json", check=0)
    whole = json.loads(called.out)
    the_document_has_baseline_best_stages_and_curve(whole)
    the_story_says_what_it_is(called.err, (tmp_path / "page.html").read_text())
    what_is_kept_can_be_shown_and_listed()
    the_best_becomes_a_preset_once()
    what_was_not_kept_is_exported_only_with_a_warning(whole["stages"])
    assert "has ended" in tune("resume", check=2).error.message
    (tmp_path / "again").mkdir()
    own_folders(monkeypatch, tmp_path / "again")
    a_climb_that_was_cut_off_ends_as_it_would_have(whole)


def the_document_has_baseline_best_stages_and_curve(told):
    assert told["tuning"]["simulated"] is True
    assert told["tuning"]["goal"] == "effective_tok_s@4"
    assert told["baseline"]["decision"] == "baseline"
    assert told["best"]["config"]["graphs"] is True
    assert told["gain"]["low"] > 1.0
    assert told["reason"]
    assert told["failure"] is None
    assert {point["concurrency"] for point in told["curve"]} == {1, 2, 4, 8}


def the_story_says_what_it_is(said, page):
    assert "SIMULATED" in said
    assert "baseline: graphs off, slots" in said
    assert "graphs off → on" in said
    assert "SIMULATED" in page.upper()


def what_is_kept_can_be_shown_and_listed():
    shown = tune("show", check=0)
    assert shown.out.startswith("SIMULATED: qwen3-8b (vllm) on rtx-4090")
    assert "██" in shown.out
    assert "accepted" in shown.out
    assert "best tok/s" in shown.out
    assert "kept: shown to be better by" in shown.out
    (row,) = json.loads(tune("ls", "--json", check=0).out)
    assert row["state"] == "ended"
    assert row["to"] > row["from"]
    assert "SIMULATED" in tune("ls", check=0).out


def the_best_becomes_a_preset_once():
    """A name that is taken is not written over unasked."""
    folder = presets_folder(user_paths(os.environ))
    tune("export", "my-8b", check=0)
    found = preset("my-8b", folder)
    assert found.options.graphs is True
    assert any("SIMULATED, not measured" in note for note in found.notes)
    assert not found.published
    assert "is there already" in tune("export", "my-8b", check=2).error.message
    tune("export", "my-8b", "--stage", "0", "--overwrite", check=0)
    assert preset("my-8b", folder).options.graphs is False
    assert json.loads(tune("show", "--json", check=0).out)["presets"] == ["my-8b", "my-8b"]
    assert "no stage 99" in tune("export", "other", "--stage", "99", check=2).error.message


def what_was_not_kept_is_exported_only_with_a_warning(stages):
    turned_down = next(one["number"] for one in stages if not one["accepted"] and one["number"])
    assert "warning: it was not kept: " in tune("export", "worse-8b", "--stage", turned_down, check=0).err
    found = preset("worse-8b", presets_folder(user_paths(os.environ)))
    assert any("which was not kept" in note for note in found.notes)


def a_climb_that_was_cut_off_ends_as_it_would_have(whole):
    """The first answers are stored by a session that then stops; what follows is the same as without the cut."""
    asyncio.run(cut_off_after(3))
    assert "it was interrupted" in tune("show", check=0).err
    again = json.loads(tune("resume", "last", "--json", check=0).out)
    assert again["stages"] == whole["stages"]
    assert again["curve"] == whole["curve"]


async def cut_off_after(answers):
    ready, paths = prepare(WISHES), user_paths(os.environ)
    climb, bench = ready.climb(), SimulatedBench(PlannedTruth(ready.terrain), seed=3, together=False)
    with open_store(paths.store) as store, TuningJournal.begin(TuningStore(store), ready.tuning, time.time) as journal:
        replay_answers(journal, climb)
        for _ in range(answers):
            errand = climb.following()
            answer = await bench.measure(errand, lambda _: None)
            climb.took(answer)
            journal.took(errand, answer, climb.stages)


def test_a_running_tuning_is_neither_resumed_nor_deleted(tmp_path, monkeypatch):
    own_folders(monkeypatch, tmp_path)
    ready = prepare(WISHES)
    with open_store(user_paths(os.environ).store) as store:
        journal = TuningJournal.begin(TuningStore(store), ready.tuning, time.time)
        assert "a process is at work" in tune("resume", check=2).error.message
        assert "a process is at work" in tune("rm", "last", check=2).error.message
        journal.end("stopped")
    tune("rm", "last", check=0)
    assert json.loads(tune("ls", "--json", check=0).out) == []


def test_a_tuning_of_an_earlier_version_that_turned_the_power_limit_is_shown_and_exported_but_not_resumed(
    tmp_path, monkeypatch
):
    own_folders(monkeypatch, tmp_path)
    tuning = prepare(WISHES).tuning
    start = tuning.baseline.turned({"power_cap": 100})
    capped = start.turned({"power_cap": 70})
    figure = Interval(24.0, 25.0, 26.0)
    stages = [
        TuneStage(0, (), start, StageDecision.BASELINE, "2 starts", figure),
        TuneStage(
            1, capped.changes_from(start), capped, StageDecision.ACCEPTED, "better", figure, Interval(1.1, 1.2, 1.3)
        ),
    ]
    with open_store(user_paths(os.environ).store) as store:
        tunings = TuningStore(store)
        name = tunings.begin(replace(tuning, baseline=start))
        session = tunings.begin_session(name, time.time())
        tunings.append_stages(name, stages, time.time())
        tunings.end_session(name, session, at=time.time(), outcome="stopped")
    assert "power_cap 100 → 70" in tune("show", check=0).out
    tune("export", "capped-8b", check=0)
    told = tune("resume", check=2).error
    assert "turns the power limit, which skep no longer does" in told.message
    assert "nvidia-smi -pl" in told.hint


def test_ctrl_c_keeps_what_was_decided_and_says_how_to_go_on(env, tmp_path):
    """Exit code 130, as of every command that is stopped."""
    words = ("qwen3.6-27b", "--gpu", "2x rtx-3090", "--simulate", "--budget", "9h", "--seed", "1")
    command = [sys.executable, "-m", "skep", "tune", *words]
    with subprocess.Popen(command, env=env, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as climbing:
        next(line for line in climbing.stderr if line.startswith("stage 0 baseline"))
        climbing.send_signal(signal.SIGINT)
        said = climbing.stderr.read()
    assert climbing.returncode == 130, said
    assert "error: stopped after" in said
    assert "hint: `skep tune resume" in said

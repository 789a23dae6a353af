"""`skep tune` from its first word to a preset, mostly on a rig in virtual time: no engine is
started.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from in_process import call, refused
from msgspec.structs import replace

from skep.config.presets import preset, presets_folder
from skep.paths import user_paths
from skep.store.database import open_store
from skep.tuner.presets import save_best
from skep.tuner.records import StageDecision, TuneStage
from skep.tuner.running import TuningJournal
from skep.tuner.setup import TuningOptions, absolute_paths, prepare, prepare_again
from skep.tuner.simulated import SimulatedBench
from skep.tuner.store import TuningStore, base_of
from skep.tuner.trial_server import tuner_lock
from skep.units import Interval

RIG = ("--gpu", "rtx-4090", "--simulate")
TUNING = (
    "qwen3-8b",
    *RIG,
    "--knobs",
    "graphs,slots",
    "--budget",
    "40m",
    "--seed",
    "3",
    "--from",
    "safe",
)
OPTIONS = TuningOptions(
    "qwen3-8b",
    gpu="rtx-4090",
    simulate=True,
    knobs="graphs,slots",
    budget="40m",
    seed=3,
    begin="safe",
)
LOAD = (
    "--goal",
    "effective_tok_s@2",
    "--input-tokens",
    "64",
    "--output-tokens",
    "16",
    "--quality",
    "off",
)
pytestmark = pytest.mark.usefixtures("paths")
tune = partial(call, "tune")
refusal = partial(refused, "tune")


def test_a_tuning_from_its_first_word_to_a_preset(tmp_path, monkeypatch):
    """One tuning for all that only looks at it: it takes a second, looking none."""
    called = tune(*TUNING, "--json", check=0)
    tune("show", "--html", "page.html", check=0)
    whole = called.json
    the_document_has_baseline_best_and_stages(whole)
    the_story_says_what_it_is(called.err, (tmp_path / "page.html").read_text())
    what_is_kept_can_be_shown_and_listed()
    the_best_becomes_a_preset_once()
    assert "has ended" in refusal("resume")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "again"))
    a_tuning_that_was_cut_off_ends_as_it_would_have(whole)


@pytest.mark.parametrize(
    ("model", "rig", "agents", "tokens"),
    [
        ("qwen3.6-27b", "2x rtx-3090", 4, 1024),
        ("qwen3.6-27b", "2x rtx-3090", 4, 4096),
        ("gemma-4-31b", "rtx-3090", 1, 512),
    ],
)
def test_a_tuning_from_the_plan_begins_with_the_first_layout_of_the_plan(
    paths, model, rig, agents, tokens
):
    """It began with TP=2 where the plan recommends two replicas, and with one engine only."""
    load = {"input_tokens": tokens, "output_tokens": tokens}
    options = TuningOptions(
        model, gpu=rig, simulate=True, goal=f"effective_tok_s@{agents}", **load
    )
    begun = base_of(prepare(options, paths).tuning)
    words = ("--gpu", rig, "-c", agents, "--prompt-tokens", tokens, "--output-tokens", tokens)
    plan = call("plan", model, *words, "--json", check=0).json["plans"][0]
    if begun.options.draft is not None:
        drafts = str(begun.options.draft)
    else:
        drafts = None
    assert (begun.engine, begun.options.tp, begun.replicas, begun.slots, drafts) == (
        plan["engine"],
        plan["topology"]["tp"],
        plan["topology"]["replicas"],
        plan["slots"],
        plan["spec"],
    )
    assert (begun.options.quant, begun.options.memory_share) == (
        plan["quant"],
        plan["utilization"],
    )
    assert (begun.options.kv is None) == (plan["kv_dtype"] == "bf16")
    assert begun.context_tokens <= plan["context"]


def test_a_tuning_begins_at_the_plan_and_says_how_far_off_that_was():
    err = tune(*TUNING[:-2], check=0).err
    assert re.search(r"baseline: .*graphs on", err)
    assert re.search(
        r"measured \d+ tok/s at the start; the plan expected \d+, \d+ % too (high|low)", err
    )
    assert "--from `below` is unknown" in refusal(*TUNING[:-2], "--from", "below")


def the_document_has_baseline_best_and_stages(document):
    assert document["tuning"]["simulated"] is True
    assert document["tuning"]["goal"] == "effective_tok_s@4"
    assert document["baseline"]["decision"] == "baseline"
    assert document["best"]["config"]["graphs"] is True
    assert document["gain"]["low"] > 1.0
    assert document["reason"]


def the_story_says_what_it_is(text, page):
    assert "SIMULATED" in text
    assert "baseline: graphs off, slots" in text
    assert "graphs off → on" in text
    assert "SIMULATED" in page.upper()


def what_is_kept_can_be_shown_and_listed():
    page = tune("show", check=0)
    assert page.out.startswith("SIMULATED: qwen3-8b (vllm) on rtx-4090")
    assert "accepted" in page.out
    assert " 2 starts with " in page.out
    (row,) = tune("ls", "--json", check=0).json
    assert row["state"] == "ended"
    assert row["to"] > row["from"]
    assert "SIMULATED" in tune("ls", check=0).out


def the_best_becomes_a_preset_once():
    """A name that is taken is not written over unasked."""
    folder = presets_folder(user_paths(os.environ))
    tune("export", "my-8b", check=0)
    stored_preset = preset("my-8b", folder)
    assert stored_preset.options.graphs is True
    assert any("SIMULATED, not measured" in note for note in stored_preset.notes)
    assert not stored_preset.published
    assert "already exists" in refusal("export", "my-8b")
    tune("export", "my-8b", "--overwrite", check=0)
    assert tune("show", "--json", check=0).json["presets"] == ["my-8b", "my-8b"]


def a_tuning_that_was_cut_off_ends_as_it_would_have(whole):
    """The first answers are stored by a session that then stops; what follows is the same as
    without the cut.
    """
    asyncio.run(cut_off_after(2))
    assert "it was interrupted" in tune("show", check=0).err
    again = tune("resume", "last", "--json", check=0).json
    assert again["stages"] == whole["stages"]


async def cut_off_after(stages):
    paths = user_paths(os.environ)
    ready = prepare(OPTIONS, paths)
    search = ready.search()
    bench = SimulatedBench(ready.space, seed=3)
    stored, search.tell = (
        search.tell,
        lambda answer: stored(answer) if len(search.stages) < stages else sys.exit(),
    )
    with open_store(paths.store) as store, suppress(SystemExit):
        tunings = TuningStore(store)
        await TuningJournal(tunings, tunings.begin(ready.tuning), time.time).run(search, bench)


def test_a_tuning_with_power_limits_is_shown_and_exported_but_not_resumed():
    tuning = prepare(OPTIONS, user_paths(os.environ)).tuning
    start = tuning.baseline.turned({"power_cap": 100})
    capped = start.turned({"power_cap": 70})
    figure = Interval(24.0, 25.0, 26.0)
    stages = [
        TuneStage(0, (), start, StageDecision.BASELINE, "2 starts", figure),
        TuneStage(1, capped.changes_from(start), capped, StageDecision.ACCEPTED, "better", figure),
    ]
    with open_store(user_paths(os.environ).store) as store:
        tunings = TuningStore(store)
        name = tunings.begin(replace(tuning, baseline=start, skep_version="0.1"))
        session = tunings.begin_session(name, time.time())
        tunings.append(name, stages, time.time())
        tunings.end_session(name, session, at=time.time(), outcome="stopped")
    assert "power_cap 100 → 70" in tune("show", check=0).out
    tune("export", "capped-8b", check=0)
    assert "was started by skep 0.1, which searches differently" in refusal("resume")


def interrupted(words, line):
    """What is said after Ctrl-C, which comes when `line` has been said."""
    command = [sys.executable, "-m", "skep", "tune", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        next(line_read for line_read in process.stderr if line_read.startswith(line))
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read()
    assert process.returncode == 130, errors
    return errors


ONE_3090 = ("qwen3.6-27b", "--gpu", "rtx-3090", "--simulate", "--seed", "1", "--knobs", "mtp")


@pytest.mark.parametrize(
    ("goal", "begin", "peak"),
    [
        ("effective_tok_s@1", "plan", {3}),
        ("effective_tok_s@1", "safe", {3, 4}),
        ("effective_tok_s@4", "safe", {2, 3}),
    ],
)
def test_draft_depth_runs_to_its_peak_and_takes_the_memory_share_along(goal, begin, peak):
    """SIMULATED: one RTX 3090. From a safe start no draft fits into 85 % of the card."""
    done = tune(*ONE_3090, "--goal", goal, "--from", begin, "--budget", "2h", "--json", check=0)
    stages = done.json["stages"]
    looked_at = {stage["config"]["mtp"] for stage in stages if stage["figure"] is not None}
    best = done.json["best"]["config"]["mtp"]
    assert best in peak
    assert {best - 1, best + 1} <= looked_at
    assert "memory_share" in done.err
    assert "only where another change does not fit without it" in done.err


def test_it_says_before_it_begins_how_many_changes_there_is_room_for():
    """SIMULATED: an hour on one RTX 3090, which starts in two minutes."""
    done = tune(*ONE_3090[:-2], "--from", "safe", "--json", check=0)
    room = int(
        re.search(
            r"room for about (\d+) changes: a first look at one takes about 2 min", done.err
        )[1]
    )
    tried = len(done.json["stages"]) - 1
    assert 6 <= room <= tried
    assert done.err.index("room for about") < done.err.index("step 0 baseline")


def test_a_tuning_that_could_start_nothing_says_why():
    done = tune(*ONE_3090, "--from", "safe", "--skip", "memory_share", check=0)
    assert "mtp 1, 2, 3, 4, 5, 6, 7, 8 did not start: " in done.err
    assert (
        "needs 20.4 GiB a card, rtx-3090 gives 20.0 GiB; memory_share is not among the knobs"
        in done.err
    )


def test_ctrl_c_keeps_what_was_decided_and_says_how_to_go_on():
    """Exit code 130, as of every command that is stopped."""
    errors = interrupted(
        ("qwen3-8b", "--gpu", "2x rtx-3090", "--simulate", "--budget", "9h", "--seed", "1"),
        "step 0 baseline",
    )
    assert "error: stopped after" in errors
    assert "hint: `skep tune resume" in errors


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_tuning_on_a_real_engine_is_stopped_resumed_and_leaves_a_preset(env, tmp_path, skep):
    """Nothing runs after Ctrl-C, and the second session measures nothing again that was
    measured.
    """
    start = ("--knobs", "slots,threads", "--budget", "6m", "--seed", "5")
    interrupted(("smollm2-135m", *LOAD, *start), "step 0 baseline")
    assert not engines_of(tmp_path)
    resumed = skep("tune", "resume", "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert "1 answers and 1 steps are already stored" in resumed.stderr
    document = json.loads(resumed.stdout)
    assert document["baseline"]["starts"] == 1  # in so short a time
    assert not engines_of(tmp_path)
    if document["best"]["number"]:
        (name,) = document["presets"]
        stored_preset = preset(name, presets_folder(user_paths(env)))
        assert stored_preset.published[0].tok_s == pytest.approx(
            document["best"]["figure"]["estimate"]
        )


def engines_of(folder):
    """Processes that were started with folders of this test."""
    sides = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.fsencode(folder) in (place / "environ").read_bytes() and place.name != str(
                os.getpid()
            ):
                sides.append(place.name)
    return sides


def test_a_preset_that_does_not_start_is_told_and_nothing_is_tuned(paths):
    """The diagnosis in one line; the tuning that was begun has no stage."""
    folder = presets_folder(paths)
    folder.mkdir(parents=True)
    (folder / "broken.toml").write_text(
        'title = "broken"\nengine = "embedded"\nmodel = "smollm2-135m"\ncheckpoint = '
        '"/no/such/file.gguf"\n'
        'hardware = "cpu"\nsource = "a test"\nslots = 1\n'
    )
    message = refusal("broken", *LOAD, code=1)
    assert message.startswith("nothing was tuned, the baseline refused before the start: ")
    assert "/no/such/file.gguf" in message
    (row,) = tune("ls", "--json", check=0).json
    assert row["stages"] == 1
    assert "refused before the start: " in tune("show", check=0).out
    assert "the baseline does not run" in tune("ls", check=0).out
    assert list(folder.iterdir()) == [folder / "broken.toml"]


REFUSED = [
    (("qwen3-8b", *RIG, "--goal", "speed@4"), 2, "no metric is called `speed`"),
    (("qwen3-8b", *RIG, "--goal", "effective_tok_s"), 2, "is not understood"),
    (("qwen3-8b", *RIG, "--goal", "effective_tok_s@0"), 2, "0 agents cannot be measured"),
    (("qwen3-8b", *RIG, "--output-tokens", "2"), 2, "--output-tokens 2 is too short an answer"),
    (("qwen3-8b", *RIG, "--slo", "speed=1s"), 2, "speed"),
    (("qwen3-8b", *RIG, "--budget", "soon"), 2, "`soon` is not a duration"),
    (("qwen3-8b", *RIG, "--budget", "20s"), 2, "--budget 20.0 s is too short for one trial"),
    (("qwen3-8b", *RIG, "--min-context", "100"), 2, "is less than a task's"),
    (("qwen3-8b", *RIG, "--min-context", "99999999"), 2, "beyond"),
    (("qwen3-8b", *RIG, "--knobs", "slot"), 2, "`slot` is not a knob here"),
    (("qwen3-8b", *RIG, "--engine", "embedded"), 2, "there is no engine `embedded` to tune"),
    (("qwen3-8b", *RIG, "--gpus", "0"), 2, "--gpus has no effect with --simulate"),
    (("qwen3-8b", *RIG, "--in-place"), 2, "--in-place has no effect with --simulate"),
    (
        ("qwen3-8b", *RIG, "--checkpoint", "some/weights"),
        2,
        "--checkpoint has no effect with --simulate",
    ),
    (
        ("qwen3-8b", *RIG, "--goal", "effective_tok_s@100000"),
        2,
        "100000 agents cannot be measured",
    ),
    (("qwen3-8b", *RIG, "--goal", "effective_tok_s@4>=300"), 2, "is not understood"),
    (("qwen3-8b", "--gpu", "no-such-card", "--simulate"), 2, "no-such-card"),
    (("llama-3.1-405b", *RIG), 3, "405b"),
    (
        ("qwen3.6-27b-2x3090-awq", "--gpu", "2x rtx-3060", "--simulate"),
        3,
        "the first configuration cannot start",
    ),
    (("qwen3.6-27b-2x3090-awq", *RIG), 2, "TP=2 needs 2 cards"),
    (("qwen3-8b", "--gpu", "rtx-4090"), 2, "describe a rig that is not here"),
    (("no-such-model",), 2, "`no-such-model` is not a preset, a known model"),
    (("./no-such.gguf",), 2, "no-such.gguf"),
    (("smollm2-135m", "--goal", "tok_per_joule@4"), 2, "no metric is called `tok_per_joule`"),
    (("smollm2-135m", "--gpus", "0"), 2, "this engine uses no card"),
    (("smollm2-135m", "--quality", "nosuch"), 2, "--quality `nosuch` is unknown"),
    (("show",), 2, "there are no tunings yet"),
    (("resume",), 2, "there are no tunings yet"),
    (("export", "name"), 2, "there are no tunings yet"),
    (("rm", "nosuch"), 2, "there are no tunings yet"),
]


@pytest.mark.parametrize(
    ("words", "code", "expected"), REFUSED, ids=[" ".join(words) for words, _, _ in REFUSED]
)
def test_it_is_refused_in_one_line_and_nothing_is_stored(words, code, expected, paths):
    message, _, hint = refusal(*words, code=code).partition(" | ")
    assert expected in message
    assert hint != "None"
    assert not paths.store.exists()


def test_without_cards_nothing_is_simulated_unless_named_and_no_preset_tuned(
    no_cards,
):
    message = refusal("qwen3-8b", "--simulate")
    assert "which rig should be simulated" in message
    assert "--gpu" in message
    assert "this machine has no GPU" in refusal("qwen3.6-27b-2x3090-awq", code=3)


@pytest.fixture
def no_cards(monkeypatch, tmp_path):
    """No nvidia-smi is found."""
    monkeypatch.setenv("PATH", str(tmp_path))


def test_one_machine_has_one_tuner_and_its_tuning_is_not_resumed_or_deleted(paths):
    """Two would measure each other. A simulated one is in nobody's way."""
    with tuner_lock(paths):
        message = refusal("smollm2-135m", "--budget", "2h", "--quality", "off", code=1)
        assert f"a tuner is already running (pid {os.getpid()})" in message
    assert not paths.store.exists()
    ready = prepare(OPTIONS, user_paths(os.environ))
    with open_store(user_paths(os.environ).store) as store:
        tunings = TuningStore(store)
        journal = TuningJournal(tunings, tunings.begin(ready.tuning), time.time)
        assert "a process is working" in refusal("resume")
        assert "a process is working" in refusal("rm", "last")
        journal.end("stopped")
    tune("rm", "last", check=0)
    assert tune("ls", "--json", check=0).json == []


def test_a_short_budget_is_told_with_its_time_and_a_promise_with_what_came_closest():
    hint = refusal("qwen3-8b", *RIG, "--budget", "1m")
    assert "two starts of the baseline, and two of both sides, take about" in hint
    assert hint.endswith(" s")
    words = ("qwen3-8b", *RIG, "--knobs", "graphs", "--budget", "40m", "--seed", "3")
    slow = tune(*words, "--slo", "ttft=1ms", check=1).error
    assert "no configuration kept ttft_p95=1ms at C=4; closest came " in slow.message


def test_the_group_itself_shows_its_words_and_an_example():
    out = tune("--help", check=0).out
    assert "resume" in out
    assert "Example: skep tune qwen3.6-27b" in out


@pytest.fixture
def ready(paths):
    return prepare(
        TuningOptions("qwen3.6-27b", gpu="2x rtx-3090", simulate=True, budget="8h", seed=1), paths
    )


def test_what_is_taken_up_again_predicts_as_before_and_its_best_is_one_preset(
    ready, tmp_path, paths
):
    """Whatever has changed on the machine meanwhile."""
    with open_store(tmp_path / "skep.sqlite3") as store:
        tuning_store = TuningStore(store)
        id_ = tuning_store.begin(ready.tuning)
        again = prepare_again(tuning_store.find(id_).tuning)
    assert again.space.base == ready.space.base
    for knob in ready.tuning.knobs:
        for value in knob.values:
            config = ready.tuning.baseline.turned({knob.name: value})
            assert again.space.predict(config) == ready.space.predict(config)
            assert again.space.refusal(config) == ready.space.refusal(config)
            assert again.space.start_s(config) == ready.space.start_s(config)
    better = ready.tuning.baseline.turned({"graphs": True})
    changes = better.changes_from(ready.tuning.baseline)
    stages = [
        TuneStage(
            0,
            (),
            ready.tuning.baseline,
            StageDecision.BASELINE,
            "2 starts",
            Interval(95.0, 100.0, 105.0),
        ),
        TuneStage(
            1, changes, better, StageDecision.ACCEPTED, "2 starts", Interval(135.0, 140.0, 145.0)
        ),
    ]
    with open_store(paths.store) as store:
        tunings = TuningStore(store)
        name = tunings.begin(replace(ready.tuning, simulated=False))
        tunings.begin_session(name, time.time())
        tunings.append(name, stages, time.time())
        saved = {save_best(tunings, tunings.record(name), paths) for _ in range(2)}
        assert saved == {f"qwen3.6-27b-tuned-{name}"} == set(tunings.find(name).presets)
        assert len(tunings.find(name).presets) == 1


def test_files_are_kept_by_their_whole_path(tmp_path):
    """The preset of the best is started from any folder, and so is the tuning taken up again."""
    (tmp_path / "mine.gguf").touch()
    for path, whole in (
        ("mine.gguf", str(tmp_path / "mine.gguf")),
        ("some/model", "some/model"),
        ("./no.gguf",) * 2,
    ):
        options = absolute_paths(TuningOptions("./mine.gguf", checkpoint=path))
        assert (options.name, options.checkpoint) == (str(tmp_path / "mine.gguf"), whole)


def test_drafts_that_a_preset_could_not_start_on_such_cards_are_tried_only_by_name():
    """A simulated tuning accepted drafts with a gain of 1.16x whose preset says that they do not
    start.
    """
    mixture = ("qwen3.6-35b-a3b-2x3090-ep", "--simulate", "--budget", "30m", "--seed", "1")
    err = tune(*mixture, check=0).err
    assert "mtp is left out: MTP runs out of memory at start" in err
    assert "\n  mtp " not in err
    assert "\n  mtp 1, 2, 3" in tune(*mixture, "--knobs", "mtp", check=0).err

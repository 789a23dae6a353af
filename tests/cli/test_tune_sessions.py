"""`skep tune --goal turns_min@N` on a rig in virtual time: which sessions, which knobs, and what is
said of them.
"""

from functools import partial

import pytest
from in_process import call, refused

from skep.tuner.setup import TuningOptions, prepare
from skep.tuner.store import base_of

RIG = ("--gpu", "rtx-3090", "--simulate")
SESSIONS = ("qwen3-8b", *RIG, "--goal", "turns_min@4", "--budget", "6h", "--seed", "1")
pytestmark = pytest.mark.usefixtures("paths")
tune = partial(call, "tune")
refusal = partial(refused, "tune")


def prepared(paths, name="qwen3-8b", **options):
    wishes = {"gpu": "rtx-3090", "goal": "turns_min@8", "budget": "12h", "simulate": True}
    return prepare(TuningOptions(name, **(wishes | options)), paths)


def values_of(ready, knob):
    return next(offered.values for offered in ready.tuning.knobs if offered.name == knob)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """One tuning on sessions for all that only looks at it."""
    folder = tmp_path_factory.mktemp("tuned")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CONFIG", "DATA", "STATE", "CACHE"):
            patch.setenv(f"XDG_{name}_HOME", str(folder / name.lower()))
        called = tune(*SESSIONS, check=0)
        yield called, tune("show", "--json", check=0).json


def test_it_says_which_sessions_and_how_they_are_cut(tuned):
    called, _ = tuned
    assert "--load coding: a coding agent such as Claude Code" in called.err
    assert "turns of each of 4 sessions" in called.err or "1 turn of each of 4" in called.err
    assert "with whole pauses and without sub-agents" in called.err


def test_the_knobs_are_those_that_matter_to_sessions(tuned):
    _, document = tuned
    names = {knob["name"] for knob in document["tuning"]["knobs"]}
    assert names == {"kv_ram", "kv", "batched_tokens", "slots", "memory_share"}


def test_steps_have_what_sessions_get_beside_turns_a_minute(tuned):
    called, document = tuned
    baseline = document["baseline"]["sessions"]
    assert baseline["session_s"] > 60
    assert baseline["first_p50_ms"] < baseline["first_p95_ms"]
    assert 0.5 < baseline["hit_rate"] < 1
    assert "turns/min" in called.out
    assert "Hits" in called.out
    assert called.out.startswith("SIMULATED: ")


def test_what_is_measured_at_first_is_what_the_plan_expected(tuned):
    _, document = tuned
    figure = document["baseline"]["figure"]
    assert document["tuning"]["sessions"]["load"] == "coding"
    assert 2 < figure["estimate"] < 20


def test_it_begins_with_the_first_layout_of_the_plan_for_these_sessions(paths):
    begun = base_of(prepared(paths, "qwen3.6-27b", gpu="2x rtx-3090").tuning)
    words = ("--gpu", "2x rtx-3090", "-c", 8, "--load", "coding")
    plan = call("plan", "qwen3.6-27b", *words, "--json", check=0).json["plans"][0]
    layout = plan["topology"]
    assert (begun.engine, begun.options.tp, begun.replicas, begun.slots) == (
        plan["engine"],
        layout["tp"],
        layout["replicas"],
        plan["slots"],
    )


def test_kv_in_ram_is_foreseen_where_the_cards_hold_too_few_sessions(paths):
    """llama.cpp keeps 8 GiB by itself; without any, six sessions in four slots push each other out."""
    ready = prepared(paths, "gpt-oss-20b", engine="llamacpp", goal="turns_min@6", load="small")
    baseline = ready.tuning.baseline
    assert baseline["kv_ram"] == 8
    four_slots = baseline.turned({"slots": 4, "kv_ram": 16})
    on_cards = four_slots.turned({"kv_ram": 0})
    assert ready.space.predict(four_slots) > 1.5 * ready.space.predict(on_cards)


def test_sizes_of_kv_in_ram_stay_below_three_quarters_of_the_memory(paths):
    ready = prepared(paths)
    assert values_of(ready, "kv_ram") == (0, 8, 16, 32)
    too_much = ready.tuning.baseline.turned({"kv_ram": 64})
    assert "64 GiB of RAM for KV are more than the 48" in ready.space.refusal(too_much)


def test_no_kv_type_below_eight_bits_is_tried(paths):
    assert set(values_of(prepared(paths, gpu="rtx-5090"), "kv")) <= {"auto", "fp8", "fp8_e5m2"}


def test_other_knobs_are_turned_where_they_are_named(paths):
    ready = prepared(paths, knobs="graphs")
    assert [knob.name for knob in ready.tuning.knobs if not knob.along] == ["graphs"]


def test_a_short_context_gets_the_sessions_that_have_room_in_it(paths):
    aim = prepared(paths, min_context=20_000).tuning.aim
    assert (aim.sessions.load, aim.sessions.window_tokens) == ("small", 20_000)


def test_a_context_without_room_for_sessions_says_how_much_they_need():
    error = refusal("smollm2-135m", "--goal", "turns_min@2")
    assert "need a context of 16,384 tokens, this is 8,192" in error


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--goal", "turns_min@2", "--load", "big"), "write coding or small"),
        (("--goal", "turns_min@2", "--prompt-tokens", "99"), "turns_min is of sessions"),
        (
            ("--goal", "effective_tok_s@4", "--load", "coding"),
            "--load coding is for the goal turns_min",
        ),
    ],
)
def test_sessions_and_tasks_are_not_mixed(words, reason):
    assert reason in refusal("qwen3-8b", *RIG, *words)


def test_a_stopped_tuning_goes_on_with_the_same_sessions(paths):
    """What is foreseen and what is refused is as it was."""
    from skep.tuner.setup import prepare_again

    ready = prepared(paths)
    again = prepare_again(ready.tuning)
    changed = ready.tuning.baseline.turned({"kv_ram": 64, "slots": 4})
    assert again.space.predict(changed) == ready.space.predict(changed)
    assert again.space.refusal(changed) == ready.space.refusal(changed) is not None


def test_a_load_of_sessions_is_a_goal_of_sessions(paths):
    assert str(prepared(paths, goal=None, load="coding").tuning.aim) == "turns_min@4"


def test_a_load_of_tasks_is_a_goal_of_tasks(paths):
    assert str(prepared(paths, goal=None, load="task").tuning.aim) == "effective_tok_s@4"

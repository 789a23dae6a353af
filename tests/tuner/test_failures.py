"""Dead ends: what is tried instead, and what is never tried again. Inferences must hold on every effects."""

from itertools import product
from random import Random

import pytest
from msgspec.structs import replace

from skep.catalog.presets import Draft, EngineOptions
from skep.engines.base import Diagnosis, Launch
from skep.engines.diagnosis import RULES
from skep.tuner.failures import (
    apply_remedy,
    asks_as_much,
    failure_of,
    greedy_share,
    is_of_memory,
    narrower,
    why_hopeless,
)
from skep.tuner.records import ConfigFailure, Knob, KnobConfig

KNOBS = (
    Knob("memory_share", "", (0.8, 0.85, 0.9, 0.95), ordered=True),
    Knob("slots", "", (2, 4, 8, 16), ordered=True),
    Knob("batched_tokens", "", (1024, 2048, 4096), ordered=True),
    Knob("mtp", "", (0, 1, 3, 5), ordered=True),
    Knob("kv", "", ("auto", "fp8", "fp8_e5m2"), alters_answers=True),
    Knob("graphs", "", (False, True)),
    Knob("prefix_cache", "", (False, True)),
    Knob("layout", "", ("TP=2", "2x TP=1")),
    Knob("threads", "", (4, 8, 16), ordered=True),
)
RUNGS = {knob.name: knob.values for knob in KNOBS}
MIDDLE = KnobConfig.of({
    "memory_share": 0.9, "slots": 8, "batched_tokens": 2048, "mtp": 3, "kv": "auto", "graphs": True,
    "prefix_cache": True, "layout": "TP=2", "threads": 16,
})  # fmt: skip
OUTSIDE = ConfigFailure("out-of-memory", "out of GPU memory while CUDA graphs were captured", "CUDA out of memory.")
POOL = ConfigFailure("no-start", "no room in the KV cache for one request of 32768 tokens", remedy="raise memory_share")
VAGUE = ConfigFailure("out-of-memory", "needs 20.1 GiB a card, which gives 20.0 GiB")
CRASH = ConfigFailure("crash-under-load", "the engine died", "CUDA error: an illegal memory access was encountered")


def some_configs(count, seed=1):
    rng = Random(seed)
    return [KnobConfig.of({knob.name: rng.choice(knob.values) for knob in KNOBS}) for _ in range(count)]


def test_memory_that_ran_out_beside_the_pool_and_inside_of_it_are_told_apart():
    assert (is_of_memory(OUTSIDE), greedy_share(OUTSIDE)) == (True, "up")
    assert (is_of_memory(POOL), greedy_share(POOL)) == (True, "down")
    assert not is_of_memory(CRASH)
    assert is_of_memory(ConfigFailure("crash-under-load", "it died", "torch.OutOfMemoryError: CUDA out of memory."))


def hopeless(failure, turned, failed=MIDDLE):
    """Why a configuration need not be tried, of which another one failed before it was turned."""
    return why_hopeless(failed.turned(turned), [(failed, failure)], KNOBS)


MORE = ({}, {"slots": 16}, {"batched_tokens": 4096}, {"mtp": 5}, {"memory_share": 0.95}, {"threads": 4})
LESS = (
    *({"slots": 4}, {"memory_share": 0.85}, {"kv": "fp8"}, {"graphs": False}, {"slots": 16, "mtp": 1}),
    *({"layout": "2x TP=1"}, {"prefix_cache": False, "slots": 16}),
)


@pytest.mark.parametrize(
    ("failure", "turned", "refused"),
    [
        *[(OUTSIDE, turned, True) for turned in MORE],
        *[(OUTSIDE, turned, False) for turned in LESS],
        (POOL, {}, True),
        (POOL, {"memory_share": 0.85}, True),
        (POOL, {"memory_share": 0.95}, False),
        (CRASH, {}, True),
        (CRASH, {"threads": 4}, False),
        (VAGUE, {"memory_share": 0.85}, False),
        (VAGUE, {"memory_share": 0.95}, False),
        (VAGUE, {"slots": 16}, True),
    ],
)
def test_the_same_is_never_tried_again_nor_who_asks_for_more_and_who_asks_for_less_in_any_respect_is(
    failure, turned, refused
):
    """A pool that was too small is helped by a larger share; where the words do not tell which it was, nothing is
    concluded from the share; of another layout nothing either."""
    assert (hopeless(failure, turned) is not None) is refused


def test_the_reason_names_what_asks_for_more():
    ran_out = "ran out of memory (out of GPU memory while CUDA graphs were captured)"
    assert hopeless(OUTSIDE, {"slots": 16}) == f"slots 8 {ran_out}, and slots 16 asks for no less"
    assert hopeless(OUTSIDE, {"threads": 4}).endswith("which threads cannot fix")


def test_on_a_machine_with_so_much_memory_nothing_that_fits_is_ever_refused():
    """The property that makes it sound: whatever failed by a demand that grows with every knob, all that fits stays
    open. Demands of chance, for both ways in which memory runs out."""
    rng = Random(5)
    for trial in range(20):
        weights = {name: rng.uniform(0.1, 1.0) for name in ("memory_share", "slots", "batched_tokens", "mtp")}
        extra = {"graphs": rng.random(), "kv": rng.random(), "layout": rng.random(), "prefix_cache": rng.random()}
        failure, way = ((OUTSIDE, 1), (POOL, -1))[trial % 2]

        def demand(config, weights=weights, extra=extra, way=way):
            ladders = sum(
                (way if name == "memory_share" else 1) * weight * RUNGS[name].index(config[name])
                for name, weight in weights.items()
            )
            kv = extra["kv"] * (config["kv"] == "auto")
            layout = extra["layout"] * (config["layout"] == "TP=2") + extra["prefix_cache"] * config["prefix_cache"]
            return ladders + extra["graphs"] * config["graphs"] + kv + layout

        configs = some_configs(120, seed=trial)
        limit = sorted(map(demand, configs))[60]
        failures = [(config, failure) for config in configs[:60] if demand(config) > limit]
        refused = [config for config in configs if why_hopeless(config, failures, KNOBS)]
        assert all(demand(config) > limit for config in refused)
        assert len(refused) > len(failures)  # it does infer something


def test_a_remedy_is_another_configuration_on_the_rungs_that_its_own_failure_does_not_refuse():
    for config, failure in product(
        some_configs(200), (OUTSIDE, POOL, CRASH, ConfigFailure("hang", "nothing was heard"))
    ):
        found = apply_remedy(config, failure, KNOBS)
        if found is not None:
            assert why_hopeless(found, [(config, failure)], KNOBS) is None
            (change,) = found.changes_from(config)
            assert change.after in RUNGS[change.knob]


@pytest.mark.parametrize(
    ("failure", "turned"),
    [
        (OUTSIDE, {"memory_share": 0.85}),
        (POOL, {"memory_share": 0.95}),
        (VAGUE, {"slots": 4}),
        (CRASH, {"slots": 4}),
        (ConfigFailure("hang", "nothing was heard for 10 minutes"), {"mtp": 0}),
        (ConfigFailure("errors-under-load", "12 of 40 requests failed"), {"slots": 4}),
        (ConfigFailure("out-of-memory", "oom", mended=(("slots", 6),)), {"slots": 4}),  # the rung beyond the advice
        (ConfigFailure("out-of-memory", "oom", mended=(("memory_share", 0.83), ("p2p", "off"))), {"memory_share": 0.8}),
        (ConfigFailure("no-start", "no fp8 here", mended=(("kv", "auto"), ("graphs", False))), {"graphs": False}),
        (ConfigFailure("no-start", "file not found"), None),
    ],
)
def test_the_remedy_is_what_the_diagnosis_says_or_one_rung_of_what_usually_helps(failure, turned):
    assert apply_remedy(MIDDLE, failure, KNOBS) == (turned and MIDDLE.turned(turned))


def test_where_the_first_way_out_is_at_its_end_the_next_is_taken():
    lowest = MIDDLE.turned({"memory_share": 0.8, "slots": 2, "batched_tokens": 1024})
    assert apply_remedy(lowest, OUTSIDE, KNOBS) == lowest.turned({"mtp": 1})
    assert apply_remedy(lowest.turned({"mtp": 0, "kv": "fp8", "graphs": False}), OUTSIDE, KNOBS) is None


UNKNOWN = "argument --kv-cache-dtype: invalid choice: 'fp8_e5m2' (choose from auto, fp8)"


@pytest.mark.parametrize(
    ("kind", "cause", "here", "elsewhere"),
    [
        ("no-start", UNKNOWN, True, True),
        ("no-start", "fp8_e5m2 is not supported here", True, False),  # another layout may be
        ("no-start", "fp8_e5m2 kv-cache is not supported with fp8 checkpoints", False, False),  # a condition beside it
        ("no-start", "fp8_e5m2 and TP=2 are not supported", False, False),  # two are named
        ("no-start", "the device is not supported", False, False),  # none is
        ("crash-under-load", "fp8_e5m2 is not supported here", False, False),
    ],
)
def test_a_value_that_the_engine_does_not_take_is_refused_unless_the_reason_may_depend_on_the_rest(
    kind, cause, here, elsewhere
):
    failed, failure = MIDDLE.turned({"kv": "fp8_e5m2"}), ConfigFailure(kind, cause)
    assert hopeless(failure, {}, failed) is not None
    assert (hopeless(failure, {"slots": 2}, failed) is not None) is here
    assert (hopeless(failure, {"slots": 2, "layout": "2x TP=1"}, failed) is not None) is elsewhere
    assert hopeless(failure, {"kv": "fp8"}, failed) is None


@pytest.mark.parametrize(
    ("knob", "value", "other", "as_much"),
    [
        ("kv", "auto", "fp8", True),  # auto may be as narrow as eight bits, and is no wider than sixteen
        ("kv", "f16", None, True),
        ("kv", "auto", "f16", False),
        ("kv", "turbo3", "fp8", False),
        ("threads_of_mine", 8, 4, False),
        ("slots", None, 4, False),
        ("flash_attention", False, True, True),
    ],
)
def test_only_what_surely_asks_for_as_much_memory_is_said_to(knob, value, other, as_much):
    assert asks_as_much(knob, value, other, share="up") is as_much


@pytest.mark.parametrize(
    ("now", "types", "found"),
    [
        ("f16", ("f16", "q8_0", "q4_0"), "q8_0"),
        (None, (None, "fp8"), "fp8"),
        ("q4_0", ("f16", "q4_0"), None),
        ("turbo3", ("f16", "q4_0"), None),
    ],
)
def test_the_next_narrower_type_of_the_cache_is_taken(now, types, found):
    assert narrower(now, types) == found


LAUNCH = Launch(
    "r", "vllm", "m", None, 8, 4096, 4, options=EngineOptions(memory_share=0.92, kv="fp8", draft=Draft("mtp", 3))
)


def test_the_remedy_is_told_as_knobs():
    options = replace(LAUNCH.options, memory_share=0.87, draft=Draft("mtp", 2))
    change = replace(LAUNCH, slots=4, options=options)
    found = failure_of(Diagnosis("out of GPU memory", "torch...", "lower it", change=change), LAUNCH, under_load=False)
    assert found.kind == "out-of-memory"
    assert (found.evidence, found.remedy) == ("torch...", "lower it")
    assert dict(found.mended) == {"slots": 4, "mtp": 2, "memory_share": 0.87}
    undrafted = Diagnosis("no draft layers", change=replace(LAUNCH, options=replace(LAUNCH.options, draft=None)))
    assert failure_of(undrafted, LAUNCH, under_load=False).mended == (("mtp", 0),)


@pytest.mark.parametrize(("under_load", "kind"), [(False, "no-start"), (True, "crash-under-load")])
def test_another_death_is_told_by_when_it_came(under_load, kind):
    found = failure_of(Diagnosis("an illegal memory access"), LAUNCH, under_load=under_load)
    assert found.kind == kind
    assert ("under load" in found.cause) == under_load


def test_every_rule_that_is_about_running_out_is_told_as_such():
    causes = [rule.cause for rule in RULES if "out of GPU memory" in rule.cause or "no memory" in rule.cause]
    assert len(causes) > 10
    assert {failure_of(Diagnosis(cause), LAUNCH, under_load=False).kind for cause in causes} == {"out-of-memory"}

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
from skep.tuner.measure import drop_unusable_remedies
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
MIDDLE = KnobConfig.of({
    "memory_share": 0.9, "slots": 8, "batched_tokens": 2048, "mtp": 3, "kv": "auto", "graphs": True,
    "prefix_cache": True, "layout": "TP=2", "threads": 16,
})  # fmt: skip
OUTSIDE = ConfigFailure("out-of-memory", "out of GPU memory while CUDA graphs were captured", "CUDA out of memory.")
POOL = ConfigFailure("no-start", "no room in the KV cache for one request of 32768 tokens", remedy="raise memory_share")
CRASH = ConfigFailure("crash-under-load", "the engine died", "CUDA error: an illegal memory access was encountered")


def some_configs(count, seed=1):
    rng = Random(seed)
    return [KnobConfig.of({knob.name: rng.choice(knob.values) for knob in KNOBS}) for _ in range(count)]


def test_memory_that_ran_out_beside_the_pool_and_inside_of_it_are_told_apart():
    assert (is_of_memory(OUTSIDE), greedy_share(OUTSIDE)) == (True, "up")
    assert (is_of_memory(POOL), greedy_share(POOL)) == (True, "down")
    assert not is_of_memory(CRASH)
    assert is_of_memory(ConfigFailure("crash-under-load", "it died", "torch.OutOfMemoryError: CUDA out of memory."))


@pytest.mark.parametrize(
    "turned", [{"slots": 16}, {"batched_tokens": 4096}, {"mtp": 5}, {"memory_share": 0.95}, {"slots": 16, "mtp": 5}]
)
def test_who_asks_for_more_than_one_that_ran_out_of_memory_is_refused(turned):
    reason = why_hopeless(MIDDLE.turned(turned), [(MIDDLE, OUTSIDE)], KNOBS)
    name, value = next(iter(sorted(turned.items())))
    assert "ran out of memory (out of GPU memory while CUDA graphs were captured)" in reason
    assert f"{name} {value}" in reason


LESS = (
    *({"slots": 4}, {"memory_share": 0.85}, {"kv": "fp8"}, {"graphs": False}, {"slots": 16, "mtp": 1}),
    *({"layout": "2x TP=1"}, {"prefix_cache": False, "slots": 16}),
)


@pytest.mark.parametrize(
    ("failure", "turned", "hopeless"),
    [
        (OUTSIDE, {}, True),
        (POOL, {}, True),
        (CRASH, {}, True),
        (POOL, {"memory_share": 0.85}, True),
        (POOL, {"memory_share": 0.95}, False),
        (CRASH, {"threads": 4}, False),
        *[(OUTSIDE, turned, False) for turned in LESS],
    ],
)
def test_the_same_is_never_tried_again_and_who_asks_for_less_in_any_respect_is(failure, turned, hopeless):
    """A pool that was too small is helped by a larger share; of another layout nothing is concluded."""
    assert (why_hopeless(MIDDLE.turned(turned), [(MIDDLE, failure)], KNOBS) is not None) is hopeless


def test_where_the_words_do_not_tell_which_nothing_is_concluded_from_the_share():
    vague = ConfigFailure("out-of-memory", "needs 20.1 GiB a card, which gives 20.0 GiB")
    for share in (0.85, 0.95):
        assert why_hopeless(MIDDLE.turned({"memory_share": share}), [(MIDDLE, vague)], KNOBS) is None
    assert why_hopeless(MIDDLE.turned({"slots": 16}), [(MIDDLE, vague)], KNOBS) is not None
    assert apply_remedy(MIDDLE, vague, KNOBS) == MIDDLE.turned({"slots": 4})


def test_a_knob_that_memory_does_not_depend_on_mends_nothing():
    reason = why_hopeless(MIDDLE.turned({"threads": 4}), [(MIDDLE, OUTSIDE)], KNOBS)
    assert reason.endswith("which threads cannot fix")


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
                (way if name == "memory_share" else 1) * weight * knob(name).values.index(config[name])
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


def knob(name):
    return next(one for one in KNOBS if one.name == name)


def test_a_remedy_is_another_configuration_on_the_rungs_that_its_own_failure_does_not_refuse():
    for config, failure in product(
        some_configs(200), (OUTSIDE, POOL, CRASH, ConfigFailure("hang", "nothing was heard"))
    ):
        found = apply_remedy(config, failure, KNOBS)
        if found is not None:
            assert why_hopeless(found, [(config, failure)], KNOBS) is None
            (change,) = found.changes_from(config)
            assert change.after in knob(change.knob).values


@pytest.mark.parametrize(
    ("failure", "turned"),
    [
        (OUTSIDE, {"memory_share": 0.85}),
        (POOL, {"memory_share": 0.95}),
        (CRASH, {"slots": 4}),
        (ConfigFailure("hang", "nothing was heard for 10 minutes"), {"mtp": 0}),
        (ConfigFailure("errors-under-load", "12 of 40 requests failed"), {"slots": 4}),
        (
            ConfigFailure("out-of-memory", "oom", mended=(("slots", 6),)),
            {"slots": 4},
        ),  # the next rung beyond the advice
        (
            ConfigFailure("out-of-memory", "oom", mended=(("memory_share", 0.83), ("context", 4096))),
            {"memory_share": 0.8},
        ),
        (ConfigFailure("no-start", "no fp8 here", mended=(("kv", "auto"), ("graphs", False))), {"graphs": False}),
    ],
)
def test_the_remedy_is_what_the_diagnosis_says_or_one_rung_of_what_usually_helps(failure, turned):
    assert apply_remedy(MIDDLE, failure, KNOBS) == MIDDLE.turned(turned)


def test_where_the_first_way_out_is_at_its_end_the_next_is_taken():
    lowest = MIDDLE.turned({"memory_share": 0.8, "slots": 2, "batched_tokens": 1024})
    assert apply_remedy(lowest, OUTSIDE, KNOBS) == lowest.turned({"mtp": 1})
    assert apply_remedy(lowest.turned({"mtp": 0, "kv": "fp8", "graphs": False}), OUTSIDE, KNOBS) is None


def test_a_refusal_has_no_remedy_unless_it_says_one():
    assert apply_remedy(MIDDLE, ConfigFailure("refused", "prefill and decode cannot be told apart"), KNOBS) is None
    assert apply_remedy(MIDDLE, ConfigFailure("no-start", "file not found"), KNOBS) is None


def test_a_value_that_the_engine_does_not_know_is_refused_everywhere():
    told = "argument --kv-cache-dtype: invalid choice: 'fp8_e5m2' (choose from auto, fp8)"
    failures = [(MIDDLE.turned({"kv": "fp8_e5m2"}), ConfigFailure("no-start", "a flag it does not take", told))]
    other = MIDDLE.turned({"layout": "2x TP=1", "slots": 2})
    reason = why_hopeless(other.turned({"kv": "fp8_e5m2"}), failures, KNOBS)
    assert reason == "kv fp8_e5m2 was refused with any other setting: a flag it does not take"
    assert why_hopeless(other.turned({"kv": "fp8"}), failures, KNOBS) is None


def test_a_value_that_is_not_supported_on_one_layout_may_be_on_another():
    failure = ConfigFailure("no-start", "fp8_e5m2 is not supported here")
    failures = [(MIDDLE.turned({"kv": "fp8_e5m2"}), failure)]
    again = MIDDLE.turned({"kv": "fp8_e5m2", "slots": 2})
    assert why_hopeless(again, failures, KNOBS) is not None
    assert why_hopeless(again.turned({"layout": "2x TP=1"}), failures, KNOBS) is None


@pytest.mark.parametrize(
    "failure",
    [
        ConfigFailure("no-start", "fp8_e5m2 kv-cache is not supported with fp8 checkpoints"),  # a condition beside it
        ConfigFailure("no-start", "fp8_e5m2 and TP=2 are not supported"),  # two are named
        ConfigFailure("no-start", "the device is not supported"),  # none is
        ConfigFailure("crash-under-load", "fp8_e5m2 is not supported here"),
    ],
)
def test_a_reason_that_may_depend_on_the_rest_refuses_only_the_same_again(failure):
    failed = MIDDLE.turned({"kv": "fp8_e5m2"})
    assert why_hopeless(failed, [(failed, failure)], KNOBS) is not None
    assert why_hopeless(failed.turned({"slots": 2}), [(failed, failure)], KNOBS) is None


def test_auto_may_be_as_narrow_as_eight_bits_and_no_wider_than_sixteen():
    assert asks_as_much("kv", "auto", "fp8", share="up")
    assert asks_as_much("kv", "f16", None, share="up")
    assert not asks_as_much("kv", "auto", "f16", share="up")
    assert not asks_as_much("kv", "turbo3", "fp8", share="up")
    assert not asks_as_much("threads_of_mine", 8, 4, share="up")
    assert not asks_as_much("slots", None, 4, share="up")
    assert asks_as_much("flash_attention", False, True, share="up")


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


def test_speculation_that_is_given_up_is_a_depth_of_none():
    change = replace(LAUNCH, options=replace(LAUNCH.options, draft=None))
    found = failure_of(Diagnosis("no draft layers", change=change), LAUNCH, under_load=False)
    assert found.mended == (("mtp", 0),)


@pytest.mark.parametrize(("under_load", "kind"), [(False, "no-start"), (True, "crash-under-load")])
def test_another_death_is_told_by_when_it_came(under_load, kind):
    found = failure_of(Diagnosis("an illegal memory access"), LAUNCH, under_load=under_load)
    assert found.kind == kind
    assert ("under load" in found.cause) == under_load


def test_every_rule_that_is_about_running_out_is_told_as_such():
    causes = [rule.cause for rule in RULES if "out of GPU memory" in rule.cause or "no memory" in rule.cause]
    assert len(causes) > 10
    assert {failure_of(Diagnosis(cause), LAUNCH, under_load=False).kind for cause in causes} == {"out-of-memory"}


def test_only_knobs_of_the_configuration_are_a_remedy():
    failure = ConfigFailure("no-start", "x", mended=(("slots", 4), ("kv", "fp8"), ("p2p", "off")))
    config = KnobConfig.of({"slots": 8, "kv": "fp8"})
    assert drop_unusable_remedies(failure, config).mended == (("slots", 4),)

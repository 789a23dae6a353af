"""The search on effects whose truth is known: what it believes, accepts and does not, and that it
ends.
"""

import pytest
from known_effects import (
    CRASH,
    DEPTH,
    GRAPHS,
    KV,
    OUT_OF_MEMORY,
    SLOTS,
    KnownBench,
    KnownEffects,
    searched,
)
from msgspec.structs import replace

from skep.tuner import records
from skep.tuner.search import KnobSearch

GOAL = records.TuneGoal("effective_tok_s", 4)
WRITE_UP = {0: 47.0, 1: 47.0, 2: 50.0, 3: 89.5, 4: 107.0, 5: 100.0, 6: 105.0}  # not one clean hill
EFFECTS = {
    "graphs": {False: 1.0, True: 1.6},
    "slots": {1: 1.0, 2: 1.7, 3: 2.1, 4: 2.6, 6: 2.5, 8: 2.3},
    "mtp": {depth: figure / 47 for depth, figure in WRITE_UP.items()},
    "kv": {"bf16": 1.0, "fp8": 1.08},
}
HOURS = 3600.0


def effects_of(*knobs, **effects):
    return KnownEffects(knobs, {**EFFECTS, **effects}, pairs=(("mtp", "slots"),))


def run(*knobs, seed=0, goal=GOAL, budget_s=20 * HOURS, effects=None, **how):
    """A search to its end; `how`: what the bench does with a configuration."""
    effects_of_knobs = effects_of(*knobs, **(effects or {}))
    search = KnobSearch(effects_of_knobs, effects_of_knobs.baseline, goal, budget_s=budget_s)
    bench = KnownBench(effects_of_knobs, seed)
    vars(bench).update(how)
    searched(search, bench)
    return search, bench


def stages_of(search, decision):
    return [stage for stage in search.stages if stage.decision is decision]


@pytest.mark.parametrize("seed", range(4))
def test_it_finds_the_best_though_depths_are_not_one_clean_hill(seed):
    """Neighbours of a peak are looked at before it is kept."""
    search, bench = run(GRAPHS, SLOTS, DEPTH, KV, seed=seed)
    assert bench.effects.truth(search.incumbent) > 0.98 * 100 * 1.6 * 2.6 * WRITE_UP[4] / 47 * 1.08
    depth = search.incumbent["mtp"]
    looked_at = {config["mtp"] for request in bench.measured for config in request.configs}
    assert {depth - 1, depth, depth + 1} <= looked_at


def test_nothing_is_accepted_on_fewer_than_two_fresh_starts_of_either_side():
    search, bench = run(GRAPHS, SLOTS, DEPTH, KV, seed=1)
    stages = stages_of(search, records.StageDecision.ACCEPTED)
    assert stages
    for stage in stages:
        confirmed = [
            request
            for request in bench.measured
            if request.purpose == "confirm" and request.configs[-1] == stage.config
        ]
        assert 2 <= stage.starts <= len(confirmed)
        assert stage.ratio.low > 1


def test_where_nothing_differs_hardly_anything_is_accepted():
    accepted = tested = 0
    none: dict = {"graphs": {}, "slots": {}, "kv": {}}
    for seed in range(8):
        search, _ = run(GRAPHS, SLOTS, KV, seed=seed, effects=none, noise=0.03, start_noise=0.01)
        accepted += len(stages_of(search, records.StageDecision.ACCEPTED))
        tested += len(search.stages) - 1
    assert accepted <= 0.05 * tested


def test_the_same_answers_lead_to_the_same_requests():
    effects = effects_of(GRAPHS, SLOTS, KV)
    first, again = (
        KnobSearch(effects, effects.baseline, GOAL, budget_s=20 * HOURS) for _ in range(2)
    )
    bench = KnownBench(effects, 3)
    answers = searched(first, bench)
    for request, answer in zip(bench.requests, answers, strict=True):
        assert again.request == request
        again.tell(answer)
    assert again.request is None
    assert again.stages == first.stages


def test_a_dead_end_is_a_stage_with_its_reason_and_is_not_started_again():
    search, _ = run(GRAPHS, SLOTS, fails=lambda config: CRASH if config["graphs"] else None)
    failed = stages_of(search, records.StageDecision.FAILED)
    assert "illegal memory access" in failed[0].why
    assert len({stage.config for stage in failed}) == len(failed), "one of them was started twice"
    assert search.incumbent["graphs"] is False


def test_a_baseline_that_does_not_start_ends_it_at_once():
    search, bench = run(GRAPHS, fails=lambda _config: OUT_OF_MEMORY)
    assert (len(bench.requests), search.failure) == (1, OUT_OF_MEMORY)
    assert [stage.failure for stage in search.stages] == [OUT_OF_MEMORY]


def test_readings_at_which_the_client_was_the_limit_never_count():
    search, _ = run(GRAPHS, SLOTS, limited=lambda config: config["graphs"])
    assert search.incumbent["graphs"] is False
    assert any("the client was the limit" in stage.why for stage in search.stages)


FALLING = {"slots": {1: 1.0, 2: 0.7, 3: 0.6, 4: 0.5, 6: 0.4, 8: 0.3}}


@pytest.mark.parametrize(
    ("late", "effects", "knob", "value"),
    [
        (lambda config: 1.5 if config["slots"] > 2 else 0.8, {}, "slots", 2),
        (lambda config: 0.8 if config["graphs"] else 1.5, {}, "graphs", True),
        (lambda config: 0.9 if config["slots"] >= 4 else 2.0, FALLING, "slots", 4),
    ],
    ids=[
        "a faster one beyond it is not kept",
        "a faster one within it is",
        "from beyond it to within",
    ],
)
def test_the_slo_is_kept(late, effects, knob, value):
    search, _ = run(GRAPHS, SLOTS, goal=replace(GOAL, slo="ttft=1s"), effects=effects, late=late)
    assert search.incumbent[knob] == value


def test_a_ratio_is_one_of_speeds_whatever_the_slo_says():
    """Lateness decides, but it is no speed."""
    late = {"late": lambda config: 1.5 / config["slots"] ** 0.5}
    search, bench = run(GRAPHS, SLOTS, goal=replace(GOAL, slo="ttft=1s"), **late)
    with_ratio = [stage for stage in search.stages if stage.ratio is not None]
    assert with_ratio
    truth = bench.effects.truth
    for stage in with_ratio:
        before = stage.config.turned({change.knob: change.before for change in stage.changes})
        assert stage.ratio.estimate == pytest.approx(truth(stage.config) / truth(before), rel=0.1)


def test_one_failure_of_the_best_so_far_does_not_end_the_search():
    """A neighbour may have taken the card's memory for a moment."""
    effects = effects_of(GRAPHS, SLOTS)
    search = KnobSearch(effects, effects.baseline, GOAL, budget_s=20 * HOURS)
    bench = KnownBench(effects)
    bench.fails = lambda config: (
        OUT_OF_MEMORY if len(bench.requests) == 3 and config == effects.baseline else None
    )
    searched(search, bench)
    assert search.incumbent == records.KnobConfig.of({"graphs": True, "slots": 4})


@pytest.mark.parametrize(
    ("budget_s", "ok", "seconds", "max_requests"),
    [(20 * HOURS, False, 60.0, 99), (2000.0, True, 5000.0, 1)],
    ids=["worse", "no time"],
)
def test_answers_that_may_change_are_judged_and_worse_ones_turned_down(
    budget_s, ok, seconds, max_requests
):
    """Without time to judge them nothing that alters them is kept."""
    judged = records.JudgeResult(ok=ok, words="30 of 48 right against 44", seconds=seconds)
    effects = {"kv": {"bf16": 1.0, "fp8": 1.4}}
    search, bench = run(
        GRAPHS, KV, budget_s=budget_s, effects=effects, judged=lambda _config: judged
    )
    judge_requests = [
        request for request in bench.requests if isinstance(request, records.JudgeRequest)
    ]
    assert len(judge_requests) <= max_requests
    assert all(request.challenger["kv"] == "fp8" for request in judge_requests)
    if not ok:
        assert search.incumbent == records.KnobConfig.of({"graphs": True, "kv": "bf16"})
        assert stages_of(search, records.StageDecision.ANSWERS_WORSE)


@pytest.mark.parametrize("minutes", [20, 60, 180])
def test_it_ends_within_its_budget(minutes):
    search, _ = run(GRAPHS, SLOTS, DEPTH, KV, budget_s=60.0 * minutes)
    assert search.time_budget.spent_s <= 60.0 * minutes


def test_what_was_accepted_and_dies_twice_is_given_up():
    """A crash after a good start counts, however late it comes."""
    effects = effects_of(GRAPHS, SLOTS, DEPTH)
    search = KnobSearch(effects, effects.baseline, GOAL, budget_s=20 * HOURS)
    bench = KnownBench(effects)

    def worn_out(config):
        measured_rounds = sum(config in request.configs for request in bench.measured)
        if config["graphs"] and measured_rounds > 3:
            return CRASH
        return None

    bench.fails = worn_out
    searched(search, bench)
    given_up = [stage.config for stage in stages_of(search, records.StageDecision.FAILED)]
    assert any(
        stage.config["graphs"] for stage in stages_of(search, records.StageDecision.ACCEPTED)
    )
    assert given_up
    assert search.incumbent not in given_up


def test_values_that_only_work_together_are_found():
    """A layout that is refused unless the slots are fewer."""
    slots = {1: 1.0, 2: 1.2, 3: 1.3, 4: 1.4, 6: 1.5, 8: 1.6}
    effects = effects_of(GRAPHS, SLOTS, slots=slots, graphs={False: 1.0, True: 3.0})
    effects.refused = lambda config: (
        "too large" if config["graphs"] and config["slots"] > 2 else None
    )
    search = KnobSearch(
        effects, records.KnobConfig.of({"graphs": False, "slots": 8}), GOAL, budget_s=20 * HOURS
    )
    searched(search, KnownBench(effects))
    assert search.incumbent == records.KnobConfig.of({"graphs": True, "slots": 2})


SLOW_START = {"start_seconds": 120.0, "reading_seconds": 12.0}  # as vLLM on one card


@pytest.mark.parametrize("seed", range(4))
def test_an_hour_on_a_card_that_starts_in_two_minutes_tries_at_least_six_changes(seed):
    effects = effects_of(GRAPHS, SLOTS, DEPTH, KV)
    vars(effects).update(SLOW_START)
    search = KnobSearch(effects, effects.baseline, GOAL, budget_s=HOURS)
    bench = KnownBench(effects, seed)
    announced = search.time_budget.changes()
    searched(search, bench)
    tried = len(search.stages) - 1
    assert tried >= 6
    assert announced >= 6
    assert announced <= 2 * tried
    assert search.time_budget.spent_s <= HOURS
    assert bench.effects.truth(search.incumbent) > 1.5 * bench.effects.truth(effects.baseline)


def test_where_time_is_tight_the_best_so_far_is_not_started_beside_a_first_look():
    effects = effects_of(GRAPHS, SLOTS, DEPTH, KV)
    vars(effects).update(SLOW_START)
    search = KnobSearch(effects, effects.baseline, GOAL, budget_s=HOURS)
    bench = KnownBench(effects)
    searched(search, bench)
    looks = [request for request in bench.measured if request.purpose == "screen"]
    assert looks
    assert {len(request.configs) for request in looks} == {1}
    assert search.stages[0].starts == 1
    stages = stages_of(search, records.StageDecision.ACCEPTED)
    assert stages
    assert min(stage.starts for stage in stages) >= 2


def test_where_time_is_tight_the_planners_best_change_is_looked_at_first():
    effects = effects_of(GRAPHS, SLOTS, DEPTH, KV)
    vars(effects).update(SLOW_START, foreseen={"kv": {"fp8": 1.3}, "graphs": {True: 1.1}})
    search = KnobSearch(effects, effects.baseline, GOAL, budget_s=HOURS)
    bench = KnownBench(effects)
    searched(search, bench)
    first = next(request for request in bench.measured if request.purpose != "baseline")
    assert first.configs[-1] == effects.baseline.turned({"kv": "fp8"})

"""The search on effects whose truth is known: what it accepts, what it does not, and that it ends."""

from dataclasses import replace

import pytest
from known_effects import CRASH, DEPTH, GRAPHS, KV, OUT_OF_MEMORY, SLOTS, KnownBench, KnownEffects, searched

from skep.tuner.ports import CurveRequest, JudgeRequest
from skep.tuner.records import JudgeResult, KnobConfig, StageDecision, TuneGoal
from skep.tuner.search import KnobSearch

AIM = TuneGoal("effective_tok_s", 4)
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


def search_of(effects, budget_s=20 * HOURS, aim=AIM):
    return KnobSearch(effects, effects.baseline, aim, budget_s=budget_s)


@pytest.mark.parametrize("seed", range(4))
def test_it_finds_the_best_though_depths_are_not_one_clean_hill(seed):
    effects = effects_of(GRAPHS, SLOTS, DEPTH, KV)
    search, bench = search_of(effects), KnownBench(effects, seed)
    searched(search, bench)
    assert effects.truth(search.incumbent) > 0.98 * 100 * 1.6 * 2.6 * WRITE_UP[4] / 47 * 1.08


def test_nothing_is_accepted_on_fewer_than_two_starts_of_either_side():
    effects = effects_of(GRAPHS, SLOTS, DEPTH)
    search = search_of(effects)
    searched(search, KnownBench(effects, 1))
    kept = [stage for stage in search.stages if stage.decision is StageDecision.ACCEPTED]
    assert kept
    assert all(stage.starts >= 2 and stage.ratio.low > 1 for stage in kept)


def test_readings_that_made_it_look_promising_do_not_decide():
    """Every acceptance rests on rounds of its own, after all first looks at it."""
    effects = effects_of(SLOTS, DEPTH)
    search, bench = search_of(effects), KnownBench(effects, 2)
    searched(search, bench)
    for stage in search.stages:
        if stage.decision is StageDecision.ACCEPTED:
            confirmed = [one for one in bench.measured if one.purpose == "confirm" and one.configs[1] == stage.config]
            assert stage.starts <= len(confirmed)


def test_on_flat_ground_hardly_anything_is_accepted():
    effects = KnownEffects((GRAPHS, SLOTS, KV), {})
    accepted = tested = 0
    for seed in range(12):
        search = search_of(effects)
        searched(search, KnownBench(effects, seed, noise=0.03, start_noise=0.01))
        accepted += sum(stage.decision is StageDecision.ACCEPTED for stage in search.stages)
        tested += len(search.stages) - 1
    assert accepted <= 0.05 * tested


def test_the_same_answers_lead_to_the_same_requests():
    effects = effects_of(GRAPHS, SLOTS, KV)
    first, bench = search_of(effects), KnownBench(effects, 3)
    answers = searched(first, bench)
    again = search_of(effects)
    for request, answer in zip(bench.requests, answers, strict=True):
        assert again.following() == request
        again.took(answer)
    assert again.following() is None
    assert again.stages == first.stages


def test_a_dead_end_is_a_stage_with_its_reason_and_is_not_started_again():
    effects = effects_of(GRAPHS, SLOTS)
    search, bench = search_of(effects), KnownBench(effects)
    bench.fails = lambda config: CRASH if config["graphs"] else None
    searched(search, bench)
    failed = [stage for stage in search.stages if stage.decision is StageDecision.FAILED]
    assert failed
    assert "illegal memory access" in failed[0].why
    assert len({stage.config for stage in failed}) == len(failed), "one of them was started twice"
    assert search.incumbent["graphs"] is False


def test_what_asks_for_more_memory_than_ran_out_of_it_is_not_tried():
    effects = effects_of(SLOTS)
    search, bench = search_of(effects), KnownBench(effects)
    bench.fails = lambda config: OUT_OF_MEMORY if config["slots"] >= 3 else None
    searched(search, bench)
    tried = {config["slots"] for request in bench.measured for config in request.configs}
    largest = min(
        (stage.config["slots"] for stage in search.stages if stage.decision is StageDecision.FAILED), default=8
    )
    assert search.incumbent["slots"] == 2
    assert 3 in tried
    assert largest == 3


def test_a_baseline_that_does_not_start_ends_it_at_once():
    effects = effects_of(GRAPHS)
    search, bench = search_of(effects), KnownBench(effects)
    bench.fails = lambda _config: OUT_OF_MEMORY
    assert len(searched(search, bench)) == 1
    assert search.failure == OUT_OF_MEMORY
    assert search.stages == []


def test_readings_at_which_the_client_was_the_limit_never_count():
    effects = effects_of(GRAPHS, SLOTS)
    search, bench = search_of(effects), KnownBench(effects)
    bench.limited = lambda config: config["graphs"]
    searched(search, bench)
    assert search.incumbent["graphs"] is False
    assert any("the client was the limit" in stage.why for stage in search.stages)


def test_a_faster_one_beyond_the_slo_is_not_kept():
    effects = effects_of(GRAPHS, SLOTS)
    search, bench = search_of(effects, aim=replace(AIM, slo="ttft=1s")), KnownBench(effects)
    bench.late = lambda config: 1.5 if config["slots"] > 2 else 0.8
    searched(search, bench)
    assert search.incumbent["slots"] == 2


def test_a_ratio_is_one_of_speeds_whatever_the_slo_says():
    """Lateness decides, but it is no speed."""
    effects = effects_of(GRAPHS, SLOTS)
    search, bench = search_of(effects, aim=replace(AIM, slo="ttft=1s")), KnownBench(effects)
    bench.late = lambda config: 1.5 / config["slots"] ** 0.5
    searched(search, bench)
    shown = [stage for stage in search.stages if stage.ratio is not None]
    assert shown
    for stage in shown:
        before = stage.config.turned({change.knob: change.before for change in stage.changes})
        assert stage.ratio.estimate == pytest.approx(effects.truth(stage.config) / effects.truth(before), rel=0.1)


def test_a_target_is_not_reached_beyond_the_slo():
    effects = effects_of(GRAPHS, SLOTS)
    search, bench = search_of(effects, aim=replace(AIM, slo="ttft=1s", target=90.0)), KnownBench(effects)
    bench.late = lambda config: 0.8 if config["graphs"] else 1.5
    searched(search, bench)
    assert search.incumbent["graphs"] is True


def test_one_failure_of_the_best_so_far_does_not_end_the_search():
    """A neighbour may have taken the card's memory for a moment."""
    effects = effects_of(GRAPHS, SLOTS)
    search, bench = search_of(effects), KnownBench(effects)
    bench.fails = lambda config: OUT_OF_MEMORY if len(bench.requests) == 3 and config == effects.baseline else None
    searched(search, bench)
    assert search.incumbent == KnobConfig.of({"graphs": True, "slots": 4})


def test_without_time_to_judge_answers_nothing_that_alters_them_is_kept():
    effects = effects_of(GRAPHS, KV, kv={"bf16": 1.0, "fp8": 1.4})
    search, bench = search_of(effects, budget_s=2000.0), KnownBench(effects)
    bench.judged = lambda _config: JudgeResult(ok=True, words="as good", seconds=5000.0)
    searched(search, bench)
    assert sum(isinstance(request, JudgeRequest) for request in bench.requests) <= 1


def test_from_beyond_the_slo_it_climbs_to_within():
    effects = effects_of(GRAPHS, SLOTS, slots={1: 1.0, 2: 0.7, 3: 0.6, 4: 0.5, 6: 0.4, 8: 0.3})
    search, bench = search_of(effects, aim=replace(AIM, slo="ttft=1s")), KnownBench(effects)
    bench.late = lambda config: 0.9 if config["slots"] >= 4 else 2.0
    searched(search, bench)
    assert search.incumbent["slots"] == 4


def test_answers_are_judged_only_where_they_may_change_and_worse_ones_are_turned_down():
    effects = effects_of(GRAPHS, KV, kv={"bf16": 1.0, "fp8": 1.4})
    search, bench = search_of(effects), KnownBench(effects)
    bench.judged = lambda _config: JudgeResult(ok=False, words="30 of 48 right against 44", seconds=60.0)
    searched(search, bench)
    asked = [request for request in bench.requests if isinstance(request, JudgeRequest)]
    assert asked
    assert all(request.challenger["kv"] == "fp8" for request in asked)
    assert search.incumbent == KnobConfig.of({"graphs": True, "kv": "bf16"})
    assert StageDecision.ANSWERS_WORSE in {stage.decision for stage in search.stages}


def test_it_stops_at_the_target():
    effects = effects_of(GRAPHS, SLOTS, DEPTH)
    search, bench = search_of(effects, aim=replace(AIM, target=150.0)), KnownBench(effects)
    searched(search, bench)
    assert search.ended == "the target is reached"
    assert sum(stage.decision is StageDecision.ACCEPTED for stage in search.stages) == 1


@pytest.mark.parametrize("minutes", [20, 60, 180])
def test_it_ends_within_its_budget_and_with_a_curve(minutes):
    effects = effects_of(GRAPHS, SLOTS, DEPTH, KV)
    search, bench = search_of(effects, budget_s=60.0 * minutes), KnownBench(effects)
    searched(search, bench)
    assert search.spent_s <= 60.0 * minutes
    assert isinstance(bench.requests[-1], CurveRequest)


def test_what_was_accepted_and_dies_twice_is_given_up():
    """A crash after a good start counts, however late it comes."""
    effects = effects_of(GRAPHS, SLOTS, DEPTH)
    search, bench = search_of(effects), KnownBench(effects)

    def worn_out(config):
        seen = sum(config in request.configs for request in bench.measured)
        return CRASH if config["graphs"] and seen > 3 else None

    bench.fails = worn_out
    searched(search, bench)
    accepted = [stage for stage in search.stages if stage.decision is StageDecision.ACCEPTED and stage.config["graphs"]]
    given_up = [stage for stage in search.stages if stage.decision is StageDecision.FAILED]
    assert accepted
    assert given_up
    assert search.incumbent not in [stage.config for stage in given_up]


def test_neighbours_of_a_peak_are_looked_at_before_it_is_kept():
    effects = effects_of(DEPTH)
    search, bench = search_of(effects), KnownBench(effects, 5)
    searched(search, bench)
    depth = search.incumbent["mtp"]
    looked_at = {config["mtp"] for request in bench.measured for config in request.configs}
    assert {depth - 1, depth, depth + 1} <= looked_at


def test_values_that_only_work_together_are_found():
    """A layout that is refused unless the slots are fewer."""
    slots = {1: 1.0, 2: 1.2, 3: 1.3, 4: 1.4, 6: 1.5, 8: 1.6}
    effects = effects_of(GRAPHS, SLOTS, slots=slots, graphs={False: 1.0, True: 3.0})
    effects.refused = lambda config: "too large" if config["graphs"] and config["slots"] > 2 else None
    start = KnobConfig.of({"graphs": False, "slots": 8})
    search, bench = KnobSearch(effects, start, AIM, budget_s=20 * HOURS), KnownBench(effects)
    searched(search, bench)
    assert search.incumbent == KnobConfig.of({"graphs": True, "slots": 2})

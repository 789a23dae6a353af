"""What is believed of configurations that were not measured, and which values are suspected of dead ends."""

import math

import pytest
from known_effects import GRAPHS, KV, SLOTS, KnownEffects

from skep.tuner.candidates import best_config_with
from skep.tuner.failures import FailureSuspects
from skep.tuner.measurements import Belief, Measurements, Surrogate
from skep.tuner.records import ConfigFailure, KnobConfig, MeasurementRound, ServerStart


def config(graphs=False, slots=1, kv="bf16"):
    return KnobConfig.of({"graphs": graphs, "slots": slots, "kv": kv})


EFFECTS = KnownEffects((GRAPHS, SLOTS, KV), {}, foreseen={"graphs": {True: 1.5}}, pairs=(("slots", "kv"),))


def surrogate_of(*seen):
    """`seen`: configurations, the round of each and what it scored."""
    surrogate = Surrogate(EFFECTS, config())
    for one, round_, score in seen:
        surrogate.took(one, round_, score, 0.0001)
    return surrogate


def test_before_anything_is_measured_the_planner_is_believed_but_not_to_the_letter():
    belief = surrogate_of().gain(config(graphs=True), config())
    assert belief.mean == pytest.approx(math.log(1.5))
    assert 0.05 < belief.deviation < 0.4


def test_what_was_measured_wins_over_what_was_foreseen():
    rounds = [
        (one, number, score) for number in range(3) for one, score in ((config(), 4.0), (config(graphs=True), 3.8))
    ]
    belief = surrogate_of(*rounds).gain(config(graphs=True), config())
    assert belief.mean == pytest.approx(-0.2, abs=0.03)
    assert belief.deviation < 0.05


def test_an_effect_seen_here_is_expected_elsewhere_and_of_neighbours_on_a_ladder():
    surrogate = surrogate_of((config(), 1, 4.0), (config(slots=4), 1, 4.7))
    assert surrogate.gain(config(graphs=True, slots=4), config(graphs=True)).mean > 0.3
    near, far = (surrogate.gain(config(slots=slots), config()).mean for slots in (6, 2))
    assert near > 0.1
    assert far > 0
    other = config(graphs=True, slots=3, kv="fp8")
    assert surrogate.mean_gain(other, config()) == pytest.approx(surrogate.gain(other, config()).mean)


def test_a_round_that_was_slow_for_all_says_nothing_about_any():
    first = (config(), 1, 4.0), (config(slots=4), 1, 4.0)
    before, after = surrogate_of(*first), surrogate_of(*first, (config(), 2, 3.97), (config(slots=4), 2, 3.97))
    expected = pytest.approx(before.gain(config(slots=4), config()).mean, abs=0.01)
    assert after.gain(config(slots=4), config()).mean == expected


@pytest.mark.parametrize(("mean", "deviation"), [(-0.5, 0.1), (0.0, 0.1), (0.3, 0.0), (-0.1, 0.0)])
def test_hope_is_never_below_the_mean_nor_below_nothing(mean, deviation):
    belief = Belief(mean, deviation)
    assert belief.hope >= max(0.0, mean)
    assert 0 <= belief.chance <= 1


def test_what_every_failure_has_is_trusted_less_than_what_only_one_has():
    suspicion = FailureSuspects()
    suspicion.ran(config())
    suspicion.failed(config(graphs=True, slots=4))
    suspicion.failed(config(graphs=True, slots=4, kv="fp8"))
    suspicion.failed(config(graphs=True, slots=6))
    assert suspicion.trust(config(graphs=True, slots=2)) < suspicion.trust(config(slots=4))


def test_what_has_run_is_cleared():
    suspects = FailureSuspects()
    assert suspects.trust(config(graphs=True)) == 1
    suspects.failed(config(graphs=True, slots=4))
    before = suspects.trust(config(graphs=True))
    suspects.ran(config(graphs=True, slots=2))
    assert suspects.trust(config(graphs=True)) > before


def test_a_value_that_is_refused_here_is_tried_with_what_it_needs_and_nothing_else():
    effects = KnownEffects((GRAPHS, SLOTS, KV), {}, foreseen={"graphs": {True: 2.0}})
    effects.refused = lambda one: "too large" if one["graphs"] and one["slots"] > 2 else None
    here = config(slots=8)
    found = best_config_with(Measurements(effects, here), here, "graphs", True)
    assert (found["graphs"], found["kv"]) == (True, "bf16")
    assert found["slots"] in (1, 2)
    effects.refused = lambda one: "never" if one["graphs"] else None
    assert best_config_with(Measurements(effects, here), here, "graphs", True) is None


def test_of_two_that_the_planner_can_weigh_the_heavier_is_not_tried_after_the_lighter_ran_out_of_memory():
    effects = KnownEffects((GRAPHS, SLOTS, KV), {})
    effects.spare_bytes = lambda one: 100.0 - 10 * one["slots"] - 15 * one["graphs"]
    book = Measurements(effects, config())
    failure = ConfigFailure("out-of-memory", "no memory left", "CUDA out of memory")
    book.took(MeasurementRound((ServerStart(config(slots=4), 1.0, failure=failure),), 10.0))
    assert book.refusal(config(graphs=True, slots=3)) is not None
    assert book.refusal(config(slots=3)) is None
    assert book.is_narrow(config(graphs=True, slots=3))

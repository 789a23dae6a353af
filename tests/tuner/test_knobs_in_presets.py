"""From configurations to presets and back."""

from dataclasses import replace
from pathlib import Path

import pytest

from skep.catalog.options import Draft, EngineOptions
from skep.catalog.presets import Preset
from skep.config.presets import all_presets, find_preset
from skep.errors import UserError
from skep.planner.rigs import parse_rig
from skep.planner.setup import Layout
from skep.tuner.baselines import baseline_of, prepared
from skep.tuner.knobs import (
    TuneMachine,
    apply_config,
    config_of,
    knob_value,
    layout_of,
    layout_words,
    parse_layout,
    space_of,
    with_layout,
)
from skep.tuner.records import Knob, KnobConfig, TuneGoal

AIM = TuneGoal("effective_tok_s", 4)
NOWHERE = Path("nowhere")
EMBEDDED = baseline_of("smollm2-135m", AIM, TuneMachine(4), engine="embedded")


def shipped():
    return [find_preset(name, NOWHERE) for name in all_presets(NOWHERE)]


def box_of(preset: Preset) -> TuneMachine:
    return TuneMachine(8, parse_rig(preset.hardware, preset.link))


@pytest.mark.parametrize("preset", [*shipped(), EMBEDDED], ids=lambda preset: preset.name)
def test_a_preset_turned_to_where_it_stands_is_itself(preset):
    """Its own words are kept: nothing is said that it left to the engine."""
    box = TuneMachine(4) if preset is EMBEDDED else box_of(preset)
    knobs = space_of(preset, AIM, box, named=("prefix_cache",)).knobs
    assert apply_config(preset, config_of(preset, knobs)) == preset
    base = prepared(preset, AIM, box)
    assert apply_config(base, config_of(base, knobs)) == base


@pytest.mark.parametrize("preset", [*shipped(), EMBEDDED], ids=lambda preset: preset.name)
def test_every_value_of_every_knob_is_found_again_in_the_preset(preset):
    box = TuneMachine(4) if preset is EMBEDDED else box_of(preset)
    base = prepared(preset, AIM, box)
    knobs = space_of(base, AIM, box, named=("prefix_cache",)).knobs
    here = config_of(base, knobs)
    drafts = {name: 0 for name in ("mtp", "ngram") if name in here.as_dict}
    for knob in knobs:
        for value in knob.values:
            wanted = here.turned({**(drafts if knob.name in drafts else {}), knob.name: value})
            assert config_of(apply_config(base, wanted), knobs) == wanted, knob.name


def test_threads_stay_as_configured_when_replicas_come_and_go():
    """A preset without `threads` divides the cores; a configuration says a number and means it."""
    bare = replace(EMBEDDED, threads=None, options=replace(EMBEDDED.options, threads_batch=None))
    base = prepared(bare, AIM, TuneMachine(4))
    assert (base.threads, base.options.threads_batch) == (4, 4)
    two = apply_config(base, KnobConfig.of({"replicas": 2, "threads": 4, "threads_batch": 4}))
    assert (two.replicas, two.threads) == (2, 4)


def test_one_method_drafts_at_a_time():
    base = replace(EMBEDDED, options=replace(EMBEDDED.options, draft=Draft("ngram", 4)))
    assert knob_value(base, "ngram") == 4
    assert apply_config(base, KnobConfig.of({"ngram": 0})).options.draft is None
    assert apply_config(base, KnobConfig.of({"ngram": 0, "mtp": 3})).options.draft == Draft("mtp", 3)
    with pytest.raises(UserError, match="mtp n=3 and ngram n=4 cannot be both"):
        apply_config(base, KnobConfig.of({"ngram": 4, "mtp": 3}))


def test_a_draft_that_no_knob_is_about_is_left_alone():
    """Its model goes with it where the depth is turned."""
    base = replace(EMBEDDED, engine="vllm", options=EngineOptions(draft=Draft("eagle", 3, "some/head")))
    assert apply_config(base, KnobConfig.of({"mtp": 0, "ngram": 0})) == base
    assert apply_config(base, KnobConfig.of({"eagle": 5})).options.draft == Draft("eagle", 5, "some/head")


def test_fewer_slots_keep_one_for_others():
    base = replace(EMBEDDED, slots=8, reserve=4)
    assert apply_config(base, KnobConfig.of({"slots": 2})).reserve == 1


def test_another_checkpoint_does_not_inherit_the_format_of_the_first():
    base = replace(EMBEDDED, engine="vllm", checkpoint="a/one-AWQ", options=EngineOptions(quant="awq_marlin"))
    other = apply_config(base, KnobConfig.of({"checkpoint": "a/one-GPTQ"}))
    assert (other.checkpoint, other.options.quant) == ("a/one-GPTQ", None)
    assert apply_config(base, KnobConfig.of({"checkpoint": "a/one-AWQ"})).options.quant == "awq_marlin"


def test_an_unknown_knob_is_refused():
    with pytest.raises(UserError, match="no knob is called `speed`"):
        apply_config(EMBEDDED, KnobConfig.of({"speed": 11}))
    with pytest.raises(UserError, match="no knob is called `speed`"):
        config_of(EMBEDDED, [Knob("speed", "speed", (1, 2))])


@pytest.mark.parametrize(
    ("words", "layout"),
    [
        ("TP=1", Layout()),
        ("2x TP=1", Layout(replicas=2)),
        ("TP=2 + EP=2", Layout(2, 1, 2)),
        ("2x TP=2 + PP=2", Layout(2, 2, 1, 2)),
        ("2x TP=1 + EP=2", Layout(1, 1, 2, 2)),
    ],
)
def test_layouts_are_said_in_words_and_written_into_presets(words, layout):
    assert layout_words(layout) == words
    assert parse_layout(words) == layout
    assert layout_of(with_layout(replace(EMBEDDED, engine="vllm"), layout)) == layout


def test_replicas_that_share_experts_are_one_engine():
    shared = with_layout(replace(EMBEDDED, engine="vllm"), Layout(1, 1, 2, 2))
    assert (shared.replicas, shared.options.dp, shared.options.ep) == (1, 2, True)


def test_named_cards_are_kept_as_far_as_they_are_wanted():
    base = replace(EMBEDDED, engine="vllm", gpus=(2, 3), options=EngineOptions(tp=2))
    assert with_layout(base, Layout()).gpus == (2,)
    assert with_layout(base, Layout(replicas=2)).gpus == (2, 3)
    assert with_layout(base, Layout(tp=4)).gpus == ()
    both = replace(base, options=EngineOptions())
    assert apply_config(both, KnobConfig.of({"layout": "TP=1"})).gpus == (2,)
    assert apply_config(both, KnobConfig.of({"layout": "TP=2"})).gpus == (2, 3)


def test_nonsense_is_no_layout():
    with pytest.raises(UserError, match="is no layout"):
        parse_layout("two cards")

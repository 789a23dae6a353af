"""What is offered to be turned, by engine and machine."""

import dataclasses
from pathlib import Path

import pytest
from msgspec.structs import replace

from skep.catalog.gpus import Gpu, HostFacts
from skep.catalog.models import geometry
from skep.catalog.presets import Draft, EngineOptions
from skep.config.presets import all_presets, contradictions, find_preset
from skep.config.rigs import parse_rig, rig_of_host
from skep.deploy.preset_setup import layout_of, quant_of
from skep.engines.base import Launch
from skep.engines.llamacpp import Embedded, LlamaCpp
from skep.engines.sglang import Sglang
from skep.engines.vllm import Vllm
from skep.errors import DoesNotFit, UserError
from skep.planner.setup import QUANTS, Layout
from skep.tuner.knobs import (
    TuneMachine,
    apply_config,
    config_of,
    knob_value,
    layout_words,
    pairs_of,
    parse_layout,
    space_of,
    with_layout,
)
from skep.tuner.predictions import Predictor
from skep.tuner.presets import baseline_of, prepared
from skep.tuner.records import KnobConfig, TuneGoal

AIM = TuneGoal("effective_tok_s", 4)
DUAL = TuneMachine(16, parse_rig("2x rtx-3090"))
ADAPTERS = {"vllm": Vllm, "sglang": Sglang, "llamacpp": LlamaCpp, "embedded": Embedded}


def dense(**changes):
    return baseline_of("qwen3.6-27b", AIM, DUAL, engine="vllm", simulated=True, **changes)


def values(base, box=DUAL, goal=AIM, **how):
    """What is offered of a preset, by knob."""
    return {knob.name: knob.values for knob in space_of(base, goal, box, **how)}


def test_vllm_on_two_cards_can_turn_what_the_write_up_turned():
    names = {"graphs", "memory_share", "slots", "kv", "batched_tokens", "mtp", "ngram", "layout"}
    assert names <= set(values(dense()))


def test_knobs_of_vllm_on_two_cards_have_the_values_that_are_worth_a_try():
    offered = values(dense())
    assert {"2x TP=1", "TP=2"} <= set(offered["layout"])
    assert offered["kv"] == ("auto", "fp8_e5m2")
    assert offered["slots"] == (1, 2, 3, 4, 6, 8)
    assert offered["mtp"] == tuple(range(9))


def test_pairs_that_interact_are_of_knobs_that_are_offered():
    knobs = space_of(dense(), AIM, DUAL)
    assert {("slots", "memory_share"), ("mtp", "layout")} <= set(pairs_of(knobs))
    assert {name for pair in pairs_of(knobs) for name in pair} <= {knob.name for knob in knobs}


def test_a_mixture_may_spread_its_experts():
    experts = baseline_of("qwen3.6-35b-a3b", AIM, DUAL, engine="vllm", simulated=True)
    assert "TP=2 + EP=2" in values(experts)["layout"]


def test_a_model_without_mtp_layers_is_offered_none():
    box = TuneMachine(8, parse_rig("rtx-4090"))
    assert (
        not {"mtp", "layout"}
        & values(baseline_of("qwen3-8b", AIM, box, engine="vllm", simulated=True), box).keys()
    )


def test_the_cpu_engine_turns_threads_and_batches():
    base = baseline_of("smollm2-135m", AIM, TuneMachine(4), engine="embedded")
    offered = values(base, TuneMachine(4))
    assert set(offered) == {
        *(
            "slots",
            "threads",
            "replicas",
            "kv",
            "kv_layout",
            "flash_attention",
            "batched_tokens",
            "ngram",
        )
    }
    assert offered["threads"] == (1, 2, 3, 4)
    assert offered["replicas"] == (1, 2, 4)
    assert "replicas" not in values(base, TuneMachine(4), TuneGoal("task_tok_s", 1))


def test_llama_cpp_on_cards_splits_by_layer_by_tensor_or_not_at_all():
    base = baseline_of("qwen3-8b", AIM, DUAL, engine="llamacpp", checkpoint="qwen3-8b-Q4_K_M.gguf")
    offered = values(base)
    assert set(offered["layout"]) == {"2x TP=1", "TP=2", "TP=1 + PP=2"}
    assert "threads" not in offered


def test_ollama_decides_most_by_itself():
    base = replace(
        baseline_of("qwen3-8b", AIM, TuneMachine(4), engine="embedded"), engine="ollama"
    )
    assert set(values(base)) == {"slots", "kv"}


def test_what_the_presets_own_flags_say_is_left_alone():
    """Turning it as well would put both on one command line."""
    base = replace(
        dense(),
        extra=("--enforce-eager", "--speculative-config={}", "--max-num-batched-tokens", "4096"),
    )
    assert not {"graphs", "mtp", "ngram", "batched_tokens"} & {
        knob.name for knob in space_of(base, AIM, DUAL)
    }


def test_a_base_off_the_ladder_becomes_a_rung_of_it():
    base = apply_config(dense(), config_of(dense(), ()).turned({"slots": 5, "memory_share": 0.87}))
    offered = values(base)
    assert offered["slots"] == (1, 2, 3, 4, 5, 6, 8)
    assert offered["memory_share"] == (0.8, 0.85, 0.87, 0.9, 0.92, 0.95)


def test_no_step_is_offered_beyond_all_prompts_at_once_or_half_an_answer():
    """They would be the same configuration under another number."""
    small = TuneGoal("effective_tok_s", 2, 32, 16)
    base = baseline_of("smollm2-135m", small, TuneMachine(2), engine="embedded")
    offered = values(base, TuneMachine(2), small)
    assert offered["batched_tokens"] == (64, 128, 512)  # the last is its own
    assert offered["ngram"] == (0, 2, 4, 8)
    assert values(dense(), goal=replace(AIM, input_tokens=2000))["batched_tokens"][-1] == 8192


def test_another_checkpoint_does_not_inherit_the_format_of_the_first():
    """So `--checkpoint` means it, and tunings of earlier versions that chose one keep their
    choice.
    """
    names = ("a/x-AWQ", "a/x-GPTQ")
    base = baseline_of(
        "qwen3.6-27b", AIM, DUAL, engine="vllm", checkpoint=names[0], quant=QUANTS["awq"]
    )
    named = replace(base, options=replace(base.options, quant="awq_marlin"))
    same, changed = (apply_config(named, KnobConfig.of({"checkpoint": name})) for name in names)
    assert (same.options.quant, changed.options.quant, changed.checkpoint) == (
        "awq_marlin",
        None,
        names[1],
    )


@pytest.mark.parametrize(
    ("model", "hardware", "engine"),
    [
        ("qwen3.6-27b", "2x rtx-3090", "vllm"),
        ("qwen3.6-35b-a3b", "2x rtx-3090", "vllm"),
        ("qwen3-8b", "rtx-4090", "vllm"),
        ("qwen3-8b", "rtx-5090", "sglang"),
        ("qwen3.6-27b", "4x rtx-3090", "vllm"),
        ("qwen3-8b", "2x rtx-3090", "llamacpp"),
        ("smollm2-135m", None, "embedded"),
    ],
)
def test_every_value_gives_a_sound_preset_or_a_refusal(model, hardware, engine):
    rig = parse_rig(hardware) if hardware else None
    box = TuneMachine(4, rig)
    base = baseline_of(model, AIM, box, engine=engine, simulated=True)
    assert contradictions(base) == []
    knobs = space_of(base, AIM, box)
    effects = Predictor(base, rig, AIM, knobs)
    start = config_of(base, knobs)
    assert effects.refusal(start) is None
    for knob in knobs:
        assert start[knob.name] in knob.values
        for value in knob.values:
            config = start.turned({knob.name: value})
            if effects.refusal(config) is None:
                preset = apply_config(base, config)
                assert contradictions(preset) == []
                # Where an engine is really started, its checkpoint's own.
                options = replace(preset.options, quant=None)
                size = (preset.slots, preset.context_tokens, preset.threads or 0)
                launch = Launch(
                    "r", engine, "m", Path("w.gguf"), *size, checkpoint="w.gguf", options=options
                )
                assert (
                    list(ADAPTERS[engine]().refusals(launch)) == []
                    or knob.name == "flash_attention"
                )


def test_a_safe_beginning_is_plain():
    base = dense()
    options = dense().options
    assert (options.graphs, options.draft, options.kv, options.memory_share) == (
        False,
        None,
        None,
        0.85,
    )
    assert (base.replicas, base.slots) == (1, 4)
    plain = baseline_of("smollm2-135m", AIM, TuneMachine(2), engine="embedded")
    assert (plain.slots, plain.threads, plain.replicas, plain.hardware) == (1, 2, 1, "cpu")


def test_a_model_of_nobodys_catalogue_is_called_as_its_file_is():
    """Else the preset of the best so far could not be read again."""
    model = geometry("smollm2-135m")
    box = TuneMachine(2, model=dataclasses.replace(model, id="some-header-says-this"))
    base = baseline_of(
        "/models/Mine.Q4_1.gguf", AIM, box, engine="embedded", checkpoint="/models/Mine.Q4_1.gguf"
    )
    assert base.model == "mine.q4_1"
    assert contradictions(base) == []
    assert contradictions(replace(base, model="mein"))[0].message == "no model is called `mein`"
    unknown = baseline_of(
        "some/Model", AIM, TuneMachine(2), engine="vllm", checkpoint="some/Model"
    )
    assert (unknown.model, contradictions(unknown)) == ("model", [])


def test_cards_of_nobodys_catalogue_are_written_as_their_relative_with_a_note():
    gpu = Gpu(0, "NVIDIA Experimental 9000", 20 << 30, compute_capability="8.6")
    host = HostFacts(
        "Linux", "x86_64", "3.11", "a CPU", 8, (), 64 << 30, 60 << 30, 1024, 1024, gpus=(gpu,) * 2
    )
    box = TuneMachine(8, rig_of_host(host).rig)
    base = baseline_of(
        "qwen3-8b", AIM, box, engine="vllm", checkpoint="a/x-AWQ", quant=QUANTS["awq"]
    )
    assert base.hardware.startswith("2x ")
    assert contradictions(base) == []
    [note] = base.notes
    assert "for NVIDIA Experimental 9000, which is not in the catalogue" in note


WIDE = replace(AIM, min_context=16384)
LONG = replace(AIM, input_tokens=9000)


def test_there_is_room_for_a_task_and_for_what_was_asked():
    assert (
        baseline_of("qwen3.6-27b", WIDE, DUAL, engine="vllm", simulated=True).context_tokens
        == 16384
    )
    assert prepared(replace(dense(), context_tokens=1024), LONG, DUAL).context_tokens == 9216


@pytest.mark.parametrize(
    ("model", "goal", "engine", "checkpoint", "message"),
    [
        (
            "smollm2-135m",
            WIDE,
            "embedded",
            None,
            "--min-context 16384 is beyond the 8192 tokens of smollm2-135m",
        ),
        ("smollm2-135m", LONG, "embedded", None, "a task of 9128 tokens is beyond the 8192"),
        ("nobody/knows-it", AIM, "vllm", "nobody/knows-it", "is not in the catalogue"),
        ("llama-3.1-405b", AIM, "vllm", "a/x", "does not fit"),
    ],
)
def test_what_cannot_begin_is_refused(model, goal, engine, checkpoint, message):
    with pytest.raises((UserError, DoesNotFit), match=message):
        baseline_of(model, goal, DUAL, engine=engine, checkpoint=checkpoint)


@pytest.mark.parametrize(
    ("engine", "checkpoint", "quant"),
    [
        ("vllm", "org/Model-AWQ-4bit", "awq"),
        ("vllm", "Lorbus/Qwen3.6-27B-int4-AutoRound", "autoround"),
        ("vllm", "org/Model", "bf16"),
        ("vllm", "org/Model-FP8", "fp8"),
        ("embedded", "SmolLM2-135M-Instruct.Q4_1.gguf", "q4_k_m"),
        ("llamacpp", "org/model:Q8_0", "q8_0"),
        ("llamacpp", "model-UD-Q4_K_XL.gguf", "q4_k_m"),
    ],
)
def test_formats_are_read_from_names(engine, checkpoint, quant):
    base = replace(
        dense(), engine=engine, checkpoint=checkpoint, options=replace(dense().options, quant=None)
    )
    assert quant_of(base).id == quant


NOWHERE = Path("nowhere")
EMBEDDED = baseline_of("smollm2-135m", AIM, TuneMachine(4), engine="embedded")
VLLM = replace(EMBEDDED, engine="vllm")


@pytest.mark.parametrize(
    "preset",
    [*(find_preset(name, NOWHERE) for name in all_presets(NOWHERE)), EMBEDDED],
    ids=lambda preset: preset.name,
)
def test_every_value_of_every_knob_is_found_again_in_the_preset(preset):
    """Turned to where it stands it is itself: nothing is said that it left to the engine."""
    if preset is EMBEDDED:
        box = TuneMachine(4)
    else:
        box = TuneMachine(8, parse_rig(preset.hardware, preset.link))
    base = prepared(preset, AIM, box)
    for candidate in (preset, base):
        knobs = space_of(candidate, AIM, box)
        config = config_of(candidate, knobs)
        assert apply_config(candidate, config) == candidate
    drafts = {name: 0 for name in ("mtp", "ngram") if name in config.as_dict}
    for knob in knobs:
        for value in knob.values:
            turned = config.turned({**(drafts if knob.name in drafts else {}), knob.name: value})
            assert config_of(apply_config(base, turned), knobs) == turned, knob.name


def test_one_method_drafts_at_a_time():
    base = replace(EMBEDDED, options=replace(EMBEDDED.options, draft=Draft("ngram", 4)))
    assert knob_value(base, "ngram") == 4
    assert apply_config(base, KnobConfig.of({"ngram": 0})).options.draft is None
    assert apply_config(base, KnobConfig.of({"ngram": 0, "mtp": 3})).options.draft == Draft(
        "mtp", 3
    )
    with pytest.raises(UserError, match="mtp n=3 and ngram n=4 cannot be combined"):
        apply_config(base, KnobConfig.of({"ngram": 4, "mtp": 3}))


def test_a_draft_that_no_knob_is_about_is_left_alone():
    """Its model goes with it where the depth is turned, which is offered where the preset names
    that model.
    """
    base = replace(VLLM, options=EngineOptions(draft=Draft("eagle", 3, "some/head")))
    assert values(base)["eagle"] == (0, 1, 2, 3, 4, 5, 6, 8)
    assert apply_config(base, KnobConfig.of({"mtp": 0, "ngram": 0})) == base
    assert apply_config(base, KnobConfig.of({"eagle": 5})).options.draft == Draft(
        "eagle", 5, "some/head"
    )


def test_a_layout_that_is_none_is_refused():
    with pytest.raises(UserError, match="is not a layout"):
        parse_layout("two cards")


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
    assert layout_of(with_layout(VLLM, layout)) == layout


def test_named_cards_reserved_slots_and_threads_are_kept_as_far_as_they_are_wanted():
    base = replace(VLLM, gpus=(2, 3), options=EngineOptions(tp=2))
    for layout, gpus in ((Layout(), (2,)), (Layout(replicas=2), (2, 3)), (Layout(tp=4), ())):
        assert with_layout(base, layout).gpus == gpus
    both = replace(base, options=EngineOptions())
    for words, gpus in (("TP=1", (2,)), ("TP=2", (2, 3))):
        assert apply_config(both, KnobConfig.of({"layout": words})).gpus == gpus
    shared = with_layout(VLLM, Layout(1, 1, 2, 2))
    assert (shared.replicas, shared.options.dp, shared.options.ep) == (1, 2, True), (
        "they share experts: one engine"
    )
    assert (
        apply_config(replace(EMBEDDED, slots=8, reserve=4), KnobConfig.of({"slots": 2})).reserve
        == 1
    )
    bare = replace(EMBEDDED, threads=None, options=replace(EMBEDDED.options, threads_batch=None))
    whole = prepared(bare, AIM, TuneMachine(4))  # a preset without `threads` divides the cores
    assert whole.threads == 4
    assert (
        apply_config(
            whole, KnobConfig.of({"replicas": 2, "threads": 4, "threads_batch": 4})
        ).threads
        == 4
    )

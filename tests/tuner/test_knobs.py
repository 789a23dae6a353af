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
from skep.engines.base import Launch
from skep.engines.llamacpp import Embedded, LlamaCpp
from skep.engines.vllm import Sglang, Vllm
from skep.errors import DoesNotFit, UserError
from skep.planner.candidates import offered_quants
from skep.planner.quants import QUANTS
from skep.planner.setup import Layout
from skep.tuner.baselines import baseline_of, prepared
from skep.tuner.knobs import (
    TuneMachine,
    apply_config,
    config_of,
    knob_value,
    layout_of,
    layout_words,
    pairs_of,
    parse_layout,
    quant_of,
    space_of,
    with_layout,
)
from skep.tuner.predictions import Predictor
from skep.tuner.records import Knob, KnobConfig, TuneGoal

AIM = TuneGoal("effective_tok_s", 4)
DUAL = TuneMachine(16, parse_rig("2x rtx-3090"))
ADAPTERS = {"vllm": Vllm, "sglang": Sglang, "llamacpp": LlamaCpp, "embedded": Embedded}


def dense(**changes):
    return baseline_of("qwen3.6-27b", AIM, DUAL, engine="vllm", simulated=True, **changes)


def values(base, box=DUAL, goal=AIM, **how):
    """What is offered of a preset, by knob."""
    return {knob.name: knob.values for knob in space_of(base, goal, box, **how).knobs}


def test_vllm_on_two_cards_can_turn_what_the_write_up_turned():
    found = values(dense(), quants=("awq", "gptq"))
    assert {"graphs", "memory_share", "slots", "kv", "batched_tokens", "mtp", "ngram", "layout", "quant"} <= set(found)
    assert {"2x TP=1", "TP=2"} <= set(found["layout"])
    assert found["kv"] == ("auto", "fp8_e5m2")
    assert found["slots"] == (1, 2, 3, 4, 6, 8)
    assert found["mtp"] == tuple(range(9))
    knobs = space_of(dense(), AIM, DUAL).knobs
    assert {("slots", "memory_share"), ("mtp", "layout")} <= set(pairs_of(knobs))
    assert {name for pair in pairs_of(knobs) for name in pair} <= {knob.name for knob in knobs}


def test_a_model_without_mtp_layers_is_offered_none_and_a_prefix_cache_that_is_on_only_by_name():
    """A load of fresh prompts sees what the cache costs and not what it brings."""
    box = TuneMachine(8, parse_rig("rtx-4090"))
    base = baseline_of("qwen3-8b", AIM, box, engine="vllm", simulated=True)
    assert not {"mtp", "layout", "prefix_cache"} & set(values(base, box))
    assert "prefix_cache" in values(base, box, named=("prefix_cache",))


def test_experts_can_be_spread_where_there_are_any():
    base = baseline_of("qwen3.6-35b-a3b", AIM, DUAL, engine="vllm", simulated=True)
    assert "TP=2 + EP=2" in values(base)["layout"]


def test_the_cpu_engine_turns_threads_and_batches():
    base = baseline_of("smollm2-135m", AIM, TuneMachine(4), engine="embedded")
    found = values(base, TuneMachine(4))
    assert set(found) == {"slots", "threads", "threads_batch", "replicas", "kv", "kv_layout", "flash_attention",
                          "batch", "batched_tokens", "ngram"}  # fmt: skip
    assert found["threads"] == (1, 2, 3, 4)
    assert found["replicas"] == (1, 2, 4)
    assert "replicas" not in values(base, TuneMachine(4), TuneGoal("task_tok_s", 1))


def test_llama_cpp_on_cards_splits_by_layer_by_tensor_or_not_at_all():
    base = baseline_of("qwen3-8b", AIM, DUAL, engine="llamacpp", checkpoint="qwen3-8b-Q4_K_M.gguf")
    found = values(base)
    assert set(found["layout"]) == {"2x TP=1", "TP=2", "TP=1 + PP=2"}
    assert config_of(base, space_of(base, AIM, DUAL).knobs)["layout"] == "TP=1 + PP=2"  # by itself it takes all cards
    assert "threads" not in found


def test_ollama_has_few_knobs_and_says_so():
    base = replace(baseline_of("qwen3-8b", AIM, TuneMachine(4), engine="embedded"), engine="ollama")
    space = space_of(base, AIM, DUAL)
    assert {knob.name for knob in space.knobs} == {"slots", "kv"}
    assert space.left_alone == ("ollama decides most by itself: only slots and the KV type can be tuned",)


def test_what_the_presets_own_flags_say_is_left_alone():
    """Turning it as well would put both on one command line."""
    base = replace(dense(), extra=("--enforce-eager", "--speculative-config={}", "--max-num-batched-tokens", "4096"))
    space = space_of(base, AIM, DUAL)
    assert not {"graphs", "mtp", "ngram", "batched_tokens"} & {knob.name for knob in space.knobs}
    assert "graphs is not tuned: the preset's own `--enforce-eager` sets it" in space.left_alone


def test_a_base_off_the_ladder_becomes_a_rung_of_it():
    base = apply_config(dense(), config_of(dense(), ()).turned({"slots": 5, "memory_share": 0.87}))
    found = values(base)
    assert found["slots"] == (1, 2, 3, 4, 5, 6, 8)
    assert found["memory_share"] == (0.8, 0.85, 0.87, 0.9, 0.92, 0.95)


def test_no_step_is_offered_beyond_all_prompts_at_once_or_half_an_answer():
    """They would be the same configuration under another number."""
    small = TuneGoal("effective_tok_s", 2, 32, 16)
    base = baseline_of("smollm2-135m", small, TuneMachine(2), engine="embedded")
    found = values(base, TuneMachine(2), small)
    assert (found["batched_tokens"], found["batch"]) == ((64, 128, 512), (256, 512, 2048))  # the last is its own
    assert found["ngram"] == (0, 2, 4, 8)
    assert values(dense(), goal=replace(AIM, input_tokens=2000))["batched_tokens"][-1] == 8192


def test_two_checkpoints_are_a_choice_that_may_answer_differently():
    base = baseline_of("qwen3.6-27b", AIM, DUAL, engine="vllm", checkpoint="a/x-AWQ", quant=QUANTS["awq"])
    knob = next(
        k for k in space_of(base, AIM, DUAL, checkpoints=("a/x-AWQ", "a/x-GPTQ")).knobs if k.name == "checkpoint"
    )
    assert knob.values == ("a/x-AWQ", "a/x-GPTQ")
    assert knob.alters_answers
    assert base.options.quant is None


def test_drafts_of_a_model_of_their_own_are_turned_where_the_preset_names_it():
    base = dense()
    base = replace(base, options=replace(base.options, draft=Draft("eagle", 3, "some/head")))
    found = values(base)
    assert found["eagle"][0] == 0
    assert 3 in found["eagle"]


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
    quants = [quant.id for quant in offered_quants(geometry(model), engine, rig.cards)] if rig else ()
    knobs = space_of(base, AIM, box, quants=quants).knobs
    effects = Predictor(base, rig, AIM, knobs)
    here = config_of(base, knobs)
    assert effects.refusal(here) is None
    for knob in knobs:
        assert here[knob.name] in knob.values
        for value in knob.values:
            config = here.turned({knob.name: value})
            if effects.refusal(config) is None:
                preset = apply_config(base, config)
                assert contradictions(preset) == []
                assert list(ADAPTERS[engine]().refusals(launch_of(preset))) == []


def launch_of(preset):
    """Its format is the checkpoint's own where an engine is really started."""
    options = replace(preset.options, quant=None)
    return Launch(preset.name, preset.engine, preset.served_as, Path("weights.gguf"), preset.slots,
                  preset.context_tokens, preset.threads or 0, checkpoint="weights.gguf", options=options)  # fmt: skip


def test_a_safe_beginning_is_plain():
    base = dense()
    assert base.options.graphs is False
    assert base.options.draft is None
    assert base.options.kv is None
    assert base.options.memory_share == 0.85
    assert (base.replicas, base.options.tp, base.slots) == (1, 1, 4)
    plain = baseline_of("smollm2-135m", AIM, TuneMachine(2), engine="embedded")
    assert (plain.slots, plain.threads, plain.replicas, plain.hardware) == (1, 2, 1, "cpu")


def test_what_fits_nowhere_is_said_as_a_plan_says_it():
    with pytest.raises(DoesNotFit, match=r"llama-3\.3-70b does not fit `rtx-3090`") as caught:
        baseline_of("llama-3.3-70b", AIM, TuneMachine(8, parse_rig("rtx-3090")), engine="vllm", simulated=True)
    assert "2x rtx-3090" in (caught.value.hint or "")


def test_a_model_of_nobodys_catalogue_is_called_as_its_file_is():
    """Else the preset of the best so far could not be read again."""
    known = geometry("smollm2-135m")
    box = TuneMachine(2, model=dataclasses.replace(known, id="some-header-says-this"))
    base = baseline_of("/models/Mine.Q4_1.gguf", AIM, box, engine="embedded", checkpoint="/models/Mine.Q4_1.gguf")
    assert base.model == "mine.q4_1"
    assert contradictions(base) == []
    assert contradictions(replace(base, model="mein"))[0].message == "no model is called `mein`"
    unknown = baseline_of("some/Model", AIM, TuneMachine(2), engine="vllm", checkpoint="some/Model")
    assert (unknown.model, contradictions(unknown)) == ("model", [])


def test_cards_of_nobodys_catalogue_are_written_as_their_relative_with_a_note():
    gpu = Gpu(0, "NVIDIA Experimental 9000", 20 << 30, compute_capability="8.6")
    host = HostFacts("Linux", "x86_64", "3.11", "a CPU", 8, (), 64 << 30, 60 << 30, 1024, 1024, gpus=(gpu,) * 2)
    box = TuneMachine(8, rig_of_host(host).rig)
    base = baseline_of("qwen3-8b", AIM, box, engine="vllm", checkpoint="a/x-AWQ", quant=QUANTS["awq"])
    assert base.hardware.startswith("2x ")
    assert contradictions(base) == []
    [note] = base.notes
    assert "for NVIDIA Experimental 9000, which is not in the catalogue" in note


def test_a_real_engine_wants_a_checkpoint():
    with pytest.raises(UserError, match="which checkpoint"):
        baseline_of("qwen3-8b", AIM, DUAL, engine="vllm")
    with pytest.raises(UserError, match="is not in the catalogue"):
        baseline_of("nobody/knows-it", AIM, DUAL, engine="vllm", checkpoint="nobody/knows-it")


def test_there_is_room_for_a_task_and_for_what_was_asked():
    wide = replace(AIM, min_context=16384)
    assert baseline_of("qwen3.6-27b", wide, DUAL, engine="vllm", simulated=True).context_tokens == 16384
    long = replace(AIM, input_tokens=4000, output_tokens=96)
    assert prepared(replace(dense(), context_tokens=1024), long, DUAL).context_tokens == 4352
    with pytest.raises(UserError, match="--min-context 16384 is beyond the 8192 tokens of smollm2-135m"):
        baseline_of("smollm2-135m", wide, TuneMachine(2), engine="embedded")
    with pytest.raises(UserError, match="a task of 9128 tokens is beyond the 8192"):
        baseline_of("smollm2-135m", replace(AIM, input_tokens=9000), TuneMachine(2), engine="embedded")


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
    base = replace(dense(), engine=engine, checkpoint=checkpoint, options=replace(dense().options, quant=None))
    found = quant_of(base)
    assert found is not None
    assert found.id == quant


NOWHERE = Path("nowhere")
EMBEDDED = baseline_of("smollm2-135m", AIM, TuneMachine(4), engine="embedded")


PRESETS = pytest.mark.parametrize(
    "preset", [*(find_preset(name, NOWHERE) for name in all_presets(NOWHERE)), EMBEDDED], ids=lambda preset: preset.name
)


def box_of(preset):
    return TuneMachine(4) if preset is EMBEDDED else TuneMachine(8, parse_rig(preset.hardware, preset.link))


@PRESETS
def test_a_preset_turned_to_where_it_stands_is_itself(preset):
    """Its own words are kept: nothing is said that it left to the engine."""
    box = box_of(preset)
    knobs = space_of(preset, AIM, box, named=("prefix_cache",)).knobs
    assert apply_config(preset, config_of(preset, knobs)) == preset
    base = prepared(preset, AIM, box)
    assert apply_config(base, config_of(base, knobs)) == base


@PRESETS
def test_every_value_of_every_knob_is_found_again_in_the_preset(preset):
    box = box_of(preset)
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
    with pytest.raises(UserError, match="mtp n=3 and ngram n=4 cannot be combined"):
        apply_config(base, KnobConfig.of({"ngram": 4, "mtp": 3}))


def test_a_draft_that_no_knob_is_about_is_left_alone():
    """Its model goes with it where the depth is turned."""
    base = replace(EMBEDDED, engine="vllm", options=EngineOptions(draft=Draft("eagle", 3, "some/head")))
    assert apply_config(base, KnobConfig.of({"mtp": 0, "ngram": 0})) == base
    assert apply_config(base, KnobConfig.of({"eagle": 5})).options.draft == Draft("eagle", 5, "some/head")


def test_another_checkpoint_does_not_inherit_the_format_of_the_first():
    base = replace(EMBEDDED, engine="vllm", checkpoint="a/one-AWQ", options=EngineOptions(quant="awq_marlin"))
    other = apply_config(base, KnobConfig.of({"checkpoint": "a/one-GPTQ"}))
    assert (other.checkpoint, other.options.quant) == ("a/one-GPTQ", None)
    assert apply_config(base, KnobConfig.of({"checkpoint": "a/one-AWQ"})).options.quant == "awq_marlin"


def test_an_unknown_knob_and_a_layout_that_is_none_are_refused():
    with pytest.raises(UserError, match="no knob is called `speed`"):
        apply_config(EMBEDDED, KnobConfig.of({"speed": 11}))
    with pytest.raises(UserError, match="no knob is called `speed`"):
        config_of(EMBEDDED, [Knob("speed", "speed", (1, 2))])
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
    assert layout_of(with_layout(replace(EMBEDDED, engine="vllm"), layout)) == layout


def test_named_cards_and_reserved_slots_are_kept_as_far_as_they_are_wanted():
    base = replace(EMBEDDED, engine="vllm", gpus=(2, 3), options=EngineOptions(tp=2))
    for layout, gpus in ((Layout(), (2,)), (Layout(replicas=2), (2, 3)), (Layout(tp=4), ())):
        assert with_layout(base, layout).gpus == gpus
    both = replace(base, options=EngineOptions())
    for words, gpus in (("TP=1", (2,)), ("TP=2", (2, 3))):
        assert apply_config(both, KnobConfig.of({"layout": words})).gpus == gpus
    shared = with_layout(replace(EMBEDDED, engine="vllm"), Layout(1, 1, 2, 2))
    assert (shared.replicas, shared.options.dp, shared.options.ep) == (1, 2, True), "they share experts: one engine"
    assert apply_config(replace(EMBEDDED, slots=8, reserve=4), KnobConfig.of({"slots": 2})).reserve == 1

"""What a preset or the flags of a plan may not say, held against the catalogue's cards and models."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

import msgspec

from skep.catalog.models import Geometry, geometry
from skep.catalog.names import did_you_mean
from skep.catalog.needs import NO_CARDS
from skep.catalog.options import own_flag
from skep.catalog.presets import Preset, own_name
from skep.config.rigs import parse_rig
from skep.errors import UserError
from skep.planner.candidates import Pins, PlanGoal
from skep.planner.quants import known_quant
from skep.planner.rules import valid_rungs
from skep.planner.setup import Rig

ENGINES = ("vllm", "sglang", "llamacpp", "ollama", "embedded")
_GGUF = ("llamacpp", "ollama", "embedded")
_STRETCHED = ("rope", "yarn", "hf-overrides")  # flags that give a model a longer context than it was made with
_FP8_NAMES = ("fp8", "-fp8", "_fp8")


class Contradiction(msgspec.Struct, frozen=True):
    """`place` is the path of the key in the file that says it."""

    place: tuple[str | int, ...]
    message: str
    hint: str | None = None


def contradictions(preset: Preset) -> list[Contradiction]:
    """Return all of them, those of names first: what rests on an unknown model or card is not looked at."""
    found: list[Contradiction] = []
    if preset.reserve >= preset.slots:
        message = f"`reserve` = {preset.reserve} of {preset.slots} slots leaves none for the others"
        found.append(Contradiction(("reserve",), message, f"at most {preset.slots - 1}"))
    found += _figures(preset)
    if preset.engine not in ENGINES:
        near = get_close_matches(preset.engine.casefold(), ENGINES, n=1)
        known = did_you_mean(near, f"known: {', '.join(ENGINES)}")
        found.append(Contradiction(("engine",), f"no engine is called `{preset.engine}`", known))
    if preset.options.draft is not None and preset.engine == "ollama":
        message = f"ollama has no speculative decoding, `speculation` = `{preset.options.draft}` was asked for"
        found.append(Contradiction(("options", "speculation"), message, "leave it out, or use llamacpp or vllm"))
    found += _lengths(preset)
    if own := own_flag(preset.engine, preset.extra):
        found.append(Contradiction(("extra",), f"`extra` has {own[0]}, which skep sets itself", own[1]))
    model, rig = _model(preset, found), _rig(preset, found)
    if model is not None:
        found += [*_cuts(preset, model), *_context(preset, model)]
    if rig is not None:
        found += _cards(preset, rig)
        found += _formats(preset, rig)
    return found


def _model(preset: Preset, found: list[Contradiction]) -> Geometry | None:
    """None: nothing is known of it. What the catalogue has not is called as its checkpoint is."""
    try:
        return geometry(preset.model)
    except UserError as error:
        own = own_name(preset.checkpoint)
        if preset.model.casefold() != own:
            hint = f"{error.hint}; for a model that is not in the catalogue, `{own}`"
            found.append(Contradiction(("model",), error.message, hint))
        return None


def _rig(preset: Preset, found: list[Contradiction]) -> Rig | None:
    """Without cards: an empty one."""
    if preset.hardware == NO_CARDS:
        return Rig(())
    try:
        rig = parse_rig(preset.hardware)
    except UserError as error:
        message = error.message.replace("--gpu ", "`hardware` = ")
        found.append(Contradiction(("hardware",), message, error.hint))
        return None
    try:
        return rig if preset.link is None else parse_rig(preset.hardware, preset.link)
    except UserError as error:
        message = error.message.replace("--link ", "`link` = ")
        found.append(Contradiction(("link",), message, "leave `link` out where it is not known"))
        return rig


def _figures(preset: Preset) -> Iterator[Contradiction]:
    ids = [need.id for need in preset.needs]
    for number, need in enumerate(preset.needs):
        if need.id in ids[:number]:
            yield Contradiction(("need", number, "id"), f"two needs are called `{need.id}`", "rename one")
    for number, figure in enumerate(preset.published):
        for name in figure.needs:
            if name not in ids:
                there = f"known: {', '.join(ids)}" if ids else "there is no [[need]]"
                message = f"`needs` names `{name}`, but no [[need]] has that id"
                yield Contradiction(("published", number, "needs"), message, there)


def _lengths(preset: Preset) -> Iterator[Contradiction]:
    """Of a figure, against the context it was to be measured in."""
    most = preset.context_tokens
    for number, figure in enumerate(preset.published):
        total = (figure.input_tokens or 0) + (figure.output_tokens or 0)
        if most is not None and total > most:
            key = "input_tokens" if figure.input_tokens else "output_tokens"
            message = f"{total} tokens in and out do not fit `context` = {most}"
            yield Contradiction(("published", number, key), message, f"`context` is per slot: at least {total}")


def _context(preset: Preset, model: Geometry) -> Iterator[Contradiction]:
    asked, most = preset.context_tokens, model.max_context
    told = " ".join((*preset.extra, *(name for name, _ in preset.env))).casefold().replace("_", "-")
    if asked is None or not most or asked <= most or any(word in told for word in (*_STRETCHED, "long-max-model-len")):
        return
    hint = "lower it, or put the engine's flags that stretch it (rope, yarn) into `extra`"
    yield Contradiction(("context",), f"`context` = {asked} is beyond the {most} tokens of {model.id}", hint)


def _cuts(preset: Preset, model: Geometry) -> Iterator[Contradiction]:
    options = preset.options
    if options.ep and not model.is_moe:
        message = f"{model.id} is dense: `ep` has no experts to spread"
        yield Contradiction(("options", "ep"), message, "leave `ep` out")
    elif options.ep and preset.engine in _GGUF:
        yield Contradiction(("options", "ep"), f"{preset.engine} has no expert parallel", "leave `ep` out")
    if options.tp > 1 and preset.engine in ("ollama", "embedded"):
        message = f"{preset.engine} does not cut layers over cards, `tp` = {options.tp} was asked for"
        yield Contradiction(("options", "tp"), message, "leave `tp` out, or use llamacpp or vllm")
    elif options.tp > 1 and preset.engine not in _GGUF and options.tp not in (rungs := valid_rungs(model)):
        listed = ", ".join(str(rung) for rung in rungs)
        message = f"`tp` = {options.tp} does not divide the heads of {model.id} ({model.heads} of attention)"
        yield Contradiction(("options", "tp"), message, f"valid: {listed}")


def _cards(preset: Preset, rig: Rig) -> Iterator[Contradiction]:
    options, there = preset.options, len(rig.cards)
    wanted = preset.replicas * options.cards
    if preset.hardware == NO_CARDS:
        if options.cards > 1 or preset.gpus:
            place = ("gpus",) if preset.gpus else ("options", _first_cut(preset))
            yield Contradiction(place, "`hardware` = `cpu` has no cards to put it on", "name them, or leave it out")
        return
    if wanted > there:
        place = ("options", _first_cut(preset)) if options.cards > 1 else ("replicas",)
        factors = {"replicas": preset.replicas, "tp": options.tp, "pp": options.pp, "dp": options.dp}
        product = " x ".join(f"{name} {count}" for name, count in factors.items() if count > 1)
        has = f"`hardware` = `{preset.hardware}` has {there} {'card' if there == 1 else 'cards'}"
        hint = "name all cards in `hardware`, or ask for fewer"
        yield Contradiction(place, f"{product} needs {wanted} cards, {has}", hint)
        return
    count = len(preset.gpus)
    if len(set(preset.gpus)) < count:
        yield Contradiction(("gpus",), "`gpus` names a card twice", "each replica has cards of its own")
    elif count and (count != wanted if preset.engine not in _GGUF else count % preset.replicas or count > there):
        message = f"`gpus` names {count} {'card' if count == 1 else 'cards'}, the replicas need {wanted}"
        yield Contradiction(("gpus",), message, "leave it out, and skep chooses them")


def _first_cut(preset: Preset) -> str:
    options = preset.options
    return "tp" if options.tp > 1 else "pp" if options.pp > 1 else "dp"


def _formats(preset: Preset, rig: Rig) -> Iterator[Contradiction]:
    quant = preset.options.quant
    known = known_quant(quant) if quant is not None else None
    told = known is not None and known.family == "fp8"
    named = preset.checkpoint.casefold().endswith(_FP8_NAMES)
    lacking = next((card for card in rig.cards if "fp8" not in card.formats), None)
    if (told or named) and lacking is not None and preset.engine not in _GGUF:
        place = ("options", "quant") if told else ("checkpoint",)
        yield Contradiction(place, f"{lacking.id} has no FP8 units, these weights are FP8", "an AWQ or GPTQ checkpoint")


def check_flags(rig: Rig, goal: PlanGoal, pins: Pins, model: Geometry | None = None) -> None:
    """Refuse flags that cannot all be meant, or not of this model."""
    if model is not None and model.max_context is not None:
        most, made_for = model.max_context, f"that {model.id} was made for"
        if (pins.context or 0) > most:
            hint = f"use --context {most} at most, or a config.json with rope scaling"
            raise UserError(f"--context {pins.context} is beyond the {most} tokens {made_for}", hint=hint)
        if goal.need_tokens > most:
            hint = "lower --prompt-tokens or --output-tokens, or name a config.json with rope scaling"
            raise UserError(f"a task of {goal.need_tokens} tokens is beyond the {most} {made_for}", hint=hint)
    needed = (pins.tp or 1) * (pins.pp or 1) * (pins.replicas or 1)
    if needed > len(rig.cards):
        there = f"{len(rig.cards)} card{'s' if len(rig.cards) > 1 else ''}"
        hint = "the cards are TP x PP x replicas; leave one out and skep chooses it"
        raise UserError(f"{pins.layout_words} needs {needed} cards, `{rig.title}` has {there}", hint=hint)
    if pins.context is not None and pins.context < goal.need_tokens:
        hint = "raise --context, or lower --prompt-tokens and --output-tokens"
        raise UserError(f"--context {pins.context} is less than a task's {goal.need_tokens} tokens", hint=hint)

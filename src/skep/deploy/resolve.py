"""What a model's name stands for: a preset, a model that skep carries, or a checkpoint as planned
for some cards.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from skep.catalog import presets as needs
from skep.catalog.models import (
    checkpoint_of,
    checkpoints_of,
    find_geometry,
    find_pullable,
    geometry,
    pullable_names,
)
from skep.catalog.presets import EngineOptions
from skep.config.presets import all_presets, find_preset, presets_folder, serve_of
from skep.config.rigs import ResolvedRig, parse_rig, rig_of_host
from skep.config.settings import EMBEDDED_MODEL, Serve, default_context
from skep.deploy.commands import launches_of
from skep.deploy.plan_request import AGENTS, EVIDENCE, PlanFlags, answer_plan, nothing_fits
from skep.deploy.preset_plan import agents_of, answer_preset
from skep.engines.base import engine_named
from skep.engines.discovery import engine_kinds, is_installed
from skep.engines.simulated import plan_of
from skep.errors import DoesNotFit, SkepError, UserError
from skep.host.facts import read_host
from skep.paths import Paths
from skep.planner.choose import Plan
from skep.planner.memory import version_of, weights_bytes

if TYPE_CHECKING:
    from skep.catalog.gpus import HostFacts
    from skep.catalog.presets import Preset
    from skep.planner.ranking import Predicted

ENGINES = tuple(sorted(engine_kinds()))
FOR_PLANS = ("vllm", "sglang", "llamacpp")
SLOTS = 8  # of an engine that was not planned: what a home card can mostly hold
# What people serve for agents, the most capable first.
OFFERED = (
    "gpt-oss-120b",
    "qwen3.6-35b-a3b",
    "qwen3.6-27b",
    "gpt-oss-20b",
    "qwen3-14b",
    "qwen3-8b",
    "qwen3-4b",
)
OFFERS = 3
SHOWN_CHECKPOINTS = 4

Say = Callable[[str], None]


def _silent(_line: str) -> None: ...


class ServeRequest(msgspec.Struct, frozen=True):
    """A model by its name and what is said about serving it; None: the planner chooses.

    Names as `skep up` has them.
    """

    model: str
    engine: str | None = None
    checkpoint: str | None = None
    replicas: int | None = None
    slots: int | None = None
    context: int | None = None
    quant: str | None = None
    kv: str | None = None
    spec: str | None = None
    tp: int | None = None
    pp: int | None = None
    graphs: bool | None = None
    vision: bool = False
    concurrency: int | None = None
    link: str | None = None
    gpu: tuple[str, ...] = ()  # cards of a rig that is simulated
    gpus: str | None = None  # numbers of this machine's
    memory_share: float | None = None
    binary: str | None = None

    def given(self, *names: str) -> dict[str, Any]:
        """Return those of these values that are given."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    @property
    def planned(self) -> dict[str, Any]:
        """What only a plan understands."""
        return self.given("quant", "spec", "pp", "concurrency", "link")

    def plan_flags(self, model: str, agents: int) -> PlanFlags:
        """Return it as `skep plan` gets it."""
        given = self.given(
            "link",
            "quant",
            "kv",
            "spec",
            "tp",
            "pp",
            "replicas",
            "slots",
            "context",
            "graphs",
            "vision",
        )
        given |= {
            "gpu": self.gpu,
            "utilization": self.memory_share,
            "engine": (self.engine,) if self.engine else (),
        }
        return PlanFlags(model, agents=agents, **given)


def serve_for(wanted: ServeRequest, paths: Paths, say: Say = _silent) -> Serve | None:
    """Return the model's settings, or None if the embedded engine serves it."""
    check_engine(wanted, "; --simulate tries a rig")
    preset = find_preset(wanted.model, presets_folder(paths))
    if preset is not None:
        serve = preset_serve(preset, wanted)
        for line in about_preset(preset, serve):
            say(line)
        check_cards(preset, serve)
        return serve
    if is_missing(wanted.model):
        raise UserError(
            f"`{wanted.model}` does not exist",
            hint="name a GGUF file, or a folder with config.json",
        )
    if is_for_embedded(wanted):
        if wanted.graphs is not None:
            hint = "leave it out, or name another engine with --engine"
            raise UserError(
                f"--{'' if wanted.graphs else 'no-'}graphs: the embedded engine has none",
                hint=hint,
            )
        return None
    host = read_host()
    if host.gpus and wanted.engine in (None, *FOR_PLANS) and not is_unplanned(wanted, say):
        best = planned(among_installed(wanted), paths, say=say)
        say(f"planned: {best}")
        return best.serve
    return as_told(wanted, paths, cards=bool(host.gpus))


def among_installed(wanted: ServeRequest) -> ServeRequest:
    """Return it with the engines that are here, where none is named.

    With none here, the plan says which to install.
    """
    here = tuple(
        name
        for name in FOR_PLANS
        if is_installed(name, wanted.binary if name == wanted.engine else None)
    )
    if wanted.engine is None and here:
        return replace(wanted, engine=",".join(here))
    return wanted


def check_engine(wanted: ServeRequest, more: str = "") -> None:
    if wanted.engine is not None and wanted.engine not in ENGINES:
        raise UserError(
            f"there is no engine `{wanted.engine}`", hint=f"known: {', '.join(ENGINES)}{more}"
        )


def is_missing(name: str) -> bool:
    """Whether it is written as a path, and nothing is there."""
    return name.startswith(("/", "./", "../", "~/")) and not Path(name).expanduser().exists()


def is_unplanned(wanted: ServeRequest, say: Say) -> bool:
    """A checkpoint of the hub that the catalogue does not know, for an engine that is named:
    started as told.
    """
    if (
        "/" not in wanted.model
        or _is_folder(wanted.model)
        or wanted.model.endswith(".gguf")
        or wanted.planned
    ):
        return False
    if find_geometry(wanted.model) is not None:
        return False
    if wanted.engine is None:
        hint = (
            f"`skep up {wanted.model} --engine vllm` starts it without a plan; a folder can be "
            "planned"
        )
        raise UserError(
            f"`{wanted.model}` is not in the catalogue, so skep cannot plan it", hint=hint
        )
    say(f"{wanted.model} is not in the catalogue: starting it as given, without a plan")
    return True


def preset_serve(preset: Preset, wanted: ServeRequest) -> Serve:
    """Return the preset with the engine-independent overrides applied."""
    for flag, value in (("engine", wanted.engine), ("tp", wanted.tp), *wanted.planned.items()):
        if value is not None:
            hint = f"`skep presets new NAME --from {preset.name}` makes a copy that you can change"
            raise UserError(
                f"--{flag} cannot be combined with the preset `{preset.name}`", hint=hint
            )
    return _told(serve_of(preset), wanted)


def check_cards(preset: Preset, serve: Serve | None = None) -> None:
    """Raise DoesNotFit where a recipe for NVIDIA's cards finds none of them, or fewer than `serve`
    takes.

    Cards of other makers cannot be seen, and are believed in.
    """
    host = read_host()
    if preset.hardware == needs.NO_CARDS or (serve is None and host.gpus):
        return
    if serve is None:
        cards = 1
    else:
        cards = serve.replicas * serve.options.cards
    there = len(host.gpus)
    if there >= cards or not all(
        card.vendor == "nvidia" for card in parse_rig(preset.hardware).cards
    ):
        return
    if not there:
        hint = (
            f"`skep export {preset.name} --as docker` exports it for a machine with cards; "
            "--simulate tries a rig"
        )
        raise DoesNotFit(
            f"the preset `{preset.name}` needs {preset.hardware}, this machine has no GPU",
            hint=hint,
        )
    has = f"this machine has {there} {'card' if there == 1 else 'cards'}"
    hint = (
        f"`skep up {preset.model}` takes what is here; `skep up {preset.name} --simulate` tries "
        "the preset's rig"
    )
    raise DoesNotFit(
        f"the preset `{preset.name}` needs {cards} cards ({preset.hardware}), {has}", hint=hint
    )


def about_preset(
    preset: Preset, serve: Serve, host: HostFacts | None = None, version: str | None = None
) -> list[str]:
    """Describe the preset, the machine it was measured on,
    and the figures that do not apply here.
    """
    if host is None:
        host = read_host()
        version = engine_named(preset.engine, serve.binary).version()
    run_environment = needs.RunEnvironment(
        version, host.driver_version, serve.checkpoint, {**os.environ, **dict(serve.env)}
    )
    told = [preset.engine_version, *(figure.engine_version for figure in preset.published)]
    published = next(filter(None, told), None)
    other = needs.version_beside(published, version)
    odd = (
        preset.broken and f"its author could not start it: {preset.broken}",
        needs.other_cards(preset, [gpu.name for gpu in host.gpus]),
        other and f"measured with {preset.engine} {published}, this is {other}",
        needs.stand_in_words(preset),
        needs.lost_words(preset, needs.missing_needs(preset, run_environment)),
    )
    said = f"preset {preset.name}: {preset.title}; {preset.source}"
    return [said, *(f"warning: {words}" for words in odd if words)]


def is_for_embedded(wanted: ServeRequest, *, llama_cards: bool | None = None) -> bool:
    """A GGUF file or a pullable model, unless another engine is asked for.

    `llama_cards` None: this machine's.
    """
    if wanted.engine is not None:
        if wanted.engine == "embedded" and (wanted.planned or wanted.tp or wanted.gpus):
            raise UserError(
                "skep does not plan for the embedded engine: it runs on the CPU",
                hint="leave --engine out",
            )
        return wanted.engine == "embedded"
    if not wanted.model.endswith(".gguf"):
        return find_pullable(wanted.model) is not None
    if llama_cards is not None:
        return not llama_cards
    # A card beside a llama-server is there to be used; without one of them the CPU does it.
    return not (is_installed("llamacpp", wanted.binary) and read_host().gpus)


class PlannedServe(msgspec.Struct, frozen=True):
    """The planner's best on some machine, as a table to serve; replicas as one such machine holds
    them.
    """

    serve: Serve
    plan: Plan
    agents: int  # that it was planned for

    @property
    def tok_s(self) -> float:
        """Predicted, of all its replicas."""
        return self._at.effective_tok_s

    @property
    def _at(self) -> Predicted:
        return min(self.plan.predicted, key=lambda point: abs(point.concurrency - self.agents))

    def __str__(self) -> str:
        setup = self.plan.setup
        at = self._at
        agents = (
            f"{at.effective_tok_s:,.0f} tok/s at C={at.concurrency} ({at.low:,.0f} to "
            f"{at.high:,.0f})"
        )
        return (
            f"{setup.engine}, {setup.quant.title}, {setup.layout}, {setup.slots} slots a "
            f"replica; {agents}"
        )


def best_plan(
    flags: PlanFlags, store: Path, rig: ResolvedRig | None = None, *, say: Say = _silent
) -> Plan:
    """As `skep plan` finds it. On this rig; None: as the flags name it, or this machine."""
    found = answer_plan(flags, store, rig=rig)
    if (error := nothing_fits(found)) is not None:
        raise error
    for line in found.notes:
        if not line.startswith(EVIDENCE):
            say(line)
    return found.ranked[0][1]


def planned(
    wanted: ServeRequest, paths: Paths, rig: ResolvedRig | None = None, *, say: Say = _silent
) -> PlannedServe:
    """On this rig; None: this machine's cards."""
    if wanted.checkpoint and _is_folder(wanted.checkpoint):
        folder = wanted.checkpoint
    else:
        folder = None
    agents = wanted.concurrency or AGENTS
    plan = best_plan(wanted.plan_flags(folder or wanted.model, agents), paths.store, rig, say=say)
    setup = plan.setup
    checkpoint = wanted.checkpoint or own_checkpoint(wanted.model) or plan.checkpoint
    if checkpoint is None:
        hint = (
            f"name it: skep up {wanted.model} --checkpoint ORG/NAME, or a folder, or a .gguf file"
        )
        raise UserError(
            f"which checkpoint of `{wanted.model}`? The plan needs {setup.quant.title}", hint=hint
        )
    check_needs(checkpoint, setup.engine, wanted.binary)
    launches = launches_of(setup, plan.rated.rig, checkpoint=checkpoint, order=plan.order)
    launch = launches[0]
    gpus = tuple(gpu for launch in launches for gpu in launch.gpus)
    alike: dict[str, Any] = {
        name: getattr(launch, name)
        for name in ("engine", "slots", "context_tokens", "checkpoint", "options", "extra")
    }
    serve = Serve(model=wanted.model, replicas=setup.layout.replicas, gpus=gpus, **alike)
    return PlannedServe(_told(serve, wanted), plan, agents)


def check_needs(checkpoint: str, engine: str, binary: str | None) -> None:
    """Refuse a checkpoint that the installed engine is too old for,
    as far as the catalogue knows.
    """
    known = checkpoint_of(checkpoint)
    if known is not None:
        least = re.search(rf"\b{engine}>=([0-9.]+[0-9])", known.needs)
    else:
        least = None
    if least is None or not is_installed(engine, binary):
        return
    here = engine_named(engine, binary).version() or ""
    if (version := version_of(here.partition(" ")[2])) is not None and version < (
        version_of(least[1]) or ()
    ):
        hint = f"`skep engine install {engine}` installs a newer one; --checkpoint names another"
        raise UserError(f"{checkpoint} needs {engine} {least[1]}, installed is {here}", hint=hint)


def checkpoint_to_pull(name: str, paths: Paths) -> str:
    """Return the checkpoint that `skep up NAME` would take on this machine's cards; without cards,
    ask which one.
    """
    model = geometry(name).id
    if read_host().gpus:
        checkpoint = planned(ServeRequest(name), paths).serve.checkpoint
        assert checkpoint is not None
        return checkpoint
    known = [checkpoint.reference(checkpoint.formats[0]) for checkpoint in checkpoints_of(model)]
    hint = (
        "; ".join(f"`skep pull {one}`" for one in known[:SHOWN_CHECKPOINTS])
        or "name one on the hub: ORG/NAME"
    )
    raise UserError(
        f"which checkpoint of `{model}`? This machine has no cards to choose it for", hint=hint
    )


def own_checkpoint(name: str) -> str | None:
    """A file, a folder or a hub name is a checkpoint by itself; a name of the catalogue is not."""
    if "/" in name or name.endswith(".gguf") or _is_folder(name):
        return name
    return None


def _is_folder(name: str) -> bool:
    return (Path(name).expanduser() / "config.json").is_file()


def as_told(wanted: ServeRequest, paths: Paths, *, cards: bool, where: str = "here") -> Serve:
    """Without cards to plan for: the engine as it was asked for, on this machine's CPU or as it
    finds its own cards.
    """
    if wanted.engine is None:
        raise unknown_name(wanted.model, paths, where)
    if wanted.planned:
        flag = next(iter(wanted.planned))
        if not cards:
            why = f"no NVIDIA GPU is {where} to plan for"
        else:
            why = f"skep does not plan for {wanted.engine}"
        raise UserError(f"--{flag}: {why}", hint="leave it out, or try the rig with --simulate")
    options = EngineOptions(tp=wanted.tp or 1)
    context = default_context(wanted.engine)
    return _told(
        Serve(wanted.model, wanted.engine, slots=SLOTS, context_tokens=context, options=options),
        wanted,
    )


def _told(serve: Serve, wanted: ServeRequest) -> Serve:
    """With what the command line says of any engine."""
    options = replace(serve.options, **wanted.given("memory_share", "kv", "graphs"))
    return replace(
        serve,
        options=replace(options, text_only=options.text_only and not wanted.vision),
        checkpoint=wanted.checkpoint or serve.checkpoint,
        gpus=parse_gpus(wanted.gpus) or serve.gpus,
        binary=wanted.binary or serve.binary,
        replicas=wanted.replicas or serve.replicas,
        slots=wanted.slots or serve.slots,
        context_tokens=wanted.context or serve.context_tokens,
    )


def unknown_name(name: str, paths: Paths, where: str = "here") -> UserError:
    if find_geometry(name) is not None or "/" in name:
        hint = (
            f"`skep up {name} --engine vllm` (or sglang, llamacpp, ollama) starts it; "
            "--simulate tries a rig"
        )
        return UserError(
            f"no NVIDIA GPU is {where} to plan `{name}` for, and no engine is named", hint=hint
        )
    from difflib import get_close_matches

    close = get_close_matches(
        name.lower(), [*all_presets(presets_folder(paths)), *pullable_names()], n=3, cutoff=0.4
    )
    if close:
        near = "did you mean " + " or ".join(f"`{one}`" for one in close) + "? "
    else:
        near = ""
    return UserError(
        f"`{name}` is not a preset, a known model or a file",
        hint=f"{near}`skep presets` and `skep catalog models` list what is known",
    )


def parse_gpus(text: str | None) -> tuple[int, ...]:
    """`0,1`."""
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        hint = "write their numbers as `skep doctor` shows them: --gpus 0,1"
        raise UserError(f"--gpus `{text}` is not a list of GPU numbers", hint=hint)
    return tuple(int(part) for part in parts)


# Rigs that are not here


def simulated_flags(wanted: ServeRequest) -> PlanFlags:
    if len(wanted.gpu) > 1:
        hint = 'mixed cards are written as --gpu "rtx-5090 + rtx-3090"'
        raise UserError(
            f"--simulate serves one rig, but {len(wanted.gpu)} --gpu were given", hint=hint
        )
    agents = wanted.concurrency or max(AGENTS, (wanted.slots or 1) * (wanted.replicas or 1))
    return wanted.plan_flags(wanted.model, agents)


def simulated_preset_plan(
    preset: Preset, wanted: ServeRequest, paths: Paths, say: Say = _silent
) -> Plan:
    """Return the plan of a preset, on its own cards where none are named."""
    flags = replace(simulated_flags(wanted), agents=wanted.concurrency or agents_of(preset))
    answer = answer_preset(preset, flags, paths.store)
    if (error := nothing_fits(answer)) is not None:
        raise error
    assert answer.preset is not None
    say(f"preset {preset.name}: {preset.title}; {preset.source}")
    for line in (*answer.preset.cautions, *answer.notes):
        say(line)
    return answer.ranked[0][1]


def simulated_serve(
    wanted: ServeRequest, paths: Paths, say: Say = _silent
) -> tuple[str, dict[str, Any]]:
    """Return the model's id and what a `Serve` of it is given: as its preset says, else from the
    best plan.
    """
    preset = find_preset(wanted.model, presets_folder(paths))
    if preset is None:
        plan = best_plan(simulated_flags(wanted), paths.store, say=say)
        return _served_name(plan.setup.model.id), _simulated(plan, say)
    plan = simulated_preset_plan(preset, wanted, paths, say)
    return _served_name(preset.served_as), {**_simulated(plan, say), "preset": preset.name}


def _served_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)


def _simulated(plan: Plan, say: Say) -> dict[str, Any]:
    setup = plan.setup
    prospect = plan.rated.prospect
    assert setup.context is not None
    drafts = f", {setup.spec}" if setup.spec is not None else ""
    words = f"{setup.model.id} {setup.quant.title}, KV {setup.kv.title}{drafts}"
    eager = "" if setup.graphs else ", eager"
    about = f"{words}, {setup.layout} on {plan.rated.rig.title}, as {setup.engine}{eager}"
    weights = weights_bytes(setup.model, setup.quant)
    told = plan_of(prospect, context_tokens=setup.context, about=about, weight_bytes=weights)
    say(
        f"simulating {about}: {setup.layout.replicas} x {prospect.slots} slots of "
        f"{setup.context} tokens; no model runs"
    )
    return {
        "engine": "simulated",
        "replicas": setup.layout.replicas,
        "slots": told.slots,
        "context_tokens": told.context_tokens,
        "extra": ("--plan", told.to_json()),
        "about": f"simulated: {about}",
    }


# A machine with cards, and no word about what to serve


def refuse_toy(paths: Paths) -> None:
    """Raise UserError where cards are here and nobody said what to serve: the small model would
    run on the CPU.
    """
    host = read_host()
    if not host.gpus:
        return
    try:
        cards = rig_of_host(host).rig.title
    except UserError:
        cards = ", ".join(gpu.name for gpu in host.gpus)
    fitting = fitting_models(paths)
    small = f"`skep up --embedded` serves {EMBEDDED_MODEL} on the CPU"
    hint = "; ".join([*(f"`skep up {name}`: {words}" for name, words in fitting), small])
    raise UserError(f"which model should {cards} serve?", hint=hint)


def fitting_models(paths: Paths) -> list[tuple[str, str]]:
    """Return models that fit this machine's cards with room for every agent, and what is expected
    of them.
    """
    found = []
    for name in OFFERED:
        try:
            plan = best_plan(PlanFlags(name, agents=AGENTS), paths.store)
        except SkepError:
            continue
        if plan.rated.holds_all and not plan.rated.on_paper:
            speed = f"about {plan.rated.outcome.effective_tok_s:,.0f} tok/s with {AGENTS} agents"
            found.append((name, f"{speed}, {plan.setup.engine}"))
        if len(found) == OFFERS:
            break
    return found

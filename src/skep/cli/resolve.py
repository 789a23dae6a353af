"""What `skep up NAME` stands for: a preset, a model that skep carries, or a checkpoint as planned for this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from skep.catalog.models import find_geometry
from skep.catalog.needs import (
    NO_CARDS,
    RunEnvironment,
    lost_words,
    missing_needs,
    other_cards,
    other_version,
    stand_in_words,
)
from skep.catalog.options import EngineOptions
from skep.catalog.pullable import find_pullable, pullable_names
from skep.cli.options import ServeOptions
from skep.cli.output import note
from skep.config.presets import all_presets, find_preset, serve_of
from skep.config.settings import Serve, default_context
from skep.engines.base import engine_named
from skep.engines.discovery import is_installed
from skep.errors import DoesNotFit, UserError
from skep.host.facts import read_host
from skep.paths import user_paths

if TYPE_CHECKING:
    from skep.catalog.gpus import HostFacts
    from skep.catalog.presets import Preset
    from skep.planner.choose import Plan
    from skep.planner.ranking import Predicted
    from skep.planner.rigs import ResolvedRig

ENGINES = ("embedded", "llamacpp", "ollama", "sglang", "vllm")
FOR_PLANS = ("vllm", "sglang", "llamacpp")
SLOTS = 8  # of an engine that was not planned: what a home card can mostly hold


def serve_for(wanted: ServeOptions) -> Serve | None:
    """Return the model's settings, or None if the embedded engine serves it."""
    if wanted.engine is not None and wanted.engine not in ENGINES:
        known = ", ".join(ENGINES)
        raise UserError(f"there is no engine `{wanted.engine}`", hint=f"known: {known}; a rig is tried with --simulate")
    preset = find_preset(wanted.name, user_paths(os.environ).config / "presets")
    if preset is not None:
        return _of_preset(preset, wanted)
    if wanted.name.startswith(("/", "./", "../", "~/")) and not Path(wanted.name).expanduser().exists():
        raise UserError(f"`{wanted.name}` does not exist", hint="name a GGUF file, or a folder with config.json")
    if is_for_embedded(wanted):
        return None
    host = read_host()
    if host.gpus and wanted.engine in (None, *FOR_PLANS) and not is_unplanned(wanted):
        best = planned(wanted)
        note(f"planned: {best}")
        return best.serve
    return as_told(wanted, cards=bool(host.gpus))


def is_unplanned(wanted: ServeOptions) -> bool:
    """A checkpoint of the hub that the catalogue does not know, for an engine that is named: started as told."""
    if "/" not in wanted.name or _is_folder(wanted.name) or wanted.name.endswith(".gguf") or wanted.planned:
        return False
    if find_geometry(wanted.name) is not None:
        return False
    if wanted.engine is None:
        hint = f"`skep up {wanted.name} --engine vllm` starts it without a plan; a folder can be planned"
        raise UserError(f"`{wanted.name}` is not in the catalogue, so that it cannot be planned", hint=hint)
    note(f"{wanted.name} is not in the catalogue: started as told, without a plan")
    return True


def _of_preset(preset: Preset, wanted: ServeOptions) -> Serve:
    serve = preset_serve(preset, wanted)
    note(*about_preset(preset, serve))
    check_cards(preset)
    return serve


def preset_serve(preset: Preset, wanted: ServeOptions) -> Serve:
    """Return the preset with the engine-independent overrides applied."""
    for flag, value in (("engine", wanted.engine), ("tp", wanted.tp), *wanted.planned.items()):
        if value is not None:
            hint = f"`skep presets new NAME --from {preset.name}` makes one of your own to change"
            raise UserError(f"--{flag} would make another recipe of the preset `{preset.name}`", hint=hint)
    return _told(serve_of(preset), wanted)


def check_cards(preset: Preset) -> None:
    """A recipe for NVIDIA's cards is not started without any. Cards of others cannot be seen, and are believed in."""
    from skep.planner.rigs import parse_rig

    if preset.hardware == NO_CARDS or read_host().gpus:
        return
    if all(card.vendor == "nvidia" for card in parse_rig(preset.hardware).cards):
        hint = f"`skep export {preset.name} --as docker` writes it down for where the cards are; --simulate tries a rig"
        raise DoesNotFit(f"the preset `{preset.name}` wants {preset.hardware}, this machine has no GPU", hint=hint)


def about_preset(preset: Preset, serve: Serve, host: HostFacts | None = None, version: str | None = None) -> list[str]:
    """Describe the preset, the machine it was measured on, and the figures that do not apply here."""
    if host is None:
        host, version = read_host(), engine_named(preset.engine, serve.binary).version()
    here = RunEnvironment(
        engine_version=version,
        driver_version=host.driver_version,
        checkpoint=serve.checkpoint,
        env={**os.environ, **dict(serve.env)},
    )
    odd = (
        other_cards(preset, [gpu.name for gpu in host.gpus]),
        other_version(preset, version),
        stand_in_words(preset),
        lost_words(preset, missing_needs(preset, here)),
    )
    said = f"preset {preset.name}: {preset.title}; {preset.source}"
    return [said, *(f"warning: {words}" for words in odd if words)]


def is_for_embedded(wanted: ServeOptions, *, llama_cards: bool | None = None) -> bool:
    """A GGUF file or a model that can be pulled by name, unless another engine is asked for.

    `llama_cards`: there is a card beside a llama-server; None: looked for on this machine.
    """
    if wanted.engine is not None:
        if wanted.engine == "embedded" and (wanted.planned or wanted.tp or wanted.gpus):
            raise UserError("the embedded engine runs on the CPU and takes no plan", hint="leave --engine out")
        return wanted.engine == "embedded"
    name = wanted.name
    gguf = name.endswith(".gguf")
    if not gguf and find_pullable(name) is None:
        return False
    if llama_cards is not None:
        return not (gguf and llama_cards)
    # A card beside a llama-server is there to be used; without one of them the CPU does it.
    return not (gguf and is_installed("llamacpp", wanted.binary) and read_host().gpus)


@dataclass(frozen=True, slots=True)
class PlannedServe:
    """The planner's best on some machine, as a table to serve; replicas as one such machine holds them."""

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
        setup, at = self.plan.setup, self._at
        agents = f"{at.effective_tok_s:,.0f} tok/s at C={at.concurrency} ({at.low:,.0f} to {at.high:,.0f})"
        return f"{setup.engine}, {setup.quant.title}, {setup.layout}, {setup.slots} slots a replica; {agents}"


def planned(wanted: ServeOptions, rig: ResolvedRig | None = None, *, say: Callable[[str], None] = note) -> PlannedServe:
    """On this rig; None: this machine's cards."""
    from skep.cli.simulate import AGENTS, best_plan, plan_flags
    from skep.deploy.commands import launches_of

    folder = wanted.checkpoint if wanted.checkpoint and _is_folder(wanted.checkpoint) else None
    flags = plan_flags(wanted, folder or wanted.name, agents=wanted.agents or AGENTS)
    plan = best_plan(flags, rig, say=say)
    setup = plan.setup
    checkpoint = wanted.checkpoint or own_checkpoint(wanted.name)
    if checkpoint is None:
        what = f"which checkpoint of `{wanted.name}`? The plan wants {setup.quant.title}"
        raise UserError(
            what, hint=f"name it: skep up {wanted.name} --checkpoint ORG/NAME, or a folder, or a .gguf file"
        )
    launches = launches_of(setup, plan.rated.rig, checkpoint=checkpoint, order=plan.order)
    launch = launches[0]
    serve = Serve(
        model=wanted.name,
        engine=setup.engine,
        replicas=setup.layout.replicas // launch.options.dp,
        slots=launch.slots,
        context_tokens=launch.context_tokens,
        checkpoint=checkpoint,
        options=launch.options,
        extra=launch.extra,
        gpus=tuple(gpu for each in launches for gpu in each.gpus),
    )
    return PlannedServe(_told(serve, wanted), plan, flags.agents)


def own_checkpoint(name: str) -> str | None:
    """A file, a folder or a hub name is a checkpoint by itself; a name of the catalogue is not."""
    return name if "/" in name or name.endswith(".gguf") or _is_folder(name) else None


def _is_folder(name: str) -> bool:
    return (Path(name).expanduser() / "config.json").is_file()


def as_told(wanted: ServeOptions, *, cards: bool, where: str = "here") -> Serve:
    """Without cards to plan for: the engine as it was asked for, on this machine's CPU or as it finds its own cards."""
    if wanted.engine is None:
        raise unknown_name(wanted.name, where)
    if wanted.planned:
        flag = next(iter(wanted.planned))
        why = f"no NVIDIA GPU is {where} to plan for" if not cards else f"{wanted.engine} is not planned for"
        raise UserError(f"--{flag}: {why}", hint="leave it out, or try the rig with --simulate")
    options = EngineOptions(kv=wanted.kv, tp=wanted.tp or 1)
    context = wanted.context or default_context(wanted.engine)
    serve = Serve(model=wanted.name, engine=wanted.engine, slots=wanted.slots or SLOTS, context_tokens=context,
                  checkpoint=wanted.checkpoint, options=options, replicas=wanted.replicas or 1)  # fmt: skip
    return _told(serve, wanted)


def _told(serve: Serve, wanted: ServeOptions) -> Serve:
    """With what the command line says of any engine."""
    options: EngineOptions = serve.options
    if wanted.memory_share is not None:
        options = replace(options, memory_share=wanted.memory_share)
    if wanted.kv is not None:
        options = replace(options, kv=wanted.kv)
    return replace(
        serve,
        options=options,
        checkpoint=wanted.checkpoint or serve.checkpoint,
        gpus=parse_gpus(wanted.gpus) or serve.gpus,
        binary=wanted.binary or serve.binary,
        replicas=wanted.replicas or serve.replicas,
        slots=wanted.slots or serve.slots,
        context_tokens=wanted.context or serve.context_tokens,
    )


def unknown_name(name: str, where: str = "here") -> UserError:
    if find_geometry(name) is not None or "/" in name:
        hint = f"`skep up {name} --engine vllm` (or sglang, llamacpp, ollama) starts it; --simulate tries a rig"
        return UserError(f"no NVIDIA GPU is {where} to plan `{name}` for, and no engine is named", hint=hint)
    names = [*all_presets(user_paths(os.environ).config / "presets"), *pullable_names()]
    close = get_close_matches(name.lower(), names, n=3, cutoff=0.4)
    near = "did you mean " + " or ".join(f"`{one}`" for one in close) + "? " if close else ""
    return UserError(f"`{name}` is no preset, no model that skep knows and no file",
                     hint=f"{near}`skep presets` and `skep catalog models` list what is known")  # fmt: skip


def parse_gpus(text: str | None) -> tuple[int, ...]:
    """`0,1`."""
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise UserError(
            f"--gpus `{text}` are no cards", hint="write their numbers as `skep doctor` shows them: --gpus 0,1"
        )
    return tuple(int(part) for part in parts)

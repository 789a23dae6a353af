"""What a model's name stands for: a preset, a model that skep carries, or a planned checkpoint."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from skep.catalog import presets as needs
from skep.catalog.engines import EMBEDDED, SIMULATED, gguf_engine, model_engines, planned_engines
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
from skep.deploy.plan_request import AGENTS, EVIDENCE_START, PlanFlags, answer_plan, nothing_fits
from skep.deploy.preset_plan import agents_of, answer_preset
from skep.engines.base import engine_named
from skep.engines.discovery import is_installed
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

SLOTS = 8  # of an engine that was not planned: what most home cards can hold
# What people serve for agents, the most capable first.
SUGGESTED_MODELS = (
    "gpt-oss-120b",
    "qwen3.6-35b-a3b",
    "qwen3.6-27b",
    "gpt-oss-20b",
    "qwen3-14b",
    "qwen3-8b",
    "qwen3-4b",
)
MOST_SUGGESTIONS = 3
# Fields of a request that are flags of `skep plan` by the same names.
_PLAN_FLAGS = (
    "link", "quant", "kv", "spec", "tp", "pp", "replicas", "slots", "context", "graphs", "vision",
    "load",
)  # fmt: skip
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
    load: str | None = None  # what agents send, as `skep plan --load`
    link: str | None = None
    gpu: tuple[str, ...] = ()  # cards of a rig that is simulated
    gpus: str | None = None  # numbers of this machine's
    memory_share: float | None = None
    kv_ram: int | None = None  # GiB
    binary: str | None = None

    def given(self, *names: str) -> dict[str, Any]:
        """Return those of the named values that are given."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    @property
    def planned(self) -> dict[str, Any]:
        """Return what only a plan understands."""
        return self.given("quant", "spec", "pp", "concurrency", "load", "link")

    def plan_flags(self, model: str, agents: int) -> PlanFlags:
        """Return the request as the flags of `skep plan`."""
        given = self.given(*_PLAN_FLAGS)
        given |= {
            "gpu": self.gpu,
            "utilization": self.memory_share,
            "engine": (self.engine,) if self.engine else (),
        }
        return PlanFlags(model, agents=agents, **given)


def serve_for(request: ServeRequest, paths: Paths, say: Say = _silent) -> Serve | None:
    """Return the model's settings, or None if the embedded engine serves it."""
    check_engine(request, "; --simulate tries a rig")
    preset = find_preset(request.model, presets_folder(paths))
    if preset is not None:
        serve = preset_serve(preset, request)
        for line in about_preset(preset, serve):
            say(line)
        check_cards(preset, serve)
        return serve
    if is_missing(request.model):
        raise UserError(
            f"`{request.model}` does not exist",
            hint="name a GGUF file, or a folder with config.json",
        )
    if is_for_embedded(request):
        if request.graphs is not None:
            hint = "leave it out, or name another engine with --engine"
            raise UserError(
                f"--{'' if request.graphs else 'no-'}graphs: the embedded engine has none",
                hint=hint,
            )
        if request.kv_ram is not None:
            raise UserError(
                "--kv-ram: the embedded engine is told it in skep.toml",
                hint="write kv_ram under [serve.options], or name another engine with --engine",
            )
        return None
    host = read_host()
    if (
        host.gpus
        and request.engine in (None, *planned_engines())
        and not is_unplanned(request, say)
    ):
        best = planned(among_installed(request), paths, say=say)
        say(f"planned: {best}")
        return best.serve
    return as_told(request, paths, cards=bool(host.gpus))


def among_installed(request: ServeRequest) -> ServeRequest:
    """Return the request with the installed engines, where none is named.

    Where none is installed, the plan says which to install.
    """
    installed = tuple(
        name
        for name in planned_engines()
        if is_installed(name, request.binary if name == request.engine else None)
    )
    if request.engine is None and installed:
        return replace(request, engine=",".join(installed))
    return request


def check_engine(request: ServeRequest, suffix: str = "") -> None:
    if request.engine is not None and request.engine not in model_engines():
        hint = f"known: {', '.join(sorted(model_engines()))}{suffix}"
        raise UserError(f"there is no engine `{request.engine}`", hint=hint)


def is_missing(name: str) -> bool:
    """Return whether the name is written as a path that does not exist."""
    return name.startswith(("/", "./", "../", "~/")) and not Path(name).expanduser().exists()


def is_unplanned(request: ServeRequest, say: Say) -> bool:
    """Return whether the model is a checkpoint of the hub that the catalogue does not know, to be
    started as given. Raise where no engine is named for it.
    """
    is_local = _is_folder(request.model) or request.model.endswith(".gguf")
    if "/" not in request.model or is_local or request.planned:
        return False
    if find_geometry(request.model) is not None:
        return False
    if request.engine is None:
        hint = (
            f"`skep up {request.model} --engine vllm` starts it without a plan; a folder can be "
            "planned"
        )
        raise UserError(
            f"`{request.model}` is not in the catalogue, so skep cannot plan it", hint=hint
        )
    say(f"{request.model} is not in the catalogue: starting it as given, without a plan")
    return True


def preset_serve(preset: Preset, request: ServeRequest) -> Serve:
    """Return the preset's table with the flags that hold for every engine."""
    for flag, value in (("engine", request.engine), ("tp", request.tp), *request.planned.items()):
        if value is not None:
            hint = f"`skep presets new NAME --from {preset.name}` makes a copy that you can change"
            raise UserError(
                f"--{flag} cannot be combined with the preset `{preset.name}`", hint=hint
            )
    return _with_flags(serve_of(preset), request)


def check_cards(preset: Preset, serve: Serve | None = None) -> None:
    """Raise DoesNotFit where a preset for NVIDIA's cards finds none of them, or fewer than `serve`
    takes.

    Cards of other makers cannot be seen, and are taken to be there.
    """
    host = read_host()
    if preset.hardware == needs.NO_CARDS or (serve is None and host.gpus):
        return
    cards = 1 if serve is None else serve.replicas * serve.options.cards
    present = len(host.gpus)
    if present >= cards:
        return
    if any(card.vendor != "nvidia" for card in parse_rig(preset.hardware).cards):
        return
    if not present:
        hint = (
            f"`skep export {preset.name} --as docker` exports it for a machine with cards; "
            "--simulate tries a rig"
        )
        raise DoesNotFit(
            f"the preset `{preset.name}` needs {preset.hardware}, this machine has no GPU",
            hint=hint,
        )
    has = f"this machine has {present} {'card' if present == 1 else 'cards'}"
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
    """Return lines that describe the preset and what makes its figures not apply here."""
    if host is None:
        host = read_host()
        version = engine_named(preset.engine, serve.binary).version()
    run_environment = needs.RunEnvironment(
        version, host.driver_version, serve.checkpoint, {**os.environ, **dict(serve.env)}
    )
    versions = [preset.engine_version, *(figure.engine_version for figure in preset.published)]
    published = next(filter(None, versions), None)
    other_version = needs.version_beside(published, version)
    warnings = (
        preset.broken and f"its author could not start it: {preset.broken}",
        needs.other_cards(preset, [gpu.name for gpu in host.gpus]),
        other_version and f"measured with {preset.engine} {published}, this is {other_version}",
        needs.stand_in_words(preset),
        needs.lost_words(preset, needs.missing_needs(preset, run_environment)),
    )
    title = f"preset {preset.name}: {preset.title}; {preset.source}"
    return [title, *(f"warning: {words}" for words in warnings if words)]


def is_for_embedded(request: ServeRequest, *, llama_cards: bool | None = None) -> bool:
    """Return whether the embedded engine serves it: a GGUF file or a pullable model, if no other
    engine is asked for.

    `llama_cards`: whether llama.cpp has cards; None: as on this machine.
    """
    if request.engine is not None:
        if request.engine == EMBEDDED and (request.planned or request.tp or request.gpus):
            raise UserError(
                "skep does not plan for the embedded engine: it runs on the CPU",
                hint="leave --engine out",
            )
        return request.engine == EMBEDDED
    if not request.model.endswith(".gguf"):
        return find_pullable(request.model) is not None
    if llama_cards is not None:
        return not llama_cards
    # With a card and a llama-server these are used; where one of them is missing, the CPU is.
    return not (is_installed(gguf_engine(), request.binary) and read_host().gpus)


class PlannedServe(msgspec.Struct, frozen=True):
    """The planner's best on one machine, as a table to serve."""

    serve: Serve
    plan: Plan
    agents: int  # that it was planned for

    @property
    def tok_s(self) -> float:
        """Return the predicted speed of all its replicas."""
        return self._prediction.effective_tok_s

    @property
    def _prediction(self) -> Predicted:
        return min(self.plan.predicted, key=lambda point: abs(point.concurrency - self.agents))

    def __str__(self) -> str:
        setup = self.plan.setup
        speed = self._sessions() or self._tasks()
        layout = f"{setup.layout}, {setup.slots} slots a replica"
        return f"{setup.engine}, {setup.quant.title}, {layout}; {speed}"

    def _sessions(self) -> str | None:
        """Say what the agents' sessions get; None where single requests were planned."""
        rated = self.plan.rated
        if rated.session is None:
            return None
        turns = f"{rated.session.turns_per_min:.1f} turns/min with {rated.session.sessions} agents"
        return f"{turns}, {rated.warm_sessions} sessions stay warm"

    def _tasks(self) -> str:
        prediction = self._prediction
        around = f"({prediction.low:,.0f} to {prediction.high:,.0f})"
        return f"{prediction.effective_tok_s:,.0f} tok/s at C={prediction.concurrency} {around}"


def best_plan(
    flags: PlanFlags, store: Path, rig: ResolvedRig | None = None, *, say: Say = _silent
) -> Plan:
    """Return the plan that `skep plan` puts first; raise where nothing fits.

    `rig` None: as the flags name it, or this machine.
    """
    answer = answer_plan(flags, store, rig=rig)
    if (error := nothing_fits(answer)) is not None:
        raise error
    for line in answer.notes:
        if not line.startswith(EVIDENCE_START):
            say(line)
    return answer.ranked[0][1]


def planned(
    request: ServeRequest, paths: Paths, rig: ResolvedRig | None = None, *, say: Say = _silent
) -> PlannedServe:
    """Return the best plan for a model as a table to serve. `rig` None: this machine's cards."""
    model = request.model
    if request.checkpoint and _is_folder(request.checkpoint):
        model = request.checkpoint
    agents = request.concurrency or AGENTS
    plan = best_plan(request.plan_flags(model, agents), paths.store, rig, say=say)
    setup = plan.setup
    checkpoint = request.checkpoint or own_checkpoint(request.model) or plan.checkpoint
    if checkpoint is None:
        hint = (
            f"name it: skep up {request.model} --checkpoint ORG/NAME, or a folder, or a .gguf file"
        )
        raise UserError(
            f"which checkpoint of `{request.model}`? The plan needs {setup.quant.title}", hint=hint
        )
    check_needs(checkpoint, setup.engine, request.binary)
    launches = launches_of(setup, plan.rated.rig, checkpoint=checkpoint, order=plan.order)
    launch = launches[0]
    gpus = tuple(gpu for launch in launches for gpu in launch.gpus)
    fields: dict[str, Any] = {
        name: getattr(launch, name)
        for name in ("engine", "slots", "context_tokens", "checkpoint", "options", "extra")
    }
    serve = Serve(model=request.model, replicas=setup.layout.replicas, gpus=gpus, **fields)
    return PlannedServe(_with_flags(serve, request), plan, agents)


def check_needs(checkpoint: str, engine: str, binary: str | None) -> None:
    """Raise where the installed engine is too old for a checkpoint, as the catalogue has it."""
    record = checkpoint_of(checkpoint)
    min_version = None
    if record is not None:
        min_version = re.search(rf"\b{engine}>=([0-9.]+[0-9])", record.needs)
    if min_version is None or not is_installed(engine, binary):
        return
    installed = engine_named(engine, binary).version() or ""
    version = version_of(installed.partition(" ")[2])
    if version is not None and version < (version_of(min_version[1]) or ()):
        hint = f"`skep engine install {engine}` installs a newer one; --checkpoint names another"
        raise UserError(
            f"{checkpoint} needs {engine} {min_version[1]}, installed is {installed}", hint=hint
        )


def checkpoint_to_pull(name: str, paths: Paths) -> str:
    """Return the checkpoint that `skep up NAME` would take on this machine's cards; raise where
    there are none.
    """
    model = geometry(name).id
    if read_host().gpus:
        checkpoint = planned(ServeRequest(name), paths).serve.checkpoint
        assert checkpoint is not None
        return checkpoint
    references = [
        checkpoint.reference(checkpoint.formats[0]) for checkpoint in checkpoints_of(model)
    ]
    hint = (
        "; ".join(f"`skep pull {reference}`" for reference in references[:SHOWN_CHECKPOINTS])
        or "name one on the hub: ORG/NAME"
    )
    raise UserError(
        f"which checkpoint of `{model}`? This machine has no cards to choose it for", hint=hint
    )


def own_checkpoint(name: str) -> str | None:
    """Return the name where it is a checkpoint itself: a file, a folder or a hub name."""
    if "/" in name or name.endswith(".gguf") or _is_folder(name):
        return name
    return None


def _is_folder(name: str) -> bool:
    return (Path(name).expanduser() / "config.json").is_file()


def as_told(request: ServeRequest, paths: Paths, *, cards: bool, where: str = "here") -> Serve:
    """Return the request as a table, not planned: the engine finds its cards or takes the CPU."""
    if request.engine is None:
        raise unknown_name(request.model, paths, where)
    if request.planned:
        flag = next(iter(request.planned))
        why = f"skep does not plan for {request.engine}"
        if not cards:
            why = f"no NVIDIA GPU is {where} to plan for"
        raise UserError(f"--{flag}: {why}", hint="leave it out, or try the rig with --simulate")
    options = EngineOptions(tp=request.tp or 1)
    context = default_context(request.engine)
    return _with_flags(
        Serve(request.model, request.engine, slots=SLOTS, context_tokens=context, options=options),
        request,
    )


def _with_flags(serve: Serve, request: ServeRequest) -> Serve:
    """Return the table with the flags that hold for every engine."""
    options = replace(serve.options, **request.given("memory_share", "kv_ram", "kv", "graphs"))
    return replace(
        serve,
        options=replace(options, text_only=options.text_only and not request.vision),
        checkpoint=request.checkpoint or serve.checkpoint,
        gpus=parse_gpus(request.gpus) or serve.gpus,
        binary=request.binary or serve.binary,
        replicas=request.replicas or serve.replicas,
        slots=request.slots or serve.slots,
        context_tokens=request.context or serve.context_tokens,
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
    near = ""
    if close:
        near = "did you mean " + " or ".join(f"`{close_name}`" for close_name in close) + "? "
    return UserError(
        f"`{name}` is not a preset, a known model or a file",
        hint=f"{near}`skep presets` and `skep catalog models` list what is known",
    )


def parse_gpus(text: str | None) -> tuple[int, ...]:
    """Parse `0,1`."""
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        hint = "write their numbers as `skep doctor` shows them: --gpus 0,1"
        raise UserError(f"--gpus `{text}` is not a list of GPU numbers", hint=hint)
    return tuple(int(part) for part in parts)


# Rigs that are not here


def simulated_flags(request: ServeRequest) -> PlanFlags:
    if len(request.gpu) > 1:
        hint = 'mixed cards are written as --gpu "rtx-5090 + rtx-3090"'
        raise UserError(
            f"--simulate serves one rig, but {len(request.gpu)} --gpu were given", hint=hint
        )
    agents = request.concurrency or max(AGENTS, (request.slots or 1) * (request.replicas or 1))
    return request.plan_flags(request.model, agents)


def simulated_preset_plan(
    preset: Preset, request: ServeRequest, paths: Paths, say: Say = _silent
) -> Plan:
    """Return the plan of a preset, on its own cards where none are named."""
    flags = replace(simulated_flags(request), agents=request.concurrency or agents_of(preset))
    answer = answer_preset(preset, flags, paths.store)
    if (error := nothing_fits(answer)) is not None:
        raise error
    assert answer.preset is not None
    say(f"preset {preset.name}: {preset.title}; {preset.source}")
    for line in (*answer.preset.cautions, *answer.notes):
        say(line)
    return answer.ranked[0][1]


def simulated_serve(
    request: ServeRequest, paths: Paths, say: Say = _silent
) -> tuple[str, dict[str, Any]]:
    """Return the model's id and the fields of its `Serve`, from its preset, else the best plan."""
    preset = find_preset(request.model, presets_folder(paths))
    if preset is None:
        plan = best_plan(simulated_flags(request), paths.store, say=say)
        return _served_name(plan.setup.model.id), _simulated(plan, say)
    plan = simulated_preset_plan(preset, request, paths, say)
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
    simulation = plan_of(prospect, context_tokens=setup.context, about=about, weight_bytes=weights)
    say(
        f"simulating {about}: {setup.layout.replicas} x {prospect.slots} slots of "
        f"{setup.context} tokens; no model runs"
    )
    return {
        "engine": SIMULATED,
        "replicas": setup.layout.replicas,
        "slots": simulation.slots,
        "context_tokens": simulation.context_tokens,
        "extra": ("--plan", simulation.to_json()),
        "about": f"simulated: {about}",
    }


# A machine with cards, and no word about what to serve


def refuse_toy(paths: Paths) -> None:
    """Raise UserError where this machine has cards: the small model, which is served where none is
    named, would run on the CPU.
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
    """Return models that fit this machine's cards with room for every agent, each with its
    expected speed.
    """
    offers = []
    for name in SUGGESTED_MODELS:
        try:
            plan = best_plan(PlanFlags(name, agents=AGENTS), paths.store)
        except SkepError:
            continue
        if plan.rated.holds_all and not plan.rated.on_paper:
            speed = f"about {plan.rated.outcome.effective_tok_s:,.0f} tok/s with {AGENTS} agents"
            offers.append((name, f"{speed}, {plan.setup.engine}"))
        if len(offers) == MOST_SUGGESTIONS:
            break
    return offers

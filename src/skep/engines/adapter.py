"""What the adapters of engines have in common. What differs is in one file for each engine."""

from __future__ import annotations

import json
import os
import sys
from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path

from skep.catalog.presets import Draft, EngineOptions, own_flag
from skep.engines import discovery
from skep.engines.base import ENGINE_KEY, REPORT_FD, Engine, Launch, key_variables
from skep.errors import UserError
from skep.paths import HOST

VISIBLE = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES", "intel": "ZE_AFFINITY_MASK"}
P2P = {"off": ("NCCL_P2P_DISABLE", "1"), "nvlink": ("NCCL_P2P_LEVEL", "NVL")}
DRAFTED_BY_MODEL = ("draft", "eagle", "dflash")
Refusal = tuple[str, str]  # what cannot be, and what to do instead
Known = frozenset[str] | None  # flags of the installed version; None: not known


class OwnEngine(Engine):
    """An engine that skep starts from its own package: `python -m MODULE --model ... --report-fd N`."""

    module = ""
    reports_address = True
    confirms = "slots"

    def environment(self, launch: Launch) -> dict[str, str]:
        return {**dict(launch.env), **key_variables(launch, ENGINE_KEY)}

    def words(self, *options: object, launch: Launch) -> list[str]:
        """Return the command line of names and values, with what the launch says itself at its end."""
        return [sys.executable, "-m", self.module, *map(str, options), *launch.extra]


def other_host(launch: Launch) -> list[str]:
    """Return the address to bind where it is not the usual one."""
    return flag("--host", launch.host if launch.host != HOST else None)


class Fake(OwnEngine):
    """The fake engine of `skep.testing`: for tests and for trying the gateway without a model."""

    module = "skep.testing.fake_engine"
    simulated = True

    def check(self, launch: Launch) -> None:
        pass

    def argv(self, launch: Launch) -> list[str]:
        own = ["--model", launch.model, "--slots", launch.slots, "--port", launch.port, *other_host(launch)]
        return self.words(*own, "--report-fd", REPORT_FD, launch=launch)

    def version(self) -> str | None:
        return "fake"


class Adapter(Engine):
    """An engine with a program of its own. `vendor` is of the cards, for the name of the variable they go by."""

    name = ""
    keyed_by: tuple[str, ...] = (ENGINE_KEY,)  # the variables that its key goes by; none: it cannot have one

    def __init__(self, *, cache_dir: Path | None = None, vendor: str = "nvidia") -> None:
        self.vendor = vendor
        self.binary: str | None = None  # of a launch that was neither checked nor started yet
        self._cache_dir = cache_dir
        self._program: discovery.Program | None = None

    # The engine's own

    @abstractmethod
    def refusals(self, launch: Launch) -> Iterable[Refusal]: ...

    @abstractmethod
    def arguments(self, launch: Launch, known: Known = None) -> list[str]: ...

    @abstractmethod
    def variables(self, launch: Launch) -> dict[str, str]: ...

    @abstractmethod
    def check_weights(self, launch: Launch) -> None: ...

    # The port

    def check(self, launch: Launch) -> None:
        for what, instead in self.refusals(launch):
            raise UserError(f"{self.name}: {what}", hint=instead)
        self.check_weights(launch)
        template = launch.options.chat_template or ""
        named = template.endswith(".jinja") or template.startswith(("/", "./", "../", "~/"))
        if named and not Path(os.path.expanduser(template)).is_file():  # noqa: PTH111
            raise UserError(f"{self.name}: the chat template `{template}` does not exist", hint="check the path")
        self._program = program = discovery.find_program(self.name, launch.binary)
        known = discovery.known_flags(program, self._cache_dir)
        if known is None:
            return
        for flag, near in discovery.unknown_flags(self.name, self.arguments(launch, known), known):
            own = " (from `extra`)" if any(word.startswith(flag) for word in launch.extra) else ""
            what = f"{discovery.version_of(program) or program.path} does not know the flag `{flag}`{own}"
            asked = " ".join((*program.argv, *discovery.engine_kinds()[self.name].helps[0]))
            hint = f"did you mean `{near}`? " if near else ""
            raise UserError(what, hint=f"{hint}`{asked}` lists what it knows")

    def argv(self, launch: Launch) -> list[str]:
        try:
            self._program = program = discovery.find_program(self.name, launch.binary)
            words, known = program.argv, discovery.remembered_flags(program, self._cache_dir)
        except UserError:  # said by `check`; the guard says it once more
            words, known = discovery.bare_words(self.name, launch.binary), None
        arguments = self.arguments(launch, known)  # without a shell: what a shell would make of them
        return [*words, *(os.path.expanduser(word) if word.startswith("~/") else word for word in arguments)]  # noqa: PTH111

    def environment(self, launch: Launch) -> dict[str, str]:
        own = {**self.cards(launch), **self.variables(launch), **dict(launch.env)}
        return {**own, **key_variables(launch, *self.keyed_by)}

    def version(self) -> str | None:
        if self._program is None:
            try:
                self._program = discovery.find_program(self.name, self.binary)
            except UserError:
                return None
        return discovery.version_of(self._program)

    # Shared

    def cards(self, launch: Launch) -> dict[str, str]:
        """Numbers as nvidia-smi has them: without the order of the bus, CUDA counts the fastest card first."""
        if not launch.gpus:
            return {}
        shown = {VISIBLE.get(self.vendor, VISIBLE["nvidia"]): ",".join(map(str, launch.gpus))}
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **shown} if self.vendor == "nvidia" else shown


class CheckpointEngine(Adapter):
    """vLLM and SGLang: they read a checkpoint of the hub's form and give every card the same share."""

    confirms = "metrics"

    def refusals(self, launch: Launch) -> Iterable[Refusal]:
        yield from common_refusals(launch)
        options, count = launch.options, len(launch.gpus)
        if count and options.cards != count:  # the layout says how many cards they take
            sizes = {"tp": options.tp, "pp": options.pp, "dp": options.dp}
            layout = " x ".join(f"{name}={value}" for name, value in sizes.items() if value > 1) or "tp=1"
            what = f"{layout} takes {options.cards} card{'s' if options.cards > 1 else ''}, but gpus names {count}"
            yield what, f"set tp = {count}, name as many gpus as it takes, or start several replicas"
        yield from unsupported_options(options, self.name)

    def check_weights(self, launch: Launch) -> None:
        source = source_of(launch)
        if source is None:
            hint = "name a folder, or a model of the hub as `organisation/name`"
            raise UserError(f"{self.name}: there is no checkpoint for `{launch.model}`", hint=hint)
        for what, name in (("checkpoint", source), ("draft model", draft_model(launch.options))):
            path = Path(os.path.expanduser(name or ""))  # noqa: PTH111
            if name is None or not (is_path(name) or path.exists()):
                continue
            if not path.exists():
                raise UserError(f"{self.name}: the {what} `{name}` does not exist", hint="check the path")
            if path.is_dir() and not any((path / one).exists() for one in ("config.json", "params.json")):
                hint = "name the folder that config.json is in"
                raise UserError(f"{self.name}: the {what} `{name}` has no config.json", hint=hint)

    def variables(self, launch: Launch) -> dict[str, str]:
        """Where all it reads lies in folders, the hub need not be asked."""
        named = any(word.startswith("--tokenizer") for word in launch.extra)
        read = [source for source in (source_of(launch), draft_model(launch.options)) if source is not None]
        local = source_of(launch) is not None and all(map(is_path, read)) and not named
        return p2p_variables(launch) | ({"HF_HUB_OFFLINE": "1"} if local else {})


def p2p_variables(launch: Launch) -> dict[str, str]:
    return dict([P2P[launch.options.p2p]]) if launch.options.p2p in P2P else {}


def source_of(launch: Launch) -> str | None:
    """Return what the engine is told to load: a folder, a file or a hub's name."""
    return launch.checkpoint or (str(launch.weights) if launch.weights is not None else None)


def is_path(source: str) -> bool:
    """By its looks: hub names are `organisation/name` and nothing else."""
    return source.startswith(("/", "./", "../", "~", "path/to/")) or source.endswith(".gguf") or source.count("/") > 1


def draft_model(options: EngineOptions) -> str | None:
    return options.draft.model if options.draft else None


def common_refusals(launch: Launch) -> Iterable[Refusal]:
    """Yield what no engine can do."""
    options, draft = launch.options, launch.options.draft
    own = own_flag(launch.engine, launch.extra)
    if own is not None:
        yield f"`extra` has {own[0]}, which skep sets itself", own[1]
    if launch.api_key and any(word.partition("=")[0].replace("_", "-") == "--api-key" for word in launch.extra):
        yield "`extra` has --api-key, but the deployment has its own key for its engines", "leave it out"
    if options.p2p not in (None, "off", "nvlink"):
        yield f"p2p `{options.p2p}` is unknown", 'write "nvlink" for NVLink only, "off" for not at all, or leave it out'
    if draft is not None and draft.method in DRAFTED_BY_MODEL and not draft.model:
        yield f"speculation by `{draft.method}` needs a draft model", "name one, or use mtp or ngram"
    if draft is not None and draft.depth < 1:
        yield f"speculation of {draft.depth} tokens drafts nothing", "draft 1 token or more, or leave it out"
    if options.memory_share is not None and not 0 < options.memory_share <= 1:
        yield f"memory_share {options.memory_share:g} is not a share of a card", "a number between 0 and 1, as 0.9"


def unsupported_options(options: EngineOptions, engine: str) -> Iterable[Refusal]:
    """For each option that is given and that `engines.toml` refuses: `name = value`, why, what to do instead."""
    reasons = discovery.engine_kinds()[engine].refused
    for name, value in options.given.items():
        if name in reasons:
            why, instead = reasons[name]
            shown = str(value) if isinstance(value, Draft) else json.dumps(value, ensure_ascii=False)
            yield f"{name} = {shown} {why}", instead


def flag(name: str, value: object) -> list[str]:
    """Nothing where there is no value."""
    return [] if value is None else [name, f"{value:g}" if isinstance(value, float) else str(value)]


def either(value: bool | None, yes: str | None, no: str | None) -> list[str]:
    """Return a switch that is on, off or left alone; None: that is how it is anyway."""
    word = None if value is None else yes if value else no
    return [word] if word else []

"""What the adapters of engines have in common. What differs is in one file for each engine."""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path

from skep.catalog.engines import engine_kinds, kind_of
from skep.catalog.models import checkpoint_of, geometry
from skep.catalog.presets import Draft, EngineOptions, own_flag
from skep.catalog.tool_calling import hub_name, launched_model
from skep.engines import discovery
from skep.engines.base import Engine, Launch, engine_named, key_variables
from skep.errors import UserError
from skep.host.processes import ENGINE_KEY

VISIBLE = {
    "nvidia": "CUDA_VISIBLE_DEVICES",
    "amd": "HIP_VISIBLE_DEVICES",
    "intel": "ZE_AFFINITY_MASK",
}
P2P = {"off": ("NCCL_P2P_DISABLE", "1"), "nvlink": ("NCCL_P2P_LEVEL", "NVL")}
DRAFTED_BY_MODEL = ("draft", "eagle", "dflash")
Refusal = tuple[str, str]  # what cannot be, and what to do instead
KnownFlags = frozenset[str] | None  # flags of the installed version; None: not known


class Adapter(Engine):
    """An engine with a program of its own.

    `vendor` is of the cards, for the name of the variable they go by.
    """

    name = ""
    # The variables that its key goes by; empty: it cannot have one.
    keyed_by: tuple[str, ...] = (ENGINE_KEY,)

    def __init__(self, *, cache_dir: Path | None = None, vendor: str = "nvidia") -> None:
        self.vendor = vendor
        # of the engine that is meant, where it is not the one found here
        self.release: str | None = None
        self.binary: str | None = None  # of a launch that was neither checked nor started yet
        self._cache_dir = cache_dir
        self._program: discovery.Program | None = None

    # The engine's own

    @abstractmethod
    def refusals(self, launch: Launch) -> Iterable[Refusal]: ...

    @abstractmethod
    def arguments(self, launch: Launch, known_flags: KnownFlags = None) -> list[str]: ...

    @abstractmethod
    def variables(self, launch: Launch) -> dict[str, str]: ...

    @abstractmethod
    def check_weights(self, launch: Launch) -> None: ...

    # The port

    def check(self, launch: Launch) -> None:
        for refusal, instead in self.refusals(launch):
            raise UserError(f"{self.name}: {refusal}", hint=instead)
        self.check_weights(launch)
        template = launch.options.chat_template or ""
        named = template.endswith(".jinja") or template.startswith(("/", "./", "../", "~/"))
        if named and not Path(os.path.expanduser(template)).is_file():  # noqa: PTH111
            raise UserError(
                f"{self.name}: the chat template `{template}` does not exist",
                hint="check the path",
            )
        self._program = program = discovery.find_program(self.name, launch.binary)
        known_flags = discovery.known_flags(program, self._cache_dir)
        if known_flags is None:
            return
        arguments = self.arguments(launch, known_flags)
        for flag, near in discovery.unknown_flags(self.name, arguments, known_flags):
            in_extra = any(word.startswith(flag) for word in launch.extra)
            origin = " (from `extra`)" if in_extra else ""
            version = discovery.version_of(program) or program.path
            text = f"{version} does not know the flag `{flag}`{origin}"
            help_command = " ".join((*program.argv, *engine_kinds()[self.name].helps[0]))
            hint = f"did you mean `{near}`? " if near else ""
            raise UserError(text, hint=f"{hint}`{help_command}` lists what it knows")

    def argv(self, launch: Launch) -> list[str]:
        try:
            self._program = program = discovery.find_program(self.name, launch.binary)
            words = program.argv
            known_flags = discovery.remembered_flags(program, self._cache_dir)
        except UserError:  # said by `check`; the guard says it once more
            words = discovery.bare_words(self.name, launch.binary)
            known_flags = None
        # No shell reads the arguments, so `~` is replaced here.
        argv = list(words)
        for argument in self.arguments(launch, known_flags):
            if argument.startswith("~/"):
                argv.append(os.path.expanduser(argument))  # noqa: PTH111
            else:
                argv.append(argument)
        return argv

    def environment(self, launch: Launch) -> dict[str, str]:
        variables = {**self.cards(launch), **self.variables(launch), **dict(launch.env)}
        return {**variables, **key_variables(launch, *self.keyed_by)}

    def version(self) -> str | None:
        if self._program is None:
            try:
                self._program = discovery.find_program(self.name, self.binary)
            except UserError:
                return None
        return discovery.version_of(self._program)

    # Shared

    @property
    def known_version(self) -> str | None:
        """Return the version that a command line is for; None: not looked for, or not told."""
        if self.release is not None:
            return self.release
        if self._program is None:
            return None
        return discovery.version_of(self._program)

    def cards(self, launch: Launch) -> dict[str, str]:
        """Return the variables that name the cards, with their numbers as nvidia-smi has them:
        without the order of the bus, CUDA counts the fastest card first.
        """
        if not launch.gpus:
            return {}
        visible = {VISIBLE.get(self.vendor, VISIBLE["nvidia"]): ",".join(map(str, launch.gpus))}
        if self.vendor == "nvidia":
            return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **visible}
        return visible


def adapter_of(engine: str, vendor: str = "nvidia", release: str | None = None) -> Adapter:
    """Return the adapter of an engine for cards of that vendor. `release`: of the engine."""
    known_engine = engine_named(engine)
    assert isinstance(known_engine, Adapter)
    adapter = type(known_engine)(vendor=vendor)
    adapter.release = release
    return adapter


def p2p_variables(launch: Launch) -> dict[str, str]:
    if launch.options.p2p in P2P:
        return dict([P2P[launch.options.p2p]])
    return {}


def source_of(launch: Launch) -> str | None:
    """Return what the engine is told to load: a folder, a file or a hub's name."""
    return launch.checkpoint or (str(launch.weights) if launch.weights is not None else None)


def on_hub(source: str) -> bool:
    """Return whether it is `organisation/name`, for llama.cpp with a file or a quantization behind
    a colon.
    """
    is_path = source.startswith(("/", ".", "~", "$"))
    is_file = source.partition(":")[0].endswith(".gguf")
    return not is_path and not is_file and source.count("/") == 1


def is_hybrid(model: str, checkpoint: str | None) -> bool | None:
    """Return whether a model has linear attention beside full attention; None: it is not known."""
    catalogued = launched_model(model, checkpoint)
    if catalogued is None:
        return None
    return geometry(catalogued).is_hybrid


def modalities_of(launch: Launch) -> tuple[str, ...]:
    """Return what the launch reads: images too, where a vision tower is loaded."""
    checkpoint = checkpoint_of(hub_name(source_of(launch) or ""))
    sees = checkpoint is not None and checkpoint.vision and not launch.options.text_only
    if sees and kind_of(launch.engine).told_parsers:
        return ("text", "image")
    return ("text",)


def draft_model(options: EngineOptions) -> str | None:
    if options.draft:
        return options.draft.model
    return None


def common_refusals(launch: Launch) -> Iterable[Refusal]:
    """Yield what no engine can do, and the given options that `engines.toml` refuses."""
    options = launch.options
    draft = launch.options.draft
    flag_of_skep = own_flag(launch.engine, launch.extra)
    if flag_of_skep is not None:
        yield f"`extra` has {flag_of_skep[0]}, which skep sets itself", flag_of_skep[1]
    if launch.api_key and any(
        word.partition("=")[0].replace("_", "-") == "--api-key" for word in launch.extra
    ):
        yield (
            "`extra` has --api-key, but the deployment has its own key for its engines",
            "leave it out",
        )
    if draft is not None and draft.method in DRAFTED_BY_MODEL and not draft.model:
        yield (
            f"speculation by `{draft.method}` needs a draft model",
            "name one, or use mtp or ngram",
        )
    if options.memory_share is not None and not 0 < options.memory_share <= 1:
        yield (
            f"memory_share {options.memory_share:g} is not a share of a card",
            "a number between 0 and 1, as 0.9",
        )
    reasons = engine_kinds()[launch.engine].refused
    for name, value in options.given.items():
        if name in reasons:
            why, instead = reasons[name]
            is_draft = isinstance(value, Draft)
            value_words = str(value) if is_draft else json.dumps(value, ensure_ascii=False)
            yield f"{name} = {value_words} {why}", instead


def flag(name: str, value: object) -> list[str]:
    """Return a flag with its value; nothing where there is no value."""
    if value is None:
        return []
    return [name, f"{value:g}" if isinstance(value, float) else str(value)]


def either(value: bool | None, yes: str | None, no: str | None) -> list[str]:
    """Return the flag of a switch; nothing where it is left alone, or is so anyway (None)."""
    if value is None:
        return []
    word = yes if value else no
    return [word] if word else []

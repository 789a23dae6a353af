"""What the adapters of engines have in common. What differs is in one file for each engine."""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path

from skep.catalog.models import checkpoint_of, geometry
from skep.catalog.presets import Draft, EngineOptions, own_flag
from skep.catalog.tool_calling import TOLD_PARSERS, hub_name, launched_model
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
Known = frozenset[str] | None  # flags of the installed version; None: not known


class Adapter(Engine):
    """An engine with a program of its own.

    `vendor` is of the cards, for the name of the variable they go by.
    """

    name = ""
    # The variables that its key goes by; none: it cannot have one.
    keyed_by: tuple[str, ...] = (ENGINE_KEY,)

    def __init__(self, *, cache_dir: Path | None = None, vendor: str = "nvidia") -> None:
        self.vendor = vendor
        self.release: str | None = (
            None  # of the engine that is meant, where it is not the one found here
        )
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
            raise UserError(
                f"{self.name}: the chat template `{template}` does not exist",
                hint="check the path",
            )
        self._program = program = discovery.find_program(self.name, launch.binary)
        known = discovery.known_flags(program, self._cache_dir)
        if known is None:
            return
        for flag, near in discovery.unknown_flags(self.name, self.arguments(launch, known), known):
            if any(word.startswith(flag) for word in launch.extra):
                own = " (from `extra`)"
            else:
                own = ""
            what = (
                f"{discovery.version_of(program) or program.path} does not know the flag "
                f"`{flag}`{own}"
            )
            asked = " ".join((*program.argv, *discovery.engine_kinds()[self.name].helps[0]))
            hint = f"did you mean `{near}`? " if near else ""
            raise UserError(what, hint=f"{hint}`{asked}` lists what it knows")

    def argv(self, launch: Launch) -> list[str]:
        try:
            self._program = program = discovery.find_program(self.name, launch.binary)
            words = program.argv
            known = discovery.remembered_flags(program, self._cache_dir)
        except UserError:  # said by `check`; the guard says it once more
            words = discovery.bare_words(self.name, launch.binary)
            known = None
        # Without a shell: what a shell would make of them.
        arguments = self.arguments(launch, known)
        return [
            *words,
            *(os.path.expanduser(word) if word.startswith("~/") else word for word in arguments),  # noqa: PTH111
        ]

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

    @property
    def known_version(self) -> str | None:
        """Return the version that a command line is for; None: nothing was looked for, or it does
        not tell.
        """
        if self.release is not None:
            return self.release
        if self._program is None:
            return None
        return discovery.version_of(self._program)

    def cards(self, launch: Launch) -> dict[str, str]:
        """Numbers as nvidia-smi has them: without the order of the bus, CUDA counts the fastest
        card first.
        """
        if not launch.gpus:
            return {}
        shown = {VISIBLE.get(self.vendor, VISIBLE["nvidia"]): ",".join(map(str, launch.gpus))}
        if self.vendor == "nvidia":
            return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **shown}
        return shown


def adapter_of(engine: str, vendor: str = "nvidia", release: str | None = None) -> Adapter:
    """Return the adapter of an engine of others, for cards of that vendor.

    `release`: of the engine, where known.
    """
    found = engine_named(engine)
    assert isinstance(found, Adapter)
    adapter = type(found)(vendor=vendor)
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
    """`organisation/name`; for llama.cpp with a file or a quantization behind a colon."""
    named = not source.startswith(("/", ".", "~", "$")) and not source.partition(":")[0].endswith(
        ".gguf"
    )
    return named and source.count("/") == 1


def is_hybrid(model: str, checkpoint: str | None) -> bool | None:
    """Return whether a model has linear attention beside full attention; None: it is not known."""
    known = launched_model(model, checkpoint)
    if known is None:
        return None
    return geometry(known).is_hybrid


def modalities_of(launch: Launch) -> tuple[str, ...]:
    """Return what the launch reads: pictures too where the checkpoint has a vision tower that is
    loaded.
    """
    checkpoint = checkpoint_of(hub_name(source_of(launch) or ""))
    sees = checkpoint is not None and checkpoint.vision and not launch.options.text_only
    if sees and launch.engine in TOLD_PARSERS:
        return ("text", "image")
    return ("text",)


def draft_model(options: EngineOptions) -> str | None:
    if options.draft:
        return options.draft.model
    return None


def common_refusals(launch: Launch) -> Iterable[Refusal]:
    """Yield what no engine can do, and each option that is given and that `engines.toml` refuses
    for this one.
    """
    options = launch.options
    draft = launch.options.draft
    own = own_flag(launch.engine, launch.extra)
    if own is not None:
        yield f"`extra` has {own[0]}, which skep sets itself", own[1]
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
    reasons = discovery.engine_kinds()[launch.engine].refused
    for name, value in options.given.items():
        if name in reasons:
            why, instead = reasons[name]
            if isinstance(value, Draft):
                shown = str(value)
            else:
                shown = json.dumps(value, ensure_ascii=False)
            yield f"{name} = {shown} {why}", instead


def flag(name: str, value: object) -> list[str]:
    """Nothing where there is no value."""
    if value is None:
        return []
    return [name, f"{value:g}" if isinstance(value, float) else str(value)]


def either(value: bool | None, yes: str | None, no: str | None) -> list[str]:
    """Return a switch that is on, off or left alone; None: that is how it is anyway."""
    if value is None:
        word = None
    else:
        word = yes if value else no
    return [word] if word else []

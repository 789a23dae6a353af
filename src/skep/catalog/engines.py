"""The engines that skep starts: facts from `engines.toml`, where the fields are explained.

Code asks for them instead of comparing names. How to talk to an engine is in its adapter."""

from __future__ import annotations

import tomllib
from functools import cache, lru_cache
from importlib.resources import files
from typing import Literal

import msgspec

from skep.catalog.names import squeeze

EMBEDDED = "embedded"  # llama.cpp within skep's package: what serves where nothing else is named
SIMULATED = "simulated"


class EngineKind(msgspec.Struct, frozen=True):
    """One engine of `engines.toml`."""

    title: str = ""
    adapter: str = ""
    variable: str = ""
    weights: Literal["checkpoint", "gguf", "store", "none"] = "none"
    memory_share: float | None = None
    told_parsers: bool = False
    divides_itself: bool = False
    planned: bool = False
    program: str = ""
    image: str = ""
    image_port: int = 0
    image_tag: str = ""
    image_program: str = ""
    image_cache: tuple[str, str] | None = None
    install: str = ""
    distributions: tuple[str, ...] = ()
    module: str | None = None
    command: tuple[str, ...] = ()
    helps: tuple[tuple[str, ...], ...] = ()
    abbreviates: bool = False
    package: str = ""
    disk_gib: int = 0
    refused: dict[str, tuple[str, str]] = {}
    part_of_skep: bool = False
    salts_cache: bool = False
    planned_as: str = ""
    one_cache: bool = False
    kv_words: dict[str, str] = {}
    known_as: tuple[str, ...] = ()
    running_metric: str = ""
    waiting_metric: str = ""
    tokens_metric: str = ""
    version_path: str = ""
    fixed_output: bool = False
    well_measured: bool = False
    usual_slots: tuple[int, int] = (4, 4)
    usual_batched_tokens: tuple[int, int] = (512, 512)
    unified_share: float | None = None
    trial_run: bool = False
    graphs_in_budget_since: tuple[int, ...] | None = None
    first_of_2026: tuple[int, ...] | None = None
    start_s: float = 10.0
    graphs_s: float = 0.0
    usual_kv_ram: int = 0

    @property
    def reads_gguf(self) -> bool:
        """Return whether its weights are GGUF, in a file or in a store of its own."""
        return self.weights in ("gguf", "store")

    @property
    def has_pool(self) -> bool:
        """Return whether KV is a pool of the memory that is left, as in vLLM; else slots x context
        is taken at start.
        """
        return self.weights == "checkpoint"

    @property
    def needs_weights(self) -> bool:
        return self.weights != "none"

    @property
    def plain_kv(self) -> str:
        """Return its word for a cache in 16 bits."""
        if self.has_pool:
            return "auto"
        return "f16"

    def takes(self, option: str) -> bool:
        """Return whether the option of a launch means something to it."""
        return option not in self.refused


_UNKNOWN = EngineKind()


@cache
def _all_kinds() -> dict[str, EngineKind]:
    text = files("skep.catalog").joinpath("engines.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, EngineKind])


@cache
def engine_kinds() -> dict[str, EngineKind]:
    """Return those that skep starts by name, in the order of the file."""
    return {name: kind for name, kind in _all_kinds().items() if kind.adapter}


@lru_cache(maxsize=64)
def kind_of(engine: str) -> EngineKind:
    """Return an engine's facts; none of them holds for an engine that is not in the file."""
    return _all_kinds().get(engine, _UNKNOWN)


def planned_name(engine: str) -> str:
    """Return the engine whose plans hold for this one."""
    return kind_of(engine).planned_as or engine


@cache
def model_engines() -> tuple[str, ...]:
    """Return the engines that serve models."""
    return tuple(name for name, kind in engine_kinds().items() if kind.needs_weights)


@cache
def planned_engines() -> tuple[str, ...]:
    """Return the engines that plans choose from."""
    return tuple(name for name, kind in engine_kinds().items() if kind.planned)


def most_measured_engine() -> str:
    """Return the engine with the most published measurements."""
    return planned_engines()[0]


@cache
def pooled_engines() -> tuple[str, ...]:
    """Return those that plans choose from and that keep KV in a pool."""
    return tuple(name for name in planned_engines() if kind_of(name).has_pool)


@cache
def gguf_engine() -> str:
    """Return the engine that plans choose for GGUF files."""
    return next(name for name in planned_engines() if kind_of(name).reads_gguf)


@cache
def measured_engines() -> tuple[str, ...]:
    """Return the engines that published measurements and calibrations may name."""
    return tuple(
        name for name, kind in _all_kinds().items() if kind.needs_weights and not kind.part_of_skep
    )


@cache
def own_engines() -> tuple[str, ...]:
    """Return the engines that are modules of skep."""
    return tuple(name for name, kind in engine_kinds().items() if kind.part_of_skep)


@cache
def engines_with_program() -> tuple[str, ...]:
    """Return the engines of others, which are looked for on this machine."""
    return tuple(name for name, kind in engine_kinds().items() if kind.variable)


@cache
def installable_engines() -> tuple[str, ...]:
    """Return the engines that `skep engine install` installs."""
    return tuple(name for name, kind in engine_kinds().items() if kind.package)


def engine_named_in(description: str) -> str | None:
    """Return the engine that a server's description of itself names; None: it names none."""
    text = squeeze(description)
    for name, kind in engine_kinds().items():
        if any(word in text for word in kind.known_as):
            return planned_name(name)
    return None

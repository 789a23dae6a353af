"""The engines that skep starts: facts from `engines.toml`, where the fields are explained.

Code asks for them instead of comparing names. How to talk to an engine is in its adapter."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec


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
    install: str = ""
    distributions: tuple[str, ...] = ()
    module: str | None = None
    command: tuple[str, ...] = ()
    helps: tuple[tuple[str, ...], ...] = ()
    abbreviates: bool = False
    package: str = ""
    disk_gib: int = 0
    refused: dict[str, tuple[str, str]] = {}

    @property
    def reads_gguf(self) -> bool:
        """Return whether its weights are GGUF, in a file or in a store of its own."""
        return self.weights in ("gguf", "store")


_UNKNOWN = EngineKind()


@cache
def engine_kinds() -> dict[str, EngineKind]:
    """Return all of them by name, in the order of the file."""
    text = files("skep.catalog").joinpath("engines.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, EngineKind])


def kind_of(engine: str) -> EngineKind:
    """Return an engine's facts; none of them holds for an engine that skep does not start."""
    return engine_kinds().get(engine, _UNKNOWN)


@cache
def model_engines() -> tuple[str, ...]:
    """Return the engines that serve models."""
    return tuple(name for name, kind in engine_kinds().items() if kind.weights != "none")


@cache
def planned_engines() -> tuple[str, ...]:
    """Return the engines that plans choose from."""
    return tuple(name for name, kind in engine_kinds().items() if kind.planned)


@cache
def engines_with_program() -> tuple[str, ...]:
    """Return the engines of others, which are looked for on this machine."""
    return tuple(name for name, kind in engine_kinds().items() if kind.variable)


@cache
def installable_engines() -> tuple[str, ...]:
    """Return the engines that `skep engine install` installs."""
    return tuple(name for name, kind in engine_kinds().items() if kind.package)

"""The speed model's fitted constants, packaged as TOML: one set from all sources, one without each single source."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any


def fitted_constants() -> Mapping[str, float]:
    constants: Mapping[str, float] = _read()["constants"]
    return constants


def constants_without(source: str) -> Mapping[str, float] | None:
    """Those fitted without that source's rows; None for a source that was not fitted on at all."""
    differing: Mapping[str, float] | None = _read().get("without", {}).get(source)
    return None if differing is None else {**fitted_constants(), **differing}


def fitted_bands() -> Mapping[str, Any]:
    bands: Mapping[str, Any] = _read()["bands"]
    return bands


@lru_cache(maxsize=1)
def _read() -> dict[str, Any]:
    return tomllib.loads(files("skep.catalog").joinpath("fitted.toml").read_text(encoding="utf-8"))

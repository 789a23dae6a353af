"""The speed model's fitted constants, packaged as TOML: one set from all sources, one without each single source."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from skep.catalog.tables import table, table_texts

_FILE = "fitted.toml"


@lru_cache(maxsize=1)
def fitted_constants() -> Mapping[str, float]:
    return table(_FILE, "constants")


def constants_without(source: str) -> Mapping[str, float] | None:
    """Those fitted without that source's rows; None for a source that was not fitted on at all."""
    name = f'without."{source}'  # the quote at the end is taken off, as of all names
    return {**fitted_constants(), **table(_FILE, name)} if name in table_texts(_FILE) else None


@lru_cache(maxsize=1)
def fitted_bands() -> Mapping[str, Any]:
    return table(_FILE, "bands")

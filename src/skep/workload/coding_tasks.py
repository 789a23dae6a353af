"""The mixed workload, read from `coding.toml`: its conversation, side tasks, levels and axes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from skep.workload.filling import read_data
from skep.workload.items import Checker, Item


class AxisRule(msgspec.Struct, frozen=True):
    """How one axis is computed: a figure of a level, and what it is divided by."""

    name: str
    figure: str  # "tok_s" and "ttft_ms" are of turn 1; "side" and "turns" count answers; others are of the level
    unit: str
    rule: str  # "over the fastest" | "alone over loaded" | "loaded over C times alone" | "share passed"
    definition: str


def _item(task: Mapping[str, Any], texts: Mapping[str, str]) -> Item:
    said = [("system", task["system"])] if "system" in task else []
    messages = [{"role": role, "content": _filled(text, texts)} for role, text in (*said, ("user", task["prompt"]))]
    values = {name: _filled(one, texts) if isinstance(one, str) else one for name, one in task["checker"].items()}
    kind = values.pop("kind")
    return Item(task["id"], tuple(messages), Checker(kind, values), task["max_tokens"], family=task["family"])


def _filled(text: str, texts: Mapping[str, str]) -> str:
    """With each `<<name>>` replaced by that text, and each `<<repr name>>` by its Python literal."""

    def filling(found: re.Match[str]) -> str:
        part = _filled(texts[found[2]].strip(), texts)
        return repr(part) if found[1] else part

    return re.sub(r"<<(repr )?(\w+)>>", filling, text)


_DATA = read_data("coding.toml")
_ITEMS = [_item(task, _DATA["texts"]) for task in _DATA["task"]]

TEMPERATURE: float = _DATA["temperature"]
LEVEL_NAMES: Mapping[int, str] = {1 + beside: name for beside, name in _DATA["levels"]}  # by C
TITLES: Mapping[str, str] = {task["id"]: task["title"] for task in _DATA["task"]}
PRIMARY = tuple(item for item in _ITEMS if item.family == "primary")
SIDE = tuple(item for item in _ITEMS if item.family == "side")
AXES = tuple(AxisRule(**axis) for axis in _DATA["axis"])

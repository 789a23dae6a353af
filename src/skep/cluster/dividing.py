"""The arithmetic of shares: a model's slots over doors, and each door's over the replicas. Knows only names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import add, sub

_NEARLY = 1e-9  # a sum of shares that should be whole


def divided(slots: int, wanted: Mapping[str, int], first: Sequence[str] = ()) -> dict[str, int]:
    """Max-min fair: nobody gets more than it wants while another one lacks. What nobody wants goes to who has least, so
    that a door at rest keeps its part for when it is asked again.

    `first`: in this order where there is not one for each; the others after them, by name.
    """
    given, left, places = dict.fromkeys(wanted, 0), slots, {name: place for place, name in enumerate(first)}
    hungry = [name for name in wanted if wanted[name] > 0]
    while left and hungry:
        each = left // len(hungry)
        if not each:
            for name in sorted(hungry, key=lambda name: (places.get(name, len(places)), name))[:left]:
                given[name] += 1
            left = 0
        for name in hungry if each else ():
            more = min(each, wanted[name] - given[name])
            given[name] += more
            left -= more
        hungry = [name for name in hungry if given[name] < wanted[name]]
    left += sum(given.values())
    for place, name in enumerate(sorted(given, key=lambda name: (given[name], name), reverse=True)):
        given[name] = max(given[name], left // (len(given) - place))
        left -= given[name]
    return given


def in_turn(
    owed: Mapping[str, float], holders: Mapping[str, float], without: Mapping[str, float], *, turn: bool
) -> list[str]:
    """Who comes first where doors are more than slots; each with when it last got some.

    Who is owed a slot that is still in use, always. At a turn, who has none: longest ago first; and who got some last
    keeps them. Otherwise who has some.
    """
    first, lack = (sorted(some, key=lambda name: (some[name], name)) for some in (owed, without))
    keep = sorted(holders, key=lambda name: (-holders[name], name))
    return [*first, *lack, *keep] if turn else [*first, *keep, *lack]


def spread(slots: Mapping[str, int], given: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """By door, then by replica: in proportion; what does not divide goes to who is furthest behind.

    A door that is given nothing has no entries. The time is that of the replicas times the doors.
    """
    names = sorted((name for name in given if given[name]), reverse=True)  # of equals, the first one found is meant
    amounts, total = [given[name] for name in names], sum(slots.values())
    steps = {count: [count * amount / total for amount in amounts] for count in set(slots.values()) if total}
    behind, rows = [0.0] * len(names), []
    for count in slots.values() if names else ():
        due = list(map(add, behind, steps[count]))
        row = [int(amount + _NEARLY) if amount > 0 else 0 for amount in due]
        behind = list(map(sub, due, row))
        lack = count - sum(row)
        for least in _furthest(behind, lack) if lack > 0 else ():
            row[least] += 1
            behind[least] = due[least] - row[least]
        for _ in range(-lack):
            most = min((place for place, has in enumerate(row) if has), key=behind.__getitem__)
            row[most] -= 1
            behind[most] = due[most] - row[most]
        rows.append(row)
    columns = zip(*rows, strict=True)
    return {name: dict(zip(slots, column, strict=True)) for name, column in zip(names, columns, strict=True)}


def seated(
    slots: Mapping[str, int], given: Mapping[str, int], places: Mapping[str, str | None]
) -> dict[str, dict[str, int]]:
    """As `spread`, where nobody is given more than one: who has a place keeps it. What it waits for is that slot."""
    room, found = dict(slots), dict[str, dict[str, int]]()
    for name in given:
        place = places[name]
        if given[name] and place is not None and room[place]:
            room[place] -= 1
            found[name] = {place: 1}
    vacant = [place for place, count in room.items() for _ in range(count)]
    others = [name for name in given if given[name] and name not in found]
    return found | {name: {place: 1} for name, place in zip(others, vacant, strict=True)}


def _furthest(behind: list[float], many: int) -> Iterable[int]:
    """So many places, each one further behind than the others when it is taken; who is taken moves up by one."""
    if many == 1:
        return (behind.index(max(behind)),)
    order = sorted(range(len(behind)), key=behind.__getitem__, reverse=True)[:many]
    if len(order) == many and behind[order[-1]] > behind[order[0]] - 1:
        return order  # nobody is taken twice
    return (behind.index(max(behind)) for _ in range(many))

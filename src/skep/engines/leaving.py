"""Whether replicas may go: none that serves does, where only such would stay as do not. Knows no settings and no load.

Who goes is decided by number, so that it may be the wrong one: then who asked hears what to do first.
"""

from __future__ import annotations

from collections.abc import Collection

from skep.engines.crew import Crew
from skep.engines.lifecycle import State
from skep.engines.member import Member
from skep.errors import EngineError


def check_leave(crew: Crew, going: Collection[str]) -> None:
    """Raises EngineError where the best of those that go is better than all of its model that would stay."""
    for model in dict.fromkeys(member.model for member in crew.members if member.launch.name in going):
        of_it = [member for member in crew.members if member.model == model]
        stay = [member for member in of_it if member.launch.name not in going]
        best = max(_worth(crew, member) for member in of_it)
        if stay and all(_worth(crew, member) < best for member in stay):
            left = ", ".join(f"{member.launch.name} {_lack(crew, member)}" for member in stay)
            hint = f"the last ones go first; {_remedy(crew, stay[0])}"
            raise EngineError(f"`{model}` would be left without a replica that serves: {left}", hint=hint)


def _worth(crew: Crew, member: Member) -> int:
    """2: it serves; 1: it may soon; 0: not before somebody does something."""
    if crew.is_drained(member) or member.life.state is State.FAILED:
        return 0
    return 2 if member.life.serving and crew.state(member) != "draining" else 1


def _lack(crew: Crew, member: Member) -> str:
    if crew.is_drained(member):
        return "is drained"
    if member.life.state is State.FAILED:
        return "was given up"
    state = crew.state(member)
    return "is in backoff" if state == State.BACKOFF.value else f"is {state}"


def _remedy(crew: Crew, member: Member) -> str:
    name = member.launch.name
    if crew.is_drained(member):
        return f"`skep undrain {crew.drained_node(name) or name}` lets it in again"
    if member.life.state is State.FAILED:
        return f"`skep restart {name}` starts it anew"
    return "try again when it is ready"

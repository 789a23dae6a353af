"""A replica as the gateway is told of it. `skep.gateway` reads it; neither package knows the other."""

from __future__ import annotations

from skep.engines.base import Launch
from skep.engines.member import Member
from skep.wire.link import Message


def row_of(member: Member, *, closed: bool) -> Message:
    """`closed`: it gets nothing new."""
    return {
        "name": member.launch.name,
        "model": member.model,
        "url": member.life.url,
        **_slots(member.started),
        "confirms": member.engine.confirms,
        "engine": member.launch.about or member.engine.version() or member.launch.engine,
        "simulated": member.engine.simulated,
        "own_engine": member.launch.engine != "remote",
        "release_bound_s": member.engine.release_bound_s,
        "health_path": member.launch.health_path or member.engine.health_path,
        "draining": closed,
        "context": member.started.context_tokens or None,
        "authorization": member.started.authorization,
    }


def _slots(started: Launch) -> Message:
    """After a fall-back to fewer slots, the reserve and the soft slots are fewer too."""
    slots, soft = started.slots, started.soft_slots
    return {
        "slots": slots,
        "reserve": min(started.reserve, slots - 1),
        "soft_slots": None if soft is None else min(soft, slots),
    }

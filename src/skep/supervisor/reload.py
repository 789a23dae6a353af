"""Changes to a running hive, one at a time: a reload of its settings, or another number of replicas."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence

from msgspec.structs import replace

from skep.catalog.names import model_id
from skep.config.settings import Settings
from skep.errors import EngineError, UserError
from skep.supervisor.lifecycle import ReplicaState
from skep.supervisor.replica_set import ReplicaMember, ReplicaSet


def check_removal(replica_set: ReplicaSet, going: Collection[str]) -> None:
    """Raise EngineError where a removal would leave a model with worse replicas only than the best that goes."""
    for model in dict.fromkeys(member.model for member in replica_set.members if member.launch.name in going):
        standing = {one.launch.name: _standing(replica_set, one) for one in replica_set.members if one.model == model}
        stay = {name: found for name, found in standing.items() if name not in going}
        best = max(worth for worth, _, _ in standing.values())
        if stay and all(worth < best for worth, _, _ in stay.values()):
            left = ", ".join(f"{name} {lack}" for name, (_, lack, _) in stay.items())
            hint = f"the last ones go first; {next(iter(stay.values()))[2]}"
            raise EngineError(f"`{model}` would be left without a replica that serves: {left}", hint=hint)


def _standing(replica_set: ReplicaSet, member: ReplicaMember) -> tuple[int, str, str]:
    """Return 2 if it serves, 1 if it may soon, 0 if the user must act first; what it lacks, and what to do then."""
    name = member.launch.name
    if replica_set.is_drained(member):
        node = replica_set.drained_node(name)
        return 0, "is drained", f"`skep replica undrain {node or name}` sends it requests again"
    if member.life.state is ReplicaState.FAILED:
        return 0, "was given up", f"`skep replica restart {name}` starts it again"
    state = replica_set.state(member)
    worth = 2 if member.life.serving and state != "draining" else 1
    return worth, "is in backoff" if state == "backoff" else f"is {state}", "try again when it is ready"


MOST = 1024  # replicas of a model


def replicas_of(settings: Settings, model: str) -> list[int]:
    """Return the replicas of the model's [[serve]] tables: one table, or one for each kind of node."""
    return [serve.replicas for serve in settings.serve if model_id(serve.model) == model]


def models_of(settings: Settings) -> tuple[str, ...]:
    """Return every model that skep starts."""
    return tuple(dict.fromkeys(model_id(serve.model) for serve in settings.serve))


def rescaled(settings: Settings, model: str, replicas: int) -> Iterator[Settings]:
    """Yield settings with that many replicas of the model, the preferred split first: the next may fit."""
    have = replicas_of(settings, model)
    if not have:
        known = ", ".join(models_of(settings))
        hint = f"known: {known}" if known else "its replicas are not started from here"
        raise UserError(f"there is no model `{model}` that skep starts here", hint=hint)
    if not 1 <= replicas <= MOST:
        alone = settings.cluster is not None
        away = "`skep down` takes" if alone else f"`skep model unload {model}` and `skep down` take"
        raise UserError(f"`{model}` cannot have {replicas} replicas", hint=f"from 1 to {MOST}; {away} it away")
    served = settings.serve
    for split in _splits(have, replicas):
        counts = iter(split)
        tables = (replace(one, replicas=next(counts)) if model_id(one.model) == model else one for one in served)
        yield replace(settings, serve=tuple(tables))


def _splits(have: Sequence[int], total: int) -> Iterator[tuple[int, ...]]:
    """Split `total` over the tables: remove from the last ones, add to the first ones."""
    if total <= sum(have):
        before = itertools.accumulate(have, initial=0)
        yield tuple(max(0, min(count, total - sooner)) for count, sooner in zip(have, before, strict=False))
        return
    for extra in _handed_out(total - sum(have), len(have)):
        yield tuple(count + n for count, n in zip(have, extra, strict=True))


def _handed_out(total: int, tables: int) -> Iterator[tuple[int, ...]]:
    """Yield all splits, as much as possible to the first."""
    if tables == 1:
        yield (total,)
        return
    for first in range(total, -1, -1):
        for rest in _handed_out(total - first, tables - 1):
            yield (first, *rest)

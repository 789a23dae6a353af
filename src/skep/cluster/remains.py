"""Whether what this machine has of a cluster may be ended for the next one: only on proof. Asks, and ends nothing.

Proof is that another cluster answers at the head's address; or that nobody does, and the head was on this machine, or
another head has just let us in. A head that is cut off, or does not say which cluster it has, proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from skep.cluster.heads import Head, ask_head
from skep.cluster.homenode import HomeNode
from skep.cluster.joining import check_address
from skep.errors import EngineError, SkepError, UserError

_LEAVES = "`skep cluster stop` leaves it, and ends what it serves here"
Ask = Callable[[str, str], Head]


@dataclass(frozen=True, slots=True)
class Remains:
    node: HomeNode
    session: str | None  # of its cluster; None: nothing here says it
    names: Collection[str]  # of its processes that still run
    token: str | None  # of its cluster, as far as it is kept


def why_over(remains: Remains, to: Head | None, ask: Ask = ask_head) -> str:
    """What may be ended, in words; an error where nothing proves it. `to`: the head to be joined; None: one starts."""
    node = remains.node
    if "gcs_server" in remains.names:
        raise _already(node) if "raylet" in remains.names else _headless(node)
    if "raylet" not in remains.names:
        return f"what a node of the cluster at {node.head} left behind here"
    if remains.session is None:
        raise _already(node, f"whether that is over is not known (nothing here says its session): {_LEAVES}")
    if to is not None and to.session == remains.session:
        raise _already(node)
    if _is_gone(node, to) or _has_another(remains, to, ask):
        return f"a node of the cluster at {node.head}, whose head is lost, and what it served"
    raise _already(node)


def _is_gone(node: HomeNode, to: Head | None) -> bool:
    """Whoever starts a head has reached none: that of another machine may only be cut off."""
    try:
        check_address(node.head)
    except EngineError:
        if to is None and not node.is_head:
            raise _already(node, f"its head does not answer, but may only be cut off: {_LEAVES}") from None
        return True
    return False


def _has_another(remains: Remains, to: Head | None, ask: Ask) -> bool:
    """Whether another cluster than its own answers at its head's address."""
    node = remains.node
    try:
        found = to if to is not None and to.address == node.head else _asked(remains, ask)
    except SkepError as error:
        raise _already(node, f"whether that is over is not known ({error.message}): {_LEAVES}") from None
    return found.session != remains.session


def _asked(remains: Remains, ask: Ask) -> Head:
    if remains.token is None:
        raise UserError("its token is not here")
    return ask(remains.node.head, remains.token)


def _already(node: HomeNode, hint: str = f"`skep cluster status` shows it; {_LEAVES}") -> UserError:
    return UserError(f"this machine is a node of the cluster at {node.head} already", hint=hint)


def _headless(node: HomeNode) -> UserError:
    hint = "`skep cluster stop` ends it: the other nodes serve on until a new head is at this address"
    return UserError(f"the head of the cluster at {node.head} still runs here, only its raylet has died", hint=hint)

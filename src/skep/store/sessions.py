"""Sessions of agents out of the gateway's rows: their figures, and the turns of one of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import attrgetter
from statistics import median

from skep.config.gateway_messages import SessionFigures
from skep.errors import UserError
from skep.store.database import Store
from skep.store.records import GatewayRequest
from skep.store.rows import queries, read

_SQL = queries("skep.store")
_DIGEST = re.compile(r"[0-9a-f]{1,8}")
NONE_YET = "no sessions yet"
MAKES_ONE = "the gateway records them as agents talk to it; `skep agent claude` starts one"


def sessions_since(store: Store, since: float) -> list[SessionFigures]:
    """Return the figures of sessions that sent a request since then, by their requests since then;
    newest first.
    """
    rows = read(store.read(_SQL["session_requests"], since), GatewayRequest)
    by_session: dict[tuple[str | None, str | None], list[GatewayRequest]] = {}
    for row in rows:
        key = (row.session, row.model)
        by_session.setdefault(key, []).append(row)
    return newest_first(map(figures_of, by_session.values()))


def requests_of_session(store: Store, name: str) -> list[GatewayRequest]:
    """Return the requests of the session whose id begins with `name`, in the order of their
    arrival. Raise UserError where there is no such session, or more than one.
    """
    rows: list[GatewayRequest] = []
    if _DIGEST.fullmatch(name):
        rows = read(store.read(_SQL["requests_of_session"], name), GatewayRequest)
    names = sorted({row.session for row in rows if row.session is not None})
    if not names:
        raise UserError(f"there is no session `{name}`", hint="`skep sessions` lists them")
    if len(names) > 1:
        raise UserError(
            f"several sessions begin with `{name}`: {', '.join(names[:5])}",
            hint="name more of its letters",
        )
    return rows


def figures_of(requests: Sequence[GatewayRequest]) -> SessionFigures:
    """Return the figures of a session, out of its requests in the order of their arrival."""
    turns = [request for request in requests if request.turn is not None]
    last = turns[-1] if turns else requests[-1]
    pauses = [turn.pause_s for turn in turns if turn.pause_s is not None]
    return SessionFigures(
        session=last.session or "",
        model=last.model or "",
        replica=last.replica,
        conversations=len({request.conversation for request in requests}),
        turns=len(turns),
        prompt_tokens=last.prompt_tokens,
        hit_rate=_share_of_prompts("cached_tokens", turns),
        possible_rate=_share_of_prompts("possible_tokens", turns),
        cold=dict(Counter(filter(None, (turn.cold for turn in turns)))),
        pause_s=median(pauses) if pauses else None,
        first_at=requests[0].arrived_at,
        last_at=max(request.arrived_at + request.ended_s for request in requests),
    )


def with_live(
    stored: Sequence[SessionFigures], live: Sequence[SessionFigures], since: float
) -> list[SessionFigures]:
    """Return stored sessions and those that the gateway knows, newest first. Of a session in both,
    the stored figures count: the store goes further back than the gateway's memory.
    """
    lately = [session for session in live if session.last_at >= since]
    by_key: dict[tuple[str, str], SessionFigures] = {}
    for session in (*lately, *stored):
        by_key[session.session, session.model] = session
    return newest_first(by_key.values())


def newest_first(sessions: Iterable[SessionFigures]) -> list[SessionFigures]:
    return sorted(sessions, key=attrgetter("last_at"), reverse=True)


def _share_of_prompts(field: str, turns: Sequence[GatewayRequest]) -> float | None:
    """Return the sum of a field over the sum of prompt tokens, of turns whose engine said what its
    cache held; None: no engine did.
    """
    prompt = 0
    total = 0
    for turn in turns:
        if turn.prompt_tokens is not None and turn.cached_tokens is not None:
            prompt += turn.prompt_tokens
            total += getattr(turn, field) or 0
    return total / prompt if prompt else None

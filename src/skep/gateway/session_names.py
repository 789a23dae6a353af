"""Who is talking: the session that a request belongs to, by the names that agents' clients give
it.

The one place that knows these names. What it finds decides where a conversation goes, whose turn
it is and what the log says. Clients that name nothing are told apart by how their conversation
begins (`body_inspection`)."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

# A sub-agent of Codex names itself as the session, and its parent here; one of Claude Code sends
# its parent's session.
PARENT_HEADER = b"x-codex-parent-thread-id"
# Headers that name a session, the surest first.
SESSION_HEADERS = (
    b"x-skep-session",
    PARENT_HEADER,
    b"x-claude-code-session-id",
    b"session-id",
    b"session_id",
    b"x-session-id",
    b"x-session-affinity",
    b"agent-session-id",
)
# Headers that name one of the agents of a session: each has a conversation of its own.
AGENT_HEADERS: tuple[bytes, ...] = (b"x-claude-code-agent-id",)
NAMING_HEADERS = frozenset((*SESSION_HEADERS, *AGENT_HEADERS))

# Digests of names are numbers above those of conversations' beginnings, which have 32 bits.
_SESSION_BIT = 1 << 40
_CONVERSATION_BIT = 1 << 41


def session_of_headers(headers: Mapping[bytes, bytes]) -> int | None:
    """Return the digest of the session that the headers name; None: they name none."""
    return _first_named(headers, SESSION_HEADERS)


def agent_of_headers(headers: Mapping[bytes, bytes]) -> int | None:
    """Return the digest of the agent inside its session; None: it is the session's own
    conversation.
    """
    names = AGENT_HEADERS
    if PARENT_HEADER in headers:
        names += tuple(name for name in SESSION_HEADERS if name != PARENT_HEADER)
    return _first_named(headers, names)


def _first_named(headers: Mapping[bytes, bytes], names: tuple[bytes, ...]) -> int | None:
    for name in names:
        if value := headers.get(name):
            return session_digest(value)
    return None


def session_digest(name: bytes) -> int:
    return zlib.crc32(name) | _SESSION_BIT


def conversation_in(session: int | None, agent: int | None, beginning: int | None) -> int | None:
    """Return what tells a conversation from all others: its agent's name, else its beginning, in
    its session.
    """
    if session is None:
        return beginning
    inside = agent if agent is not None else beginning
    if inside is None:
        return session
    return zlib.crc32(inside.to_bytes(8), session & 0xFFFFFFFF) | _CONVERSATION_BIT


def session_flow(session: int) -> str:
    """Return the name of a session for fair shares and logs: never the name itself, which may hold
    an account's.
    """
    return f"session:{digest_text(session)}"


def digest_text(digest: int) -> str:
    """Return a session or a conversation as it is stored and told."""
    return f"{digest & 0xFFFFFFFF:08x}"

"""Estimates the tokens of answers that are still streaming. An event may carry several, as with
speculation, and only the end of an answer says how many they were.
"""

from __future__ import annotations


class TokensPerEvent:
    """Tokens an event, learned from the answers that have ended; 1 until an answer has."""

    def __init__(self) -> None:
        self._tokens = 0
        self._events = 0

    @property
    def is_known(self) -> bool:
        return self._events > 0

    @property
    def value(self) -> float:
        if self._events:
            return self._tokens / self._events
        return 1.0

    def take(self, events: int, tokens: int) -> None:
        """Learn from an answer that has ended, of so many events and tokens."""
        if events > 0 and tokens > 0:
            self._events += events
            self._tokens += tokens

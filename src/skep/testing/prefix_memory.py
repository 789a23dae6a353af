"""What a prefix cache would still hold: the longest beginning of a prompt, in words, that an
earlier prompt had too.
"""

from __future__ import annotations

from collections.abc import Iterable

MOST_WORDS = 1_000_000  # of all prompts; then it is empty again, as a cache after a restart


class PrefixMemory:
    def __init__(self) -> None:
        self._hashes: set[int] = set()  # each is the hash of one beginning

    def cached(self, words: Iterable[str]) -> int:
        """Return how many words are known from earlier prompts, and remember all of them.

        The last word is always computed.
        """
        beginning = 0
        known_tokens = 0
        count = 0
        if len(self._hashes) > MOST_WORDS:
            self._hashes.clear()
        hashes = self._hashes
        for count, word in enumerate(words, 1):
            beginning = hash((beginning, word))
            if known_tokens == count - 1 and beginning in hashes:
                known_tokens = count
            hashes.add(beginning)
        return min(known_tokens, max(0, count - 1))

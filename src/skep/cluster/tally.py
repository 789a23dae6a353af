"""Counts by name, summed over who says them, and which sums have changed since a moment. Knows not what is counted."""

from __future__ import annotations


class Tally:
    """`mark` is this moment. Since an earlier one, a sum may also have moved to 0."""

    def __init__(self) -> None:
        self.mark = 0
        self._sums: dict[str, int] = {}
        self._moved: dict[str, int] = {}  # when, by name that ever was; the latest is the last

    def __repr__(self) -> str:
        return f"<Tally {sum(self._sums.values())} of {len(self._sums)} names>"

    def add(self, name: str, amount: int) -> None:
        if not amount:
            return
        self._sums[name] = self._sums.get(name, 0) + amount
        if not self._sums[name]:
            del self._sums[name]
        self.mark += 1
        self._moved.pop(name, None)
        self._moved[name] = self.mark

    def sums(self, since: int | None = None) -> dict[str, int]:
        """All that are not 0, or those that have moved since."""
        if since is None:
            return dict(self._sums)
        found, sums = {}, self._sums
        for name in reversed(self._moved):
            if self._moved[name] <= since:
                break
            found[name] = sums.get(name, 0)
        return found

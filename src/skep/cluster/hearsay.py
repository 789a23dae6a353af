"""What others of the cluster say: what is not understood, such as a post of another skep, costs only what it said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from skep.errors import SkepError

UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, SkepError)


class Misread:
    """What is not understood at this moment, by what it is about: forgotten once that is understood again."""

    def __init__(self) -> None:
        self._troubles: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<Misread {sorted(self._troubles)}>"

    @contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """What a cluster with another skep says may not be understood: that costs what it said, and nothing else."""
        try:
            yield
        except UNREADABLE as error:
            self.note(what, f"what the cluster says is not understood ({type(error).__name__}: {error})")
        else:
            self.note(what, None)

    def note(self, what: str, trouble: str | None) -> None:
        self._troubles.pop(what, None)
        if trouble is not None:
            self._troubles[what] = trouble

    @property
    def newest(self) -> str | None:
        return next(reversed(self._troubles.values()), None)

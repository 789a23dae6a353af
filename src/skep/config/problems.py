"""What is wrong with a configuration file: gathered while it is read, and told at once."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files

from skep.catalog.names import did_you_mean
from skep.errors import UserError
from skep.units import one_line

LONGEST_SHOWN = 80  # characters of a wrong value or key
_MOST_SHOWN = 20  # problems: a file that is no configuration at all has thousands
# problems after which nothing more is read: each costs a search for the key that is meant
_MOST_GATHERED = 1000


class TooManyProblems(Exception):
    """Reading ends here: the file has so many problems that more of them would help nobody."""


class Problems:
    """The errors of one file, in the order they were found."""

    def __init__(self) -> None:
        self._errors: list[UserError] = []

    def __repr__(self) -> str:
        return f"<Problems {len(self._errors)}>"

    def __len__(self) -> int:
        return len(self._errors)

    def add(self, error: UserError) -> None:
        """Raise TooManyProblems where this is one of very many."""
        self._errors.append(error)
        if len(self._errors) >= _MOST_GATHERED:
            raise TooManyProblems

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Keep the UserError that is raised inside, and go on after the block."""
        try:
            yield
        except UserError as error:
            self.add(error)

    def tell(self, origin: str, docs: str) -> None:
        """Raise UserError where there are any: a single one as it is, several in a line each.

        `docs`: what describes every key, the hint where there are several.
        """
        if not self._errors:
            return
        if len(self._errors) == 1:
            (error,) = self._errors
            raise UserError(f"{origin}: {error.message}", hint=error.hint)
        lines = [_line(error, docs) for error in self._errors[:_MOST_SHOWN]]
        if len(self._errors) > _MOST_SHOWN:
            lines.append(f"and {len(self._errors) - _MOST_SHOWN} more")
        listed = "".join(f"\n  {line}" for line in lines)
        count = str(len(self._errors))
        if len(self._errors) >= _MOST_GATHERED:
            count = f"at least {_MOST_GATHERED:,}"
        raise UserError(f"{origin}: {count} keys or values are wrong:{listed}", hint=docs)


def unknown_key(place: str, key: str, known_keys: Sequence[str]) -> UserError:
    """Return the error of a key that is not known. `place`: its table; empty: the whole file."""
    full_key = one_line(f"{place}.{key}" if place else key, LONGEST_SHOWN)
    replacement = _removed_keys().get(re.sub(r"\.\d+$", "", place), {}).get(key)
    if replacement is not None:
        return UserError(f"`{full_key}` was removed", hint=replacement)
    hint = did_you_mean(meant_keys(key, known_keys), f"known here: {', '.join(known_keys)}")
    return UserError(f"`{full_key}` is an unknown key", hint=hint)


def meant_keys(key: str, known_keys: Sequence[str]) -> list[str]:
    """Return the known key that is most like a misspelt one, in a list; empty: none is like it."""
    return difflib.get_close_matches(key[:LONGEST_SHOWN], known_keys, n=1)


def _line(error: UserError, docs: str) -> str:
    if error.hint in (None, docs):
        return error.message
    return f"{error.message}; {error.hint}"


@cache
def _removed_keys() -> dict[str, dict[str, str]]:
    return tomllib.loads(
        files("skep.config").joinpath("removed_keys.toml").read_text(encoding="utf-8")
    )

"""What a misspelt name may have meant, within a fault's line."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches


def like(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1, cutoff=0.6)
    if near:
        return f"did you mean `{near[0]}`?"
    return f"there is {', '.join(f'`{one}`' for one in known)}"

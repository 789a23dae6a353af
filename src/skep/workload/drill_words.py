"""Words that drills are made of."""

from __future__ import annotations

from skep.workload.data import read_data

WORDS, NAMES, DAYS, MONTHS = (
    tuple(str(read_data("words.toml")[name]).split()) for name in ("words", "names", "days", "months")
)

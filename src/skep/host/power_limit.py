"""Power limits of NVIDIA's cards, read and set by nvidia-smi."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from skep.errors import UserError
from skep.host.facts import ask_smi
from skep.units import one_line

SMI = "nvidia-smi"
ANSWER_S = 20.0
_FIELDS = ("index", "power.limit", "power.min_limit", "power.max_limit")


class PowerLimit(msgspec.Struct, frozen=True):
    """What one card may draw, in whole watts, and between which limits that can be set."""

    card: int
    limit_w: int
    min_w: int
    max_w: int


def read_power_limits(cards: Sequence[int]) -> tuple[PowerLimit, ...]:
    """Return the limits of these cards. Raise UserError where one does not tell its own."""
    status, text = _ask(f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")
    limits = {}
    for line in text.splitlines() if status == 0 else ():
        cells = [cell.strip() for cell in line.split(",")]
        with suppress(ValueError):
            numbers = [round(float(cell)) for cell in cells]
            if len(numbers) == len(_FIELDS):
                limits[numbers[0]] = PowerLimit(*numbers)
    silent = [card for card in cards if card not in limits]
    if silent:
        raise UserError(
            f"nvidia-smi does not tell the power limit of card {silent[0]}",
            hint="leave `--allow power-limit` out",
        )
    return tuple(limits[card] for card in cards)


def set_power_limit(card: int, watts: int) -> None:
    """Set the limit of a card. Raise UserError with what nvidia-smi says where it may not be."""
    status, text = _ask("-i", str(card), "-pl", str(watts))
    if status != 0:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        why = one_line(lines[0]) if lines else f"it ended with status {status}"
        raise UserError(
            f"the power limit of card {card} may not be set to {watts} W: {why}",
            hint="run skep as root, or leave `--allow power-limit` out",
        )


def _ask(*words: str) -> tuple[int, str]:
    try:
        return ask_smi(SMI, ANSWER_S, *words)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(
            f"nvidia-smi could not be asked about power limits: {error}",
            hint="leave `--allow power-limit` out",
        ) from None

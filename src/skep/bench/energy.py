"""What a level's energy means for who pays for it: per token, and per million tokens at a price. Pure.

Only the GPUs' energy is known. Knows no currency: the cost is in whatever the price is in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from skep.bench.records import Energy

JOULES_PER_KWH = 3_600_000.0
TOKENS = 1_000_000


@dataclass(frozen=True, slots=True)
class EnergyWords:
    """One level's energy, ready to be shown. None: there is nothing to say."""

    per_token: str | None  # "0.312 J/token"; None: no token came
    cost: str | None  # "0.026 per million tokens at 0.30/kWh"; None: without a price
    power: str  # "690 W on average, 757 W at most"
    throttled: str | None  # "power cap, thermal"
    source: str


def cost_per_million_tokens(joules_per_token: float, price_per_kwh: float) -> float:
    return joules_per_token * TOKENS / JOULES_PER_KWH * price_per_kwh


def energy_words(energy: Energy, price_per_kwh: float | None = None) -> EnergyWords:
    each = energy.joules_per_token
    cost = None
    if each is not None and price_per_kwh is not None:
        amount = figures(cost_per_million_tokens(each, price_per_kwh))
        cost = f"{amount} per million tokens at {price(price_per_kwh)}/kWh"
    return EnergyWords(
        per_token=None if each is None else f"{figures(each)} J/token",
        cost=cost,
        power=f"{energy.mean_w:.0f} W on average, {energy.max_w:.0f} W at most",
        throttled=", ".join(energy.throttled) or None,
        source=energy.source,
    )


def figures(value: float) -> str:
    """Three of them, and two places where money and joules are usually read: 0.312, 2.21, 14.70, 1,470.00."""
    if value == 0 or abs(value) >= 1:
        return f"{value:,.2f}"
    return f"{value:.3g}" if abs(value) < 0.001 else f"{value:.3f}"


def price(per_kwh: float) -> str:
    """At least two places, and no more than were given: 0.30, 0.2875."""
    shown = f"{per_kwh:.6f}".rstrip("0")
    whole, _, places = shown.partition(".")
    return f"{whole}.{places:0<2}"


def has_energy(energies: Sequence[Energy | None]) -> bool:
    """Whether the columns exist at all: where nothing measured it, they are absent, not empty."""
    return any(energy is not None for energy in energies)

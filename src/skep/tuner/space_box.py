"""What knobs are offered for: the preset, the goal and the machine, with the ladders that several engines share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from skep.catalog.devices import Device
from skep.catalog.geometry import Geometry
from skep.catalog.presets import Preset
from skep.planner.candidates import Goal
from skep.planner.setup import Rig
from skep.tunings import Aim, Knob

MOST_SLOTS = 1024
_STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_FEWEST = 8  # slots below an eighth of the agents are not tried


@dataclass(frozen=True, slots=True)
class Box:
    """What of a machine bounds the knobs. `model`: read from files; None: by the preset's name of it.

    `rig`: its cards, or its CPU as one device; None: not known.
    """

    cores: int = 1
    rig: Rig | None = None
    model: Geometry | None = None

    @property
    def cards(self) -> tuple[Device, ...]:
        return tuple(card for card in self.rig.cards if card.vendor != "cpu") if self.rig is not None else ()


@dataclass(frozen=True, slots=True)
class Asked:
    """`quants`: the formats that may be loaded; `named`: knobs that the user asked for by name."""

    base: Preset
    aim: Aim
    box: Box
    model: Geometry | None
    quants: tuple[str, ...]
    named: frozenset[str]

    @property
    def goal(self) -> Goal:
        aim = self.aim
        kind = "latency" if aim.metric == "task_tok_s" else "throughput"
        return Goal(kind, aim.concurrency, aim.input_tokens, aim.output_tokens)

    def slots(self, expected: float = 0.15) -> Knob:
        """Of one replica. Twice the agents is more than can be busy; far fewer than they are is a queue."""
        agents = min(self.aim.concurrency, MOST_SLOTS // 2)
        rungs = {step for step in _STEPS if agents // _FEWEST <= step <= 2 * agents}
        return Knob("slots", "slots of a replica", tuple(sorted(rungs | {agents})), ordered=True, expected=expected)

    def ngram(self, depths: Sequence[int]) -> Knob:
        """More than half an answer at once is never right."""
        fitting = tuple(depth for depth in depths if 2 * depth <= self.aim.output_tokens)
        return Knob("ngram", "n-gram drafts", fitting, ordered=True, expected=0.04)

    def prompts(self, first: int, last: int) -> tuple[int, ...]:
        """Powers of two up to all prompts at once: beyond that a larger one changes nothing."""
        return powers(first, min(last, max(2 * first, self.aim.concurrency * self.aim.input_tokens)))


def steps_up_to(most: int) -> tuple[int, ...]:
    """1, 2, 3, 4, 6, 8, 12, ... and the last itself."""
    return tuple(sorted({step for step in _STEPS if step <= most} | {max(1, most)}))


def powers(first: int, last: int) -> tuple[int, ...]:
    """Of two, from the first to at least the last."""
    found = [first]
    while found[-1] < last:
        found.append(found[-1] * 2)
    return tuple(found)

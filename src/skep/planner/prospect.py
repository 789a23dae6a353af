"""What one setup on one rig is expected to do: its step model, its slots, its pool, and any load played on them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from skep.catalog.devices import Device
from skep.planner.constants import Constants
from skep.planner.fitting_in import kv_capacity_tokens
from skep.planner.forecast import Outcome, play
from skep.planner.memory_facts import defaults
from skep.planner.rigs import group_link, groups, pace_setter
from skep.planner.setup import Link, Load, Rig, Setup
from skep.planner.step import UNTUNED, StepModel, Tuning, step_model

SPLITTING = ("llamacpp", "ollama", "ik_llamacpp")  # walk layer after layer over their cards unless told otherwise


@dataclass(frozen=True, slots=True)
class Prospect:
    setup: Setup
    card: Device  # that sets the pace
    link: Link | None
    step: StepModel
    slots: int  # of one replica
    pool_tokens: float  # of one replica
    chunk_tokens: int
    constants: Constants

    def outcome(self, load: Load) -> Outcome:
        """As a user would measure it: output tokens over wall time, run-to-run losses counted."""
        played = play(
            self.step, load, slots=self.slots, pool_tokens=self.pool_tokens, chunk_tokens=self.chunk_tokens,
            replicas=self.setup.layout.replicas,
        )  # fmt: skip
        tail = self.constants.run_tail if load.concurrency > 1 else 1.0
        return replace(played, effective_tok_s=played.effective_tok_s * tail)


def prospect(setup: Setup, rig: Rig, constants: Constants, *, context: int, tuning: Tuning = UNTUNED) -> Prospect:
    """`context`: tokens of a whole sequence, prompt and answer. `tuning`: what a calibration of this machine found."""
    worst: tuple[Device, Link | None] | None = None
    split = setup.engine in SPLITTING and setup.layout.tp == 1 and setup.layout.pp > 1
    for group in groups(setup.layout):
        card = pace_setter([rig.cards[place] for place in group], split=split)
        link = group_link(rig, group) if setup.layout.tp > 1 else None
        if worst is None or _slower((card, link), worst):
            worst = (card, link)
    assert worst is not None
    card, link = worst
    usual = defaults(setup.engine, card)
    slots = setup.slots or usual.slots
    pool = kv_capacity_tokens(setup, card, context=context, slots=slots)
    step = step_model(
        setup.model, setup.quant, setup.kv, card, setup.layout, link, engine=setup.engine, graphs=setup.graphs,
        spec=setup.spec, constants=constants, split=split, tuning=tuning, weight_only=_weight_only(setup, card),
    )  # fmt: skip
    return Prospect(
        setup, card, link, step, slots, float(pool), setup.batched_tokens or usual.batched_tokens, constants
    )


def _weight_only(setup: Setup, card: Device) -> bool:
    """A format the card has no hardware for is unpacked to 16 bit by the kernel."""
    return setup.quant.family in ("fp8", "fp4", "int8") and setup.quant.family not in card.formats


def _slower(one: tuple[Device, Link | None], other: tuple[Device, Link | None]) -> bool:
    if one[0].bandwidth_gbs != other[0].bandwidth_gbs:
        return one[0].bandwidth_gbs < other[0].bandwidth_gbs
    mine, its = one[1], other[1]
    return mine is not None and its is not None and (mine.kind == "nvlink", mine.gbs) < (its.kind == "nvlink", its.gbs)

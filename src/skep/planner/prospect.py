"""What one setup on one rig is expected to do: its step model, its slots, its pool, and any load played on them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from skep.catalog.devices import Device
from skep.planner.batching import Replica
from skep.planner.constants import Constants
from skep.planner.fitting_in import kv_capacity_tokens
from skep.planner.forecast import Outcome, play_on
from skep.planner.memory_facts import defaults
from skep.planner.rates import LLAMACPP
from skep.planner.rigs import group_link, groups, pace_setter
from skep.planner.setup import Link, Load, Rig, Setup
from skep.planner.step import UNTUNED, StepModel, Tuning, step_model


@dataclass(frozen=True, slots=True)
class Prospect:
    """`card`, `link`, `step` and `pool_tokens` are of the slowest replica; `steps` of each."""

    setup: Setup
    card: Device
    link: Link | None
    step: StepModel
    slots: int  # of one replica
    pool_tokens: float  # of one replica
    chunk_tokens: int
    constants: Constants
    steps: tuple[StepModel, ...] = ()

    def outcome(self, load: Load) -> Outcome:
        """As a user would measure it: output tokens over wall time, run-to-run losses counted."""
        steps = self.steps or (self.step,) * self.setup.layout.replicas
        played = play_on([Replica(step, self.slots, self.pool_tokens, self.chunk_tokens) for step in steps], load)
        tail = self.constants.run_tail if load.concurrency > 1 else 1.0
        return replace(played, effective_tok_s=played.effective_tok_s * tail)


def prospect(setup: Setup, rig: Rig, constants: Constants, *, context: int, tuning: Tuning = UNTUNED) -> Prospect:
    """`context`: tokens of a whole sequence, prompt and answer. `tuning`: what a calibration of this machine found."""
    split = setup.engine in LLAMACPP and setup.layout.tp == 1 and setup.layout.pp > 1
    found: dict[tuple[Device, Link | None], StepModel] = {}
    replicas = []
    for group in groups(setup.layout):
        card = pace_setter([rig.cards[place] for place in group], in_turn=setup.layout.tp == 1)
        link = group_link(rig, group) if setup.layout.tp > 1 else None
        if (card, link) not in found:
            found[card, link] = step_model(
                setup.model, setup.quant, setup.kv, card, setup.layout, link, engine=setup.engine, graphs=setup.graphs,
                spec=setup.spec, constants=constants, split=split, tuning=tuning, weight_only=_weight_only(setup, card),
            )  # fmt: skip
        replicas.append((found[card, link], card, link))
    step, card, link = max(replicas, key=lambda one: one[0].seconds(1, context))
    smallest = replace(card, memory_gib=min(rig.cards[place].memory_gib for place in range(setup.layout.cards)))
    usual = defaults(setup.engine, smallest)
    slots = setup.slots or usual.slots
    pool = kv_capacity_tokens(setup, smallest, context=context, slots=slots)
    chunk = setup.batched_tokens or usual.batched_tokens
    steps = tuple(one for one, _, _ in replicas)
    return Prospect(setup, card, link, step, slots, float(pool), chunk, constants, steps)


def _weight_only(setup: Setup, card: Device) -> bool:
    """A format the card has no hardware for is unpacked to 16 bit by the kernel."""
    return setup.quant.family in ("fp8", "fp4", "int8") and setup.quant.family not in card.formats

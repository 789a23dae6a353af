"""How long a request holds its slot, from the planner's step model of one replica. SIMULATED: no
engine runs.

A replica is Qwen3 8B in FP8 on one H100 under vLLM. A request's prompt is prefilled in one pass of
its own, less the part that the replica still has of the conversation; each output token takes a
step of a batch that fills the slots."""

from __future__ import annotations

from random import Random

from skep.catalog.gpus import device
from skep.catalog.models import geometry
from skep.planner.setup import KV_TYPES, QUANTS, Setup
from skep.planner.step import published_constants, step_model

MODEL = "qwen3-8b"
CARD = "h100-sxm"
QUANT = "fp8"
KV = "bf16"
ENGINE = "vllm"
SLOTS = (8, 16, 32)
CONTEXT = 6_000  # tokens of a conversation, in the middle
NEW_TOKENS = 600  # of a turn that comes back: the last answer and the new question
OUTPUT_TOKENS = 300  # mean; lognormal, sigma 0.6
SIGMA = 0.6


class Service:
    def __init__(self) -> None:
        setup = Setup(geometry(MODEL), QUANTS[QUANT], KV_TYPES[KV], ENGINE)
        step = step_model(setup, device(CARD), None, published_constants())
        self.cold_s = step.seconds(0, 0.0, CONTEXT, 0.0)
        self.warm_s = step.seconds(0, 0.0, NEW_TOKENS, CONTEXT - NEW_TOKENS)
        self.token_s = {slots: step.seconds(slots, slots * CONTEXT) for slots in SLOTS}

    def words(self) -> str:
        speeds = ", ".join(
            f"{1 / seconds:.0f} tok/s of {slots}" for slots, seconds in self.token_s.items()
        )
        return (
            f"{MODEL} {QUANT} on {CARD}: prompt {self.cold_s:.2f} s, returning "
            f"{self.warm_s:.2f} s; {speeds} at once"
        )

    def mean_s(self, slots: int) -> float:
        return self.warm_s + OUTPUT_TOKENS * self.token_s[slots]

    def draw_s(self, rng: Random, slots: int, *, returning: bool) -> float:
        tokens = OUTPUT_TOKENS * rng.lognormvariate(-SIGMA * SIGMA / 2, SIGMA)
        return (self.warm_s if returning else self.cold_s) + tokens * self.token_s[slots]

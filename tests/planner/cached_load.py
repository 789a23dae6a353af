"""Sequences with names for their blocks, and a replica of an 8B on an H200 to play them on."""

from skep.catalog.gpus import device
from skep.catalog.models import geometry
from skep.planner.batching import Sequence
from skep.planner.caching import CachingReplica, KvTier
from skep.planner.predict import prospect
from skep.planner.setup import Layout, Rig, Setup, find_kv, find_quant
from skep.planner.step import published_constants

BLOCK = 16
SLOTS = 64
CHUNK = 8192


def step_model():
    setup = Setup(
        geometry("qwen3-8b"),
        find_quant("bf16"),
        find_kv("bf16"),
        "vllm",
        Layout(),
        slots=SLOTS,
        batched_tokens=CHUNK,
    )
    return prospect(setup, Rig((device("h200"),)), published_constants(), context=32_768).step


STEP = step_model()


def replica(
    pool_tokens=100_000,
    slots=SLOTS,
    ram_tokens=None,
    tokens_per_s=200_000,
    block=BLOCK,
    state_blocks=0,
):
    ram = KvTier(ram_tokens, tokens_per_s) if ram_tokens else None
    return CachingReplica(
        STEP, slots, pool_tokens, CHUNK, block_tokens=block, state_blocks=state_blocks, ram=ram
    )


def sequence(number, prompt, output, name=None):
    """Return a sequence whose blocks are those of the conversation `name`."""
    name = number if name is None else name
    full = prompt // BLOCK
    end = (prompt + output) // BLOCK
    return Sequence(
        number,
        float(prompt),
        float(output),
        blocks=tuple((name, place) for place in range(full)),
        answer_blocks=tuple((name, place) for place in range(full, end)),
    )


def play(machine, *sequences):
    """Run until nothing is left; return the seconds, and what ended in which order."""
    for entry in sequences:
        machine.submit(entry)
    seconds = 0.0
    ended = []
    while (following := machine.next_pass()) is not None:
        seconds += following.seconds
        ended += [entry.id for entry in machine.finish(following).ended]
    return seconds, ended

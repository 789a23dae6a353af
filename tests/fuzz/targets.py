"""What is fuzzed. Each target has `check(data)`, which raises where a promise is broken, `SEEDS`
and `WORDS`.

A `check` may be a coroutine function: it is called in an event loop.
"""

import inspect
from pathlib import Path

from fuzz import fuzz_bodies, fuzz_client, fuzz_metrics, fuzz_pipe, fuzz_server, fuzz_streams

TARGETS = {
    "bodies": fuzz_bodies,
    "client": fuzz_client,
    "metrics": fuzz_metrics,
    "pipe": fuzz_pipe,
    "server": fuzz_server,
    "streams": fuzz_streams,
}
CORPUS = Path(__file__).parent / "corpus"
CHOICES = (b"\0\0", b"\1\7", b"\4\2", b"\4\3")  # how a seed is cut and received


def seed_inputs(target):
    return [choice + seed for seed in TARGETS[target].SEEDS for choice in CHOICES]


def corpus_inputs(target):
    return [path.read_bytes() for path in sorted((CORPUS / target).glob("*"))]


def check_input(target, data, run):
    """`run` runs a coroutine: `asyncio.Runner().run`."""
    outcome = TARGETS[target].check(data)
    if inspect.iscoroutine(outcome):
        run(outcome)

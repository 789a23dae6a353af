"""Agents at the gateway: do their sessions come back, who takes the slots, and what becomes of
clients that give up.

    .venv/bin/python benchmarks/agents.py [--rounds 5] [--out FILE]
    .venv/bin/python benchmarks/agents.py --before ../old/.venv/bin/python

SIMULATED: engines are fake ones (real processes) whose times are set; the gateway is real. With
`--before` the gateway of another checkout does the same in turns, in the same run.

- `sessions`: eight sessions of 24 turns at once on two replicas of four slots, as Claude Code
  sends them. How many turns came to the replica that had answered the session's turn before.
  `billing line` is the line of its system prompt that changes with every request; `named` sends
  its session header.
- `fairness`: forty sub-agents of one session keep four slots busy; one request of another session
  comes. Its time, as a multiple of its time alone.
- `giving up`: one slot, and always eight patient clients. One more gives up after a while and
  sends the same again, until it is answered. How long that took, as a multiple of what a patient
  client waits; `never`: not within the limit.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from skep.testing.process import FakeEngine, GatewayProcess
from skep.wire.heads import gateway_fields

MODEL = "fake-model"
CHAT = "/v1/chat/completions"
SESSIONS = 8
TURNS = 24
SLOTS = 4
SUB_AGENTS = 40
PATIENT = 8
GIVES_UP_AFTER = 0.5  # of what a patient client waits
LONGEST = 6  # times what a patient client waits; then it counts as never
BILLING = "x-anthropic-billing-header: cc_version=2.1.327; cc_entrypoint=cli; cch={:05x};"


class Gateway:
    """A gateway of one interpreter before fake engines, and requests to it."""

    def __init__(self, process: GatewayProcess) -> None:
        self.port = process.port

    async def ask(self, path: str, document: dict[str, Any], headers: dict[str, str]) -> str:
        """Return the name of the replica that answered. Cancelling it hangs up."""
        body = json.dumps(document).encode()
        lines = [
            f"POST {path} HTTP/1.1",
            "host: x",
            f"content-length: {len(body)}",
            "connection: close",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            answer = await reader.read()
        finally:
            writer.close()
        head = answer.partition(b"\r\n\r\n")[0].decode()
        status, *rest = head.split("\r\n")
        assert " 200 " in status, answer[:500]
        fields = dict(line.split(": ", 1) for line in rest)
        return gateway_fields(fields["x-skep"])["replica"]


@contextlib.contextmanager
def gateway_of(python: str, engines: int, slots: int, **options: Any) -> Iterator[Gateway]:
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(FakeEngine(slots=slots, ctx=400_000, **options))
            for _ in range(engines)
        ]
        log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "gateway.log"
        process = stack.enter_context(GatewayProcess(log, python=python))
        common = {"model": MODEL, "slots": slots, "confirms": "slots"}
        process.serve(
            [
                {"name": f"r{number}", "url": engine.url, **common}
                for number, engine in enumerate(running)
            ]
        )
        yield Gateway(process)


async def end(crowd: Sequence[asyncio.Task[None]]) -> None:
    """End clients that go on for ever.

    Raise what one of them met: without it there was no such load.
    """
    for task in crowd:
        task.cancel()
    for outcome in await asyncio.gather(*crowd, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome


# Sessions


def turn_of(session: int, turn: int, line: str) -> dict[str, Any]:
    task = {"type": "text", "text": f"task {session}"}
    conversation: list[dict[str, Any]] = [{"role": "user", "content": [task]}]
    for number in range(turn):
        conversation.append({"role": "assistant", "content": f"step {number}"})
        conversation.append({"role": "user", "content": f"result {number} " * 100})
    system = [
        {"type": "text", "text": line},
        {"type": "text", "text": "You are an agent. " * 1000},
    ]
    return {"model": MODEL, "max_tokens": 8, "system": system, "messages": conversation}


def chat_of(content: str, tokens: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL, "max_tokens": tokens, "messages": messages}


async def run_session(
    gateway: Gateway,
    session: int,
    numbers: Iterator[int],
    *,
    changes: bool,
    named: bool,
) -> int:
    """Return how many turns came back."""
    if named:
        headers = {"x-claude-code-session-id": f"session-{session}"}
    else:
        headers = {}
    home = ""
    returned = 0
    for turn in range(TURNS):
        line = BILLING.format(next(numbers) if changes else 1)
        replica = await gateway.ask("/v1/messages", turn_of(session, turn, line), headers)
        returned += replica == home
        home = replica
        await asyncio.sleep(0.01 * (1 + session % 3))  # its tools run
    return returned


async def sessions(python: str, *, changes: bool, named: bool) -> float:
    with gateway_of(python, 2, SLOTS, token_ms=4) as gateway:
        numbers = itertools.count()
        runs = [
            run_session(gateway, number, numbers, changes=changes, named=named)
            for number in range(SESSIONS)
        ]
        returned = await asyncio.gather(*runs)
    return sum(returned) / (SESSIONS * (TURNS - 1))


# Fairness


async def fairness(python: str) -> float:
    """Return a request's time beside another session's sub-agents, as a multiple of its time
    alone.
    """
    with gateway_of(python, 1, SLOTS, token_ms=5) as gateway:

        async def single() -> float:
            begin = time.monotonic()
            headers = {"x-claude-code-session-id": "single"}
            await gateway.ask(CHAT, chat_of("alone", 60), headers)
            return time.monotonic() - begin

        async def sub_agent(number: int) -> None:
            headers = {
                "x-claude-code-session-id": "crowd",
                "x-claude-code-agent-id": f"agent-{number}",
            }
            while True:
                await gateway.ask(CHAT, chat_of(f"part {number}", 40 + number), headers)

        alone_s = statistics.median([await single() for _ in range(3)])
        crowd = [asyncio.create_task(sub_agent(number)) for number in range(SUB_AGENTS)]
        await asyncio.sleep(1.0)
        beside_s = statistics.median([await single() for _ in range(5)])
        await end(crowd)
    return beside_s / alone_s


# Giving up


async def giving_up(python: str) -> float | None:
    """Return the time to an answer as a multiple of a patient client's; None: there was none."""
    tokens = 30
    with gateway_of(python, 1, 1, token_ms=5) as gateway:
        waits: list[float] = []

        async def patient(number: int) -> None:
            while True:
                begin = time.monotonic()
                await gateway.ask(CHAT, chat_of(f"patient {number}", tokens), {})
                waits.append(time.monotonic() - begin)

        crowd = [asyncio.create_task(patient(number)) for number in range(PATIENT)]
        while len(waits) < 2 * PATIENT:
            await asyncio.sleep(0.05)
        usual_s = statistics.median(waits[PATIENT:])
        begin = time.monotonic()
        is_answered = False
        while not is_answered and time.monotonic() - begin < LONGEST * usual_s:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GIVES_UP_AFTER * usual_s):
                    await gateway.ask(CHAT, chat_of("gives up", tokens), {})
                    is_answered = True
        taken_s = time.monotonic() - begin
        await end(crowd)
    return taken_s / usual_s if is_answered else None


def spread(figures: list[float | None]) -> dict[str, Any]:
    known = sorted(figure for figure in figures if figure is not None)
    row: dict[str, Any] = {"rounds": len(figures), "never": len(figures) - len(known)}
    if known:
        row["median"] = round(statistics.median(known), 3)
        row["least"] = round(known[0], 3)
        row["most"] = round(known[-1], 3)
    return row


def measured(pythons: dict[str, str], rounds: int) -> dict[str, dict[str, Any]]:
    """Return each figure by gateway; the gateways take turns."""
    ways = {
        "sessions, billing line, unnamed": partial(sessions, changes=True, named=False),
        "sessions, billing line, named": partial(sessions, changes=True, named=True),
        "sessions, constant line, unnamed": partial(sessions, changes=False, named=False),
        "fairness": fairness,
        "giving up": giving_up,
    }
    table: dict[str, dict[str, Any]] = {}
    for name, measure in ways.items():
        figures: dict[str, list[float | None]] = {who: [] for who in pythons}
        for _ in range(rounds):
            for who, python in pythons.items():
                figures[who].append(asyncio.run(measure(python)))
        table[name] = {who: spread(values) for who, values in figures.items()}
        print(name, json.dumps(table[name]), flush=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--before", help="the interpreter of another checkout, whose gateway is measured beside"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "agents.json"
    )
    args = parser.parse_args()
    pythons = {"before": args.before} if args.before else {}
    pythons["now"] = sys.executable
    document = {
        "command": f"benchmarks/agents.py --rounds {args.rounds}"
        + (" --before PYTHON" if args.before else ""),
        "machine": (
            f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
        ),
        "simulated": True,
        "figures": measured(pythons, args.rounds),
    }
    args.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""The check of an answer: JSON that meets the task's schema, then the task's own checker.

Thinking is removed first. An empty answer, or one of thinking alone, is rejected. The complaint
about a rejected answer is one line, which the model is given back. Knows nothing of requests and
endpoints."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

import msgspec

from skep.errors import SkepError
from skep.quality.judging import Judge, check_packages, look_at, needs_sandbox
from skep.sandbox.runner import Sandbox, open_sandbox
from skep.swarm.records import Task
from skep.swarm.schemas import may_be_slow, one_line, value_faults, values_in, why_none
from skep.workload.extraction import split_answer
from skep.workload.items import Checker, Item

TOO_LONG = (
    "the check of the schema took too long: a `pattern` in it may never finish on this answer"
)
COMPUTE_S = 2.0
# Of the wall clock, on a busy machine; the child's own computing is bounded far closer.
CHILD_TIMEOUT_S = 30.0
PYTHON_VARIABLES = ("PYTHON", "LANG", "LC_", "LD_LIBRARY_PATH", "DYLD_")
LONGEST_HERE = 20_000  # characters of JSON that are checked in this process


class WrittenValue(NamedTuple):
    """A value of an answer, and its JSON: writing that takes as long as reading it."""

    value: Any
    document: str


def written_values(text: str) -> list[WrittenValue]:
    """Return the values that an answer holds, as `values_in` has them."""
    return [WrittenValue(value, json.dumps(value)) for value in values_in(text)]


async def schema_check(
    schema: Mapping[str, Any], written: WrittenValue, compute_s: float = COMPUTE_S
) -> str | None:
    """Return where the value is not as the schema says, in one line; None: it is as it says.

    A check that may take long is made in a child. It has a session of its own: Ctrl-C is the
    runner's alone. `-P`: nothing is imported from the user's folder."""
    value, document = written
    if len(document) <= LONGEST_HERE and not may_be_slow(schema):
        return await look_at(document, lambda: value_faults(schema, value))
    argv = (sys.executable, "-P", "-m", "skep.swarm.schemas", str(compute_s))
    pipe = asyncio.subprocess.PIPE
    nowhere = asyncio.subprocess.DEVNULL
    child = await asyncio.create_subprocess_exec(
        *argv,
        stdin=pipe,
        stdout=pipe,
        stderr=nowhere,
        start_new_session=True,
        env=_python_environment(),
    )
    job = f'{{"schema": {json.dumps(schema)}, "value": {document}}}'.encode()
    try:
        async with asyncio.timeout(CHILD_TIMEOUT_S):
            answer, _ = await child.communicate(job)
    except TimeoutError:
        return TOO_LONG
    finally:
        if child.returncode is None:
            child.kill()
            await asyncio.shield(child.wait())
    if child.returncode == -signal.SIGPROF:
        return TOO_LONG
    if child.returncode != 0:
        raise SkepError(
            "the process that checks a schema was ended", hint="check that memory is left"
        )
    fault: str | None = json.loads(answer)["fault"]
    return fault


def _python_environment() -> dict[str, str]:
    """Return the variables that Python itself reads: the check of a schema needs no keys."""
    return {name: value for name, value in os.environ.items() if name.startswith(PYTHON_VARIABLES)}


Demand = Callable[[Any], str | None]
# Kinds of checker where what is wrong with an answer would give the right one away.
KNOWN_ANSWER = ("exact", "choice", "number")


class CheckedAnswer(msgspec.Struct, frozen=True):
    """An answer and whether it counts.

    `text` has no thinking; `value` is the JSON of a task with a schema.
    """

    ok: bool
    text: str
    value: Any = None
    # Shown to the model, which must not learn the right answer from it.
    complaint: str | None = None


class AnswerChecker(AbstractAsyncContextManager["AnswerChecker"]):
    """Checks the answers of a run."""

    def __init__(self, demand: Demand | None = None) -> None:
        """`demand` returns what is wrong with a value beyond its schema, or None.

        It is called in a thread where the value is long.
        """
        self._demand = demand
        self._sandbox: Sandbox | None = None
        self._judge = Judge(None)
        self._slow_checks = asyncio.Semaphore(len(os.sched_getaffinity(0)))

    async def __aexit__(self, *_: object) -> None:
        if self._sandbox is not None:
            await self._sandbox.close()

    async def prepare(self, tasks: Iterable[Task]) -> None:
        """Open the sandbox if these tasks need it.

        UserError where their checkers cannot be carried out here.
        """
        items = [_item(task) for task in tasks if task.checker is not None]
        check_packages(items)
        if needs_sandbox(items) and self._sandbox is None:
            opening = asyncio.ensure_future(asyncio.to_thread(open_sandbox))
            try:
                self._sandbox = await asyncio.shield(opening)
            except asyncio.CancelledError:
                self._sandbox = await opening  # so that it is closed
                raise
            self._judge = Judge(self._sandbox)

    async def check(self, task: Task, text: str) -> CheckedAnswer:
        answer = await look_at(text, lambda: split_answer(text, None))
        if not answer.text.strip():
            silence = "the answer is empty"
            if answer.reasoning:
                silence = "nothing but thinking, no answer"
            return CheckedAnswer(False, "", complaint=silence)
        value = complaint = None
        if task.schema is not None:
            value, complaint = await self._read(task.schema, answer.text)
        if complaint is None and task.checker is not None:
            complaint = await self._judged(_item(task), answer.text)
        return CheckedAnswer(complaint is None, answer.text, value, complaint)

    async def _read(self, schema: Mapping[str, Any], text: str) -> tuple[Any, str | None]:
        """Return the first value that meets the schema; where none does, what is wrong with the
        largest.
        """
        faults = []
        for written in await look_at(text, lambda: written_values(text)):
            async with self._slow_checks:
                fault = await schema_check(schema, written)
            if fault is None:
                return written.value, await self._demanded(written)
            faults.append((len(written.document), fault))
        if not faults:
            why = await look_at(text, lambda: why_none(text))
            return None, f"{why}; answer with JSON alone"
        return None, max(faults, key=lambda fault: fault[0])[1]

    async def _demanded(self, written: WrittenValue) -> str | None:
        """Return what is wrong with a value that meets its schema; None: nothing."""
        demand = self._demand
        if demand is None:
            return None
        return await look_at(written.document, lambda: demand(written.value))

    async def _judged(self, item: Item, text: str) -> str | None:
        verdict = await self._judge.judge_text(item, text)
        if verdict.outcome.passed:
            return None
        kind = item.checker.kind
        if kind in KNOWN_ANSWER:
            return f"the answer is wrong ({kind})"
        reason = verdict.detail or verdict.outcome.value
        return one_line(f"does not pass its check ({kind}): {reason}")


def _item(task: Task) -> Item:
    messages = []
    values = dict(task.checker or {})
    for message in task.messages:
        content = message.get("content")
        if isinstance(content, Sequence) and not isinstance(content, str):
            # The texts of a message in parts.
            parts = [part for part in content if isinstance(part, Mapping)]
            content = "\n".join(str(part.get("text", "")) for part in parts)
        messages.append({"role": str(message.get("role", "user")), "content": str(content or "")})
    return Item(task.id, tuple(messages), Checker(str(values.pop("kind", "")), values))

"""Checks of answers: JSON that meets the task's schema, and the task's own checker.

Thinking is removed first. An empty answer, or one of thinking alone, is rejected. The complaint about a rejected
answer is one line, which the model is given back.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import msgspec

from skep.errors import SkepError, UserError
from skep.quality.judging import Judge, missing_packages, needs_sandbox
from skep.sandbox.runner import Sandbox, open_sandbox
from skep.swarm.checking.extract_json import values_in, why_none
from skep.swarm.checking.schemas import may_be_slow, one_line, value_faults
from skep.swarm.records import Task
from skep.workload.extraction import split_answer
from skep.workload.items import Checker, Item

TOO_LONG = "the check of the schema took too long: a `pattern` in it may never finish on this answer"
COMPUTE_S = 2.0
PATIENCE_S = 30.0  # of the wall clock, on a busy machine; the child's own computing is bounded far closer
LONGEST_HERE = 20_000  # characters of JSON that are checked in this process
_TRIES = 2  # a child that was lost for another reason is started once more
_LIMIT = 1 << 20  # of a line that it answers


class SchemaChecks:
    """One check at a time in the child, which is started by the first that needs it."""

    def __init__(self, compute_s: float = COMPUTE_S) -> None:
        self._compute_s = compute_s
        self._child: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()  # a question and its answer belong together
        self._slow: dict[int, tuple[Mapping[str, Any], bool]] = {}  # by identity; the schema is kept so that it lives

    async def fault(self, schema: Mapping[str, Any], value: Any) -> str | None:
        """Return where the value is not as the schema says, in one line; None: it is."""
        document = json.dumps(value)
        if id(schema) not in self._slow:
            self._slow[id(schema)] = (schema, may_be_slow(schema))
        if len(document) <= LONGEST_HERE and not self._slow[id(schema)][1]:
            return value_faults(schema, value)
        line = f'{{"schema": {json.dumps(schema)}, "value": {document}}}\n'.encode()
        async with self._turn:
            return await self._asked(line)

    async def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            with suppress(ProcessLookupError):
                child.kill()
            await asyncio.shield(child.wait())

    async def _asked(self, line: bytes) -> str | None:
        for _ in range(_TRIES):
            child = await self._started()
            assert child.stdin is not None
            assert child.stdout is not None
            try:
                async with asyncio.timeout(PATIENCE_S):
                    child.stdin.write(line)
                    await child.stdin.drain()
                    answer = await child.stdout.readline()
                if answer.endswith(b"\n"):
                    fault: str | None = json.loads(answer)["fault"]
                    return fault
                code, self._child = await child.wait(), None
                if code == -signal.SIGPROF:
                    return TOO_LONG
            except TimeoutError:
                await self.close()
                return TOO_LONG
            except (BrokenPipeError, ConnectionResetError):
                await self.close()
            except asyncio.CancelledError:
                await self.close()  # its answer would be taken for that to the next question
                raise
        raise SkepError("the process that checks schemas does not stay alive", hint="check that memory is left")

    async def _started(self) -> asyncio.subprocess.Process:
        """In a session of its own: Ctrl-C is the runner's alone. `-P`: nothing is imported from the user's folder."""
        if self._child is None:
            self._child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "skep.swarm.checking.schemas", str(self._compute_s)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                limit=_LIMIT,
            )
        return self._child


Demand = Callable[[Any], str | None]
KNOWN_ANSWER = ("exact", "choice", "number")  # what is wrong with an answer would tell the right one


class CheckedAnswer(msgspec.Struct, frozen=True):
    """An answer and whether it counts. `text` has no thinking; `value` is the JSON of a task with a schema."""

    ok: bool
    text: str
    value: Any = None
    complaint: str | None = None  # the model is told it, and must not learn the right answer from it


class AnswerChecker(AbstractAsyncContextManager["AnswerChecker"]):
    """The checks of a run. A sandbox, or a process for slow schemas, is opened when the first answer needs it."""

    def __init__(self, demand: Demand | None = None) -> None:
        """`demand`: a further one on every value, beyond its schema: what is wrong with it, or None."""
        self._demand = demand
        self._opened: Sandbox | None = None
        self._judge: Judge | None = None
        self._schemas = SchemaChecks()
        self._opening = asyncio.Lock()  # there is one sandbox, however many answers need it at once

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def prepare(self, tasks: Iterable[Task]) -> None:
        """UserError where checkers of these tasks cannot be carried out here: to be known before anything runs."""
        items = [_item(task) for task in tasks if task.checker is not None]
        if missing := missing_packages(items):
            hint = "in skep's folder: pip install '.[quality]'"
            raise UserError(f"checkers need packages that are not installed: {', '.join(missing)}", hint=hint)
        if needs_sandbox(items):
            await self._judging(executed=True)

    async def check(self, task: Task, text: str) -> CheckedAnswer:
        said = split_answer(text, None)
        if not said.text.strip():
            silence = "nothing but thinking, no answer" if said.reasoning else "the answer is empty"
            return CheckedAnswer(False, "", complaint=silence)
        value = complaint = None
        if task.schema is not None:
            value, complaint = await self._read(task.schema, said.text)
            if complaint is None and self._demand is not None:
                complaint = self._demand(value)
        if complaint is None and task.checker is not None:
            complaint = await self._judged(_item(task), said.text)
        return CheckedAnswer(complaint is None, said.text, value, complaint)

    async def close(self) -> None:
        await self._schemas.close()
        opened, self._opened, self._judge = self._opened, None, None
        if opened is not None:
            await opened.close()

    async def _read(self, schema: Mapping[str, Any], text: str) -> tuple[Any, str | None]:
        """The first value that is as it should be; else what is wrong with the first, or with the largest beside it."""
        faults = []
        for value in values_in(text):
            if (fault := await self._schemas.fault(schema, value)) is None:
                return value, None
            faults.append((len(str(value)), fault))
        if not faults:
            return None, f"{why_none(text)}; answer with JSON alone"
        return None, max(faults, key=lambda one: one[0])[1]

    async def _judged(self, item: Item, text: str) -> str | None:
        judge = await self._judging(executed=item.checker.is_executed)
        found = await judge.judge_text(item, text)
        if found.outcome.passed:
            return None
        if item.checker.kind in KNOWN_ANSWER:
            return f"the answer is wrong ({item.checker.kind})"
        failed = next((check for check in found.checks if not check.passed), None)
        why = found.detail or (f"{failed.name}: {failed.detail}" if failed else found.outcome.value)
        return one_line(f"does not pass its check ({item.checker.kind}): {why}")

    async def _judging(self, *, executed: bool) -> Judge:
        async with self._opening:
            if executed and self._opened is None:
                opening = asyncio.ensure_future(asyncio.to_thread(open_sandbox))
                self._judge = None
                try:
                    self._opened = await asyncio.shield(opening)
                except asyncio.CancelledError:  # it is waited for, so that `close` finds it
                    self._opened = await opening
                    raise
            if self._judge is None:
                self._judge = Judge(self._opened)
            return self._judge


def _item(task: Task) -> Item:
    messages, values = [], dict(task.checker or {})
    for message in task.messages:
        content = message.get("content")
        if isinstance(content, Sequence) and not isinstance(content, str):  # of a message in parts, the texts
            content = "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
        messages.append({"role": str(message.get("role", "user")), "content": str(content or "")})
    return Item(task.id, tuple(messages), Checker(str(values.pop("kind", "")), values))

"""Whether an answer counts: JSON of the wanted form, and whatever the task's checker demands.

Thinking is kept apart first. An answer of nothing, or of thinking alone, never counts. The complaint about one that
does not count is a line that the model can be given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from skep.errors import UserError
from skep.quality.judging import Judge, missing_packages
from skep.sandbox.detect import open_sandbox
from skep.sandbox.runner import Sandbox
from skep.swarm.checking.said_json import values_in, why_none
from skep.swarm.checking.schema_checks import SchemaChecks
from skep.swarm.checking.schemas import check_schema, one_line
from skep.tasks import Task
from skep.workload.extraction import spoken
from skep.workload.items import Checker, Item

__all__ = ["Checked", "Checking", "check_schema"]

Demand = Callable[[Any], str | None]
KNOWN_ANSWER = ("exact", "choice", "number")  # what is wrong with an answer would tell the right one


@dataclass(frozen=True, slots=True)
class Checked:
    """`text`: the answer without its thinking. `value`: of a task with a schema, the answer as JSON.

    `complaint`: for the model, which must not learn the right answer from it; `detail`: for the user.
    """

    ok: bool
    text: str
    value: Any = None
    complaint: str | None = None
    detail: str | None = None


class Checking:
    """Opens a sandbox, or a process for slow schemas, when the first answer needs it; `close` ends both.

    `sandbox`: one that is open already, and is its owner's to close.
    """

    def __init__(self, sandbox: Sandbox | None = None) -> None:
        self._given = sandbox
        self._opened: Sandbox | None = None
        self._judge: Judge | None = None
        self._schemas = SchemaChecks()
        self._demand: Demand | None = None
        self._opening = asyncio.Lock()  # there is one sandbox, however many answers need it at once

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def require(self, demand: Demand) -> None:
        """A further demand on every value, beyond its schema: what is wrong with it, or None."""
        self._demand = demand

    async def prepare(self, tasks: Iterable[Task]) -> None:
        """UserError where checkers of these tasks cannot be carried out here: to be known before anything runs."""
        items = [_item(task) for task in tasks if task.checker is not None]
        executed = [item for item in items if item.checker.is_executed]
        if not executed:
            return
        missing = missing_packages(executed)
        if missing:
            hint = "pip install 'skep[quality]'"
            raise UserError(f"checkers need what is not installed: {', '.join(missing)}", hint=hint)
        await self._judging(executed=True)

    async def check(self, task: Task, text: str) -> Checked:
        said = spoken(text, None)
        if not said.text.strip():
            return _rejected("", _silence(bool(said.reasoning)))
        value = None
        if task.schema is not None:
            value, complaint = await self._read(task.schema, said.text)
            if complaint is None and self._demand is not None:
                complaint = self._demand(value)
            if complaint is not None:
                return _rejected(said.text, complaint)
        if task.checker is not None:
            detail = await self._judged(_item(task), said.text)
            if detail is not None:
                kind = str(task.checker["kind"])
                told = detail if kind not in KNOWN_ANSWER else f"the answer is wrong ({kind})"
                return _rejected(said.text, told, detail, value)
        return Checked(True, said.text, value)

    async def close(self) -> None:
        await self._schemas.close()
        opened, self._opened, self._judge = self._opened, None, None
        if opened is not None:
            await opened.close()

    async def _read(self, schema: Mapping[str, Any], text: str) -> tuple[Any, str | None]:
        """The first value that is as it should be; else what is wrong with the first, or with the largest beside it."""
        values = values_in(text)
        if not values:
            return None, f"{why_none(text)}; answer with JSON alone"
        complaints = []
        for value in values:
            fault = await self._schemas.fault(schema, value)
            if fault is None:
                return value, None
            complaints.append(fault)
        largest = max(range(len(values)), key=lambda place: len(str(values[place])))
        return None, complaints[largest]

    async def _judged(self, item: Item, text: str) -> str | None:
        judge = await self._judging(executed=item.checker.is_executed)
        found = await judge.look_at(item, text)
        if found.outcome.passed:
            return None
        failed = next((check for check in found.checks if not check.passed), None)
        why = found.detail or (f"{failed.name}: {failed.detail}" if failed else found.outcome.value)
        return one_line(f"does not pass its check ({item.checker.kind}): {why}")

    async def _judging(self, *, executed: bool) -> Judge:
        async with self._opening:
            if executed and self._given is None and self._opened is None:
                await self._open()
            if self._judge is None:
                self._judge = Judge(self._given or self._opened)
            return self._judge

    async def _open(self) -> None:
        """Cancelled meanwhile: it is waited for, so that `close` finds it."""
        opening = asyncio.ensure_future(asyncio.to_thread(open_sandbox))
        self._judge = None
        try:
            self._opened = await asyncio.shield(opening)
        except asyncio.CancelledError:
            self._opened = await opening
            raise


def _rejected(text: str, complaint: str, detail: str | None = None, value: Any = None) -> Checked:
    return Checked(False, text, value, complaint, detail or complaint)


def _item(task: Task) -> Item:
    values = dict(task.checker or {})
    return Item(task.id, tuple(_plain(one) for one in task.messages), Checker(str(values.pop("kind", "")), values))


def _plain(message: Mapping[str, Any]) -> dict[str, str]:
    """Of a message in parts, the texts."""
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return {"role": str(message.get("role", "user")), "content": str(content or "")}


def _silence(thought: bool) -> str:
    return "nothing but thinking, no answer" if thought else "the answer is empty"

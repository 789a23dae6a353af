"""How the items of a bank are asked and judged: one request each, or a conversation with tools.

A trial, and the guard of a tuning, hand a stretch of items over and get rows and verdicts back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from skep.bench.load_shapes import OnRow
from skep.bench.session import LoadGenerator
from skep.bench.tasks import BenchTask
from skep.quality.judging import AnsweredItem, Judge
from skep.quality.trial_figures import LOAD
from skep.store.records import Request
from skep.store.verdicts import Verdict
from skep.workload.items import Item

OnDone = Callable[[int], None]  # with the number of answers judged so far


class ItemPass(msgspec.Struct, frozen=True):
    """All items once in one arm: rows are told apart by its level and repeat."""

    level: int
    repeat: int
    arm: str = LOAD

    def task(
        self, item: Item, index: int, temperature: float, fields: Mapping[str, Any]
    ) -> BenchTask:
        """Return the task that asks an item. `fields`: further ones of the request."""
        return BenchTask(
            level=self.level,
            repeat=self.repeat,
            index=index,
            kind=item.id,
            messages=[dict(message) for message in item.messages],
            max_tokens=item.max_tokens,
            temperature=temperature,
            traffic=self.arm,
            body=fields,
        )


class Asking(Protocol):
    """Asks items by their indexes and judges what came. A row of a further turn of an item has a
    `turn` above 0; the verdict belongs to the first one.
    """

    async def ask(
        self,
        driver: LoadGenerator,
        item_pass: ItemPass,
        indexes: Sequence[int],
        on_row: OnRow,
        until_s: float | None = None,
    ) -> list[Request]:
        """Ask as many at once as the level of the pass; none begins after `until_s`."""
        ...

    async def judge(self, rows: Sequence[Request], on_done: OnDone) -> list[Verdict]: ...


class SingleAnswers:
    """Asks each item by one request. `fields_of`: further fields of the request of an index."""

    def __init__(
        self,
        items: Sequence[Item],
        judge: Judge,
        fields_of: Callable[[ItemPass, int], Mapping[str, Any]],
        *,
        temperature: float = 0.0,
    ) -> None:
        self._items = items
        self._judge = judge
        self._fields_of = fields_of
        self._temperature = temperature

    async def ask(
        self,
        driver: LoadGenerator,
        item_pass: ItemPass,
        indexes: Sequence[int],
        on_row: OnRow,
        until_s: float | None = None,
    ) -> list[Request]:
        tasks = [
            item_pass.task(
                self._items[index], index, self._temperature, self._fields_of(item_pass, index)
            )
            for index in indexes
        ]
        width = item_pass.level
        rows, _ = await driver.run_tasks(
            width, item_pass.repeat, tasks, width, on_row, until_s=until_s
        )
        return rows

    async def judge(self, rows: Sequence[Request], on_done: OnDone) -> list[Verdict]:
        answered = [AnsweredItem(row, self._items[row.index]) for row in rows]
        return await self._judge.judge(answered, on_done)

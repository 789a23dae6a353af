"""Asks tasks with tools: conversations of several turns whose calls are carried out here.

    history of the size + goal -> answer -> calls carried out, results sent back -> ... -> verdict

A prefix cache may be used, as agents use it: the turns of a task share their beginning, and all
tasks of a size share their history. Each turn is a row; the verdict belongs to the first.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from skep.bench.load_shapes import OnRow
from skep.bench.session import LoadGenerator
from skep.bench.tasks import BenchTask, Sender
from skep.errors import EndpointError
from skep.quality.asking import ItemPass, OnDone
from skep.quality.judging import AnswerFinding
from skep.quality.tool_dialogue import LONGEST_TEXT, VERSION, ToolAnswer, ToolDialogue
from skep.store.records import Request
from skep.store.rows import storable
from skep.store.verdicts import Verdict, VerdictOutcome
from skep.units import one_line
from skep.wire.tool_calls import ReceivedCall, ToolCallReader
from skep.workload.items import Item
from skep.workload.tool_history import Message
from skep.workload.tool_tasks import TOOLS, size_of, task_of
from skep.workload.workspace import offered_tools

TURN_STEP = 1_000_000  # between the indexes of two turns of a task; no bank has so many items
# So many tasks in a row, from the first, that failed for want of a parser end the trial.
FEW = 5
SESSION_HEADER = "x-skep-session"
_PARSER = (
    "its engine has no tool parser: start vLLM with --enable-auto-tool-choice and "
    "--tool-call-parser, SGLang with --tool-call-parser, llama-server with --jinja; `skep up` "
    "sets them by itself, `tool_parser` in skep.toml names another"
)

Place = tuple[int, int, int]  # level, repeat and index


class ToolAsking:
    """Asks the items of a bank of tools. `histories`: the messages before the tasks, by size."""

    def __init__(
        self,
        items: Sequence[Item],
        histories: Mapping[str, Sequence[Message]],
        *,
        salt: str,
        temperature: float = 0.0,
    ) -> None:
        self._items = items
        self._histories = histories
        self._salt = salt
        self._temperature = temperature
        self._findings: dict[Place, AnswerFinding] = {}
        self._seconds: dict[Place, float] = {}
        self._first_outcomes: list[VerdictOutcome] = []
        self._refusal = ""  # the words with which the server refused requests with tools

    async def ask(
        self,
        driver: LoadGenerator,
        item_pass: ItemPass,
        indexes: Sequence[int],
        on_row: OnRow,
        until_s: float | None = None,
    ) -> list[Request]:
        width = min(item_pass.level, len(indexes))

        def count_item(row: Request) -> None:
            if not row.turn:
                on_row(row)

        async def load(sender: Sender, on_row: OnRow) -> None:
            remaining = iter(indexes)

            async def hold_place() -> None:
                for index in remaining:
                    await self._play(sender, item_pass, index, on_row)
                    if until_s is not None and sender.now() >= until_s:
                        return

            async with asyncio.TaskGroup() as places:
                for _ in range(width):
                    places.create_task(hold_place())

        rows, _ = await driver.run_load(
            level=item_pass.level,
            repeat=item_pass.repeat,
            load=load,
            width=item_pass.level,
            on_row=count_item,
        )
        self._check_parser(driver.endpoint.url)
        return rows

    async def judge(self, rows: Sequence[Request], on_done: OnDone) -> list[Verdict]:
        """Return the verdicts of the tasks that ended: they were judged while they were played."""
        verdicts = []
        for row in rows:
            place = (row.level, row.repeat, row.index)
            finding = self._findings.get(place)
            if finding is None:
                continue
            verdicts.append(
                Verdict(
                    *place,
                    item=self._items[row.index].id,
                    outcome=finding.outcome,
                    detail=one_line(finding.detail),
                    checker=f"{TOOLS}/{VERSION}",
                    seconds=self._seconds[place],
                )
            )
            on_done(len(verdicts))
        return verdicts

    async def _play(self, sender: Sender, item_pass: ItemPass, index: int, on_row: OnRow) -> None:
        """Play one task to its end."""
        if self._is_hopeless:
            return
        item = self._items[index]
        dialogue = ToolDialogue(task_of(item), self._histories[size_of(item)])
        place = (item_pass.level, item_pass.repeat, index)
        session = "-".join(map(str, (TOOLS, self._salt, *place)))
        judging_s = 0.0
        goes_on = True
        while goes_on:
            task = self._task(item_pass, item, index, dialogue, session)
            reading = ToolCallReader(asyncio.get_running_loop().create_future())
            row = await sender.ask_with(task, reading)
            answer = answer_of(reading)
            on_row(row_of(row, answer, dialogue))
            began = time.perf_counter()
            if row.error_kind is not None and not is_answered(row):
                self._note_refusal(row)
                dialogue.fail(*fault_of_row(row))
                goes_on = False
            else:
                goes_on = dialogue.take(answer)
            judging_s += time.perf_counter() - began
        assert dialogue.finding is not None
        self._findings[place] = dialogue.finding
        self._seconds[place] = judging_s
        if len(self._first_outcomes) < FEW:
            self._first_outcomes.append(dialogue.finding.outcome)

    def _task(
        self,
        item_pass: ItemPass,
        item: Item,
        index: int,
        dialogue: ToolDialogue,
        session: str,
    ) -> BenchTask:
        task = item_pass.task(item, index, self._temperature, {"tools": offered_tools()})
        return replace(
            task,
            index=index + TURN_STEP * dialogue.turn,
            messages=dialogue.messages,
            headers={SESSION_HEADER: session},
            session=index,
            turn=dialogue.turn,
        )

    @property
    def _is_hopeless(self) -> bool:
        """Whether the first tasks all failed because no one reads the model's calls."""
        if len(self._first_outcomes) < FEW:
            return False
        outcomes = set(self._first_outcomes)
        if outcomes == {VerdictOutcome.CALL_AS_TEXT}:
            return True
        return outcomes == {VerdictOutcome.FAILED} and bool(self._refusal)

    def _note_refusal(self, row: Request) -> None:
        if row.status == 400:
            self._refusal = row.error or "HTTP 400"

    def _check_parser(self, url: str) -> None:
        """Raise EndpointError where the model's calls reach nobody."""
        if not self._is_hopeless:
            return
        if self._refusal:
            message = f"{url} refuses requests with tools: {self._refusal}"
            raise EndpointError(message, hint=_PARSER)
        message = f"{url} answered the first {FEW} tasks with a tool call as text"
        raise EndpointError(message, hint=_PARSER)


def answer_of(reading: ToolCallReader) -> ToolAnswer:
    return ToolAnswer(
        text="".join(reading.text),
        reasoning="".join(reading.reasoning),
        calls=reading.calls,
        is_cut=reading.finish_reason == "length",
        is_flood=reading.calls_left_out > 0,
    )


def is_answered(row: Request) -> bool:
    """Return whether a row with an error has an answer all the same: one without `usage`."""
    return row.error_kind == "no_usage"


def fault_of_row(row: Request) -> tuple[VerdictOutcome, str]:
    outcome = VerdictOutcome.FAILED
    if row.error_kind == "timeout":
        outcome = VerdictOutcome.TIMED_OUT
    return outcome, row.error or row.error_kind or ""


def row_of(row: Request, answer: ToolAnswer, dialogue: ToolDialogue) -> Request:
    """Return the row as it is stored: with what was new in the prompt, and with the calls."""
    parts: list[str] = []
    for message in reversed(dialogue.messages):
        if message["role"] == "assistant":
            break
        parts.append(str(message["content"]))
    text = "\n".join([answer.text, *map(call_words, answer.calls)])
    return replace(
        row,
        prompt=storable("\n".join(reversed(parts))[:LONGEST_TEXT]),
        answer=storable(text.strip("\n")[:LONGEST_TEXT]),
        reasoning=storable(answer.reasoning[:LONGEST_TEXT]) or None,
    )


def call_words(call: ReceivedCall) -> str:
    return f"{json.dumps(call.name)[1:-1]}({call.arguments})"

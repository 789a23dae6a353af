"""One task with tools, turn after turn: which calls are carried out, what the model is told, and
what became of the task.

A decider: an answer in, whether there is a next turn out. Nothing that a model answers raises
here, and nothing grows without bound: turns, calls of a turn, arguments and results are limited.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from skep.quality.judging import AnswerFinding
from skep.store.verdicts import VerdictOutcome
from skep.wire.tool_calls import ReceivedCall
from skep.workload.extraction import split_answer
from skep.workload.tool_history import Message
from skep.workload.tool_tasks import ToolTask
from skep.workload.workspace import CHANGING_TOOLS, tool_schemas

VERSION = 1  # of what is judged here
MOST_TURNS = 10  # answers of one task
MOST_CALLS = 8  # of one answer
LONGEST_TEXT = 20_000  # characters of an answer that are read and sent back
LONGEST_DETAIL = 160
_AS_TEXT = re.compile(
    r"<tool_call>|<\|tool_call|\[TOOL_CALLS\]|<\|python_tag\|>|<function=|functools\[|<TOOLCALL>"
    r"|<｜tool▁call|<invoke name=|\"(?:arguments|parameters)\"\s{0,9}:\s{0,9}\{"
)

_NUMBER = re.compile(r"\d+")


class ToolAnswer(msgspec.Struct, frozen=True):
    """What a model answered in one turn."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[ReceivedCall, ...] = ()
    is_cut: bool = False  # at the token limit
    is_flood: bool = False  # with more calls than are kept


class CallFault(msgspec.Struct, frozen=True):
    outcome: VerdictOutcome
    detail: str


class ToolDialogue:
    """Holds the messages of one task, and `finding` once it is over."""

    def __init__(self, task: ToolTask, history: Sequence[Message]) -> None:
        self.messages: list[Message] = [*history, {"role": "user", "content": task.goal}]
        self.finding: AnswerFinding | None = None
        self.turn = 0
        self._task = task
        self._world = task.world.copied()
        self._called: list[str] = []
        self._fault: CallFault | None = None  # the first one

    def fail(self, outcome: VerdictOutcome, detail: str) -> None:
        """End the task: a request of it was not answered."""
        self._end(outcome, detail)

    def take(self, answer: ToolAnswer) -> bool:
        """Take an answer; return whether another turn is to be asked."""
        self.turn += 1
        if answer.is_cut:
            self._end(VerdictOutcome.TRUNCATED, "an answer was cut at the token limit")
        elif answer.is_flood or len(answer.calls) > MOST_CALLS:
            detail = f"one answer has more than {MOST_CALLS} calls"
            self._end(VerdictOutcome.MALFORMED_CALL, detail)
        elif answer.calls:
            self._carry_out(answer)
        else:
            # Where no one reads the thinking apart, it stands in the text.
            parts = split_answer(answer.text[:LONGEST_TEXT], None)
            self._judge(parts.text)
        return self.finding is None

    def _carry_out(self, answer: ToolAnswer) -> None:
        calls: list[Mapping[str, Any]] = []
        results: list[Message] = []
        for place, call in enumerate(answer.calls):
            arguments = arguments_of(call)
            if arguments is None:
                # Sent back, it would make many servers refuse the conversation.
                detail = f"`{call.name}` was called with what is no JSON object"
                self._end(VerdictOutcome.MALFORMED_CALL, f"{detail}: {call.arguments[:60]}")
                return
            call_id = call.id or f"turn{self.turn:02d}{place:03d}"
            function = {"name": call.name, "arguments": call.arguments}
            calls.append({"id": call_id, "type": "function", "function": function})
            result = self._call(call.name, arguments)
            results.append({"role": "tool", "tool_call_id": call_id, "content": result})
        message: Message = {
            "role": "assistant",
            "content": answer.text[:LONGEST_TEXT],
            "tool_calls": calls,
        }
        if answer.reasoning:  # some models lose the thread without their own thoughts
            message["reasoning_content"] = answer.reasoning[:LONGEST_TEXT]
        self.messages += [message, *results]
        if self.turn >= MOST_TURNS:
            self._judge("", f"not done after {MOST_TURNS} turns")

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Carry out a call, and return what the model is told."""
        fault = fault_of(name, arguments)
        if fault is not None:
            self._fault = self._fault or fault
            return f"error: {fault.detail}"
        self._called.append(name)
        return self._world.call(name, arguments)

    def _judge(self, text: str, why_ended: str = "") -> None:
        if self._is_reached(text):
            self._end(VerdictOutcome.PASSED, "")
        elif is_call_as_text(text):
            detail = f"it was written as text: {text[:80]}"
            self._end(VerdictOutcome.CALL_AS_TEXT, detail)
        elif self._fault is not None:
            self._end(self._fault.outcome, self._fault.detail)
        else:
            fault = self._fault_of_course(text)
            detail = f"{why_ended}; {fault.detail}" if why_ended else fault.detail
            self._end(fault.outcome, detail)

    def _is_reached(self, text: str) -> bool:
        if self._world.state() != self._task.wanted().state():
            return False
        return self._task.answer is None or _says(text, self._task.answer)

    def _fault_of_course(self, text: str) -> CallFault:
        """Return what was wrong although every call was valid."""
        needed = [step.name for step in self._task.steps]
        strange = [name for name in self._called if name in CHANGING_TOOLS and name not in needed]
        missing = [name for name in needed if name not in self._called]
        if strange:
            detail = f"`{strange[0]}` was called, which changes what was to stay"
            return CallFault(VerdictOutcome.WRONG_TOOL, detail)
        if not missing:
            return CallFault(VerdictOutcome.WRONG_EFFECT, self._difference(text))
        others = [name for name in self._called if name not in needed]
        if others:
            detail = f"`{others[0]}` was called, `{missing[0]}` never"
            return CallFault(VerdictOutcome.WRONG_TOOL, detail)
        called = len(self._called)
        detail = f"`{missing[0]}` was never called; {called} calls, then text: {text[:60]}"
        return CallFault(VerdictOutcome.NO_CALL, detail)

    def _difference(self, text: str) -> str:
        """Return in what the world, or else the answer, is not what was asked for."""
        if self._task.answer is not None:
            return f"the answer is not {self._task.answer}: {text[:60]}"
        state = self._world.state()
        goal_state = self._task.wanted().state()
        parts = [name for name in state if state[name] != goal_state[name]]
        return f"not as asked for: {', '.join(parts)}"

    def _end(self, outcome: VerdictOutcome, detail: str) -> None:
        self.finding = AnswerFinding(outcome, detail[:LONGEST_DETAIL])


def arguments_of(call: ReceivedCall) -> dict[str, Any] | None:
    """Return the arguments of a call; None: they are no JSON object."""
    if call.is_cut:
        return None
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def fault_of(name: str, arguments: Mapping[str, Any]) -> CallFault | None:
    """Return what keeps a call from being carried out; None: nothing does."""
    if name not in tool_schemas():
        detail = f"there is no tool `{name[:60]}`"
        return CallFault(VerdictOutcome.UNKNOWN_TOOL, detail)
    try:
        error = next(_validator(name).iter_errors(arguments), None)
    except RecursionError:
        return CallFault(VerdictOutcome.BAD_ARGUMENTS, f"{name}: nested too deeply")
    if error is None:
        return None
    detail = f"{name}: {error.message}"
    return CallFault(VerdictOutcome.BAD_ARGUMENTS, detail[:LONGEST_DETAIL])


@cache
def _validator(name: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(tool_schemas()[name])


def is_call_as_text(text: str) -> bool:
    """Return whether a text has a call in it that was meant as one."""
    if _AS_TEXT.search(text):
        return True
    return any(f"{name}(" in text for name in tool_schemas())


def _says(text: str, number: str) -> bool:
    """Return whether a text has the number."""
    return number in _NUMBER.findall(text)

"""From answers to verdicts: an answer is read where that is enough, and else run in the sandbox.

No content of an answer raises here: code that does not compile, loops, forks or tries to fake a
report is a verdict. The program that runs in the sandbox is `harness.py`; it is handed over as a
file."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from skep.errors import SkepError, UserError, first_of
from skep.host.installation import extra_hint
from skep.sandbox.bubblewrap import SandboxLimits, SandboxScript, ScriptEnding, ScriptResult
from skep.sandbox.runner import Sandbox
from skep.store.records import Request
from skep.store.verdicts import Verdict, VerdictOutcome
from skep.units import one_line
from skep.workload.extraction import python_blocks, split_answer
from skep.workload.items import Item
from skep.workload.reading_checks import LONGEST_READ, read_check

# The version of the checks. A verdict names it, so that verdicts of older rules can be told apart.
VERSION = 3
_TRIES = 3
_PAUSE_S = 0.2  # before a run is tried again
_LIGHT = SandboxLimits(seconds=10, memory_bytes=512 << 20)
# For items with packages, which have to be loaded first.
_HEAVY = SandboxLimits(seconds=20, memory_bytes=768 << 20)
LONGEST_CODE = 500_000  # characters, from the beginning, in which code is looked for
LONGEST_IN_LOOP = 4_000  # characters of an answer that are looked at without a thread
Finding = TypeVar("Finding")


class AnsweredItem(NamedTuple):
    """A request with the item it asked."""

    row: Request
    item: Item


class AnswerFinding(msgspec.Struct, frozen=True):
    """Finding about an answer, before it becomes the verdict of a request."""

    outcome: VerdictOutcome
    detail: str = ""
    sandbox: str | None = None


async def look_at(text: str, look: Callable[[], Finding]) -> Finding:
    """Return the result of `look`, which reads the text: in a thread if the text is long, so that
    the event loop goes on.
    """
    if len(text) <= LONGEST_IN_LOOP:
        return look()
    return await asyncio.to_thread(look)


def needs_sandbox(items: Iterable[Item]) -> bool:
    return any(item.checker.is_executed for item in items)


def check_packages(items: Iterable[Item]) -> None:
    """Raise UserError where packages that answers may import are not installed: without them the
    model would be blamed.
    """
    packages = sorted({name for item in items for name in item.checker.values.get("packages", ())})
    if missing := [name for name in packages if find_spec(name) is None]:
        are = "is" if len(missing) == 1 else "are"
        raise UserError(
            f"the answers cannot be executed: {', '.join(missing)} {are} not installed",
            hint=extra_hint("quality"),
        )


class Judge:
    """Judges answers, as many at once as there are cores.

    `limits`: of each run in the sandbox; None: by the kind of the check.
    """

    def __init__(self, sandbox: Sandbox | None, *, limits: SandboxLimits | None = None) -> None:
        self._sandbox = sandbox
        self._limits = limits
        self._cores = asyncio.Semaphore(len(os.sched_getaffinity(0)))

    async def judge(
        self, answered: Sequence[AnsweredItem], on_done: Callable[[int], None] = lambda _done: None
    ) -> list[Verdict]:
        """Judge the answers, in the order given; `on_done` is called with the number judged so
        far.
        """
        self._require_sandbox([answer.item for answer in answered])
        done = 0

        async def judge_answer(answer: AnsweredItem) -> Verdict:
            nonlocal done
            verdict = await self._verdict(*answer)
            done += 1
            on_done(done)
            return verdict

        try:
            async with asyncio.TaskGroup() as tasks:
                under_way = [tasks.create_task(judge_answer(answer)) for answer in answered]
        except BaseExceptionGroup as group:
            # No `except*`: Python before 3.11.4 puts what is raised there into a group again.
            error = first_of(group)
            if not isinstance(error, SkepError):
                raise
            raise error from None
        return [task.result() for task in under_way]

    async def judge_text(self, item: Item, text: str) -> AnswerFinding:
        """Judge an answer that belongs to no measured request.

        Its reasoning is already removed.
        """
        self._require_sandbox([item])
        async with self._cores:
            return await self._catch_check_errors(self._judge_answer_text(text, item))

    def _require_sandbox(self, items: Sequence[Item]) -> None:
        if not needs_sandbox(items):
            return
        if self._sandbox is None:
            raise UserError(
                "these answers are programs, and there is no sandbox to run them in",
                hint="see `skep doctor`",
            )
        check_packages(items)

    async def _verdict(self, row: Request, item: Item) -> Verdict:
        async with self._cores:
            began = time.perf_counter()
            finding = await self._catch_check_errors(self._finding(row, item))
            seconds = time.perf_counter() - began
        return Verdict(
            level=row.level,
            repeat=row.repeat,
            index=row.index,
            item=item.id,
            outcome=finding.outcome,
            detail=one_line(finding.detail),
            checker=f"{item.checker.kind}/{VERSION}",
            sandbox=finding.sandbox,
            seconds=seconds,
        )

    async def _catch_check_errors(self, finding: Awaitable[AnswerFinding]) -> AnswerFinding:
        """Return the finding. A check that fails on one answer is reported with that answer, and
        does not end the others.
        """
        try:
            return await finding
        except SkepError:
            raise
        except Exception as error:
            return AnswerFinding(
                VerdictOutcome.BROKEN, f"the check itself failed: {type(error).__name__}: {error}"
            )

    async def _finding(self, row: Request, item: Item) -> AnswerFinding:
        if row.error_kind == "timeout":
            return AnswerFinding(VerdictOutcome.TIMED_OUT, row.error or row.error_kind)
        if row.error_kind is not None:
            return AnswerFinding(VerdictOutcome.FAILED, row.error or row.error_kind)
        answer = row.answer or ""
        reasoning = row.reasoning or ""
        parts = await look_at(answer + reasoning, lambda: split_answer(answer, row.reasoning))
        if row.answer is None and row.reasoning is None:
            finding = AnswerFinding(VerdictOutcome.NO_ANSWER, "the answer was not stored")
        elif not parts.text.strip():
            silence = _silence_words(row, has_reasoning=bool(parts.reasoning))
            finding = AnswerFinding(VerdictOutcome.NO_ANSWER, silence)
        else:
            finding = await self._judge_answer_text(parts.text, item)
        if row.finish_reason == "length":
            return _truncated(row, item, finding)
        return finding

    async def _judge_answer_text(self, text: str, item: Item) -> AnswerFinding:
        checker = item.checker
        if not checker.is_executed:
            passed, detail = await look_at(text, lambda: read_check(checker, text))
            return AnswerFinding(VerdictOutcome.PASSED if passed else VerdictOutcome.WRONG, detail)
        blocks = await look_at(text, lambda: python_blocks(text[:LONGEST_CODE]))
        if not blocks and checker.kind != "regex":
            return AnswerFinding(VerdictOutcome.NO_ANSWER, "no code in the answer")
        limits = self._limits or (_HEAVY if checker.values.get("packages") else _LIGHT)
        mark = secrets.token_hex(16)
        job = {
            "mark": mark,
            "kind": checker.kind,
            "values": dict(checker.values),
            "blocks": blocks,
            "said": text[-LONGEST_READ:],
        }
        program = {"harness.py": _harness()}
        stdin = await look_at(text, lambda: json.dumps(job).encode())
        script = SandboxScript(("harness.py",), program, stdin)
        assert self._sandbox is not None
        result = await _run(self._sandbox, script, limits)
        return replace(finding_of(result, mark), sandbox=self._sandbox.name)


async def _run(sandbox: Sandbox, script: SandboxScript, limits: SandboxLimits) -> ScriptResult:
    """Run the script, again where the sandbox itself failed: a busy machine may lose a run, and
    that is not the model's fault.
    """
    for _ in range(_TRIES - 1):
        with suppress(SkepError):
            return await sandbox.run(script, limits)
        await asyncio.sleep(_PAUSE_S)
    return await sandbox.run(script, limits)


def _silence_words(row: Request, *, has_reasoning: bool) -> str:
    """Return what came instead of an answer, in words."""
    if not has_reasoning:
        return "an empty answer"
    if row.output_tokens is None:
        return "nothing but reasoning, no answer"
    return f"{row.output_tokens} tokens of reasoning, no answer"


@cache
def _harness() -> bytes:
    return files("skep.quality").joinpath("harness.py").read_bytes()


def finding_of(result: ScriptResult, mark: str) -> AnswerFinding:
    """Return what the harness reports. Without its report there is no pass, whatever was printed
    or returned.
    """
    marked = (
        line for line in reversed(result.stdout.splitlines()) if line.startswith(mark.encode())
    )
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        report = json.loads(next(marked, b"")[len(mark) :])
        return AnswerFinding(VerdictOutcome(report["outcome"]), str(report["detail"]))
    if result.ending in (
        ScriptEnding.OUT_OF_TIME,
        ScriptEnding.OUT_OF_MEMORY,
        ScriptEnding.TOO_MUCH_OUTPUT,
    ):
        return AnswerFinding(VerdictOutcome.EXCEEDED, result.ending.value)
    how = f"with {result.exit_code}"
    if result.ending is ScriptEnding.KILLED:
        how = f"by signal {result.signal}"
    detail = f"ended {how} before there was a report"
    last_line = result.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    if last_line:
        detail = f"{detail}: {last_line}"
    return AnswerFinding(VerdictOutcome.BROKEN, detail)


def _truncated(row: Request, item: Item, finding: AnswerFinding) -> AnswerFinding:
    """Return the finding about an answer that was cut: a failure, even if its checks passed."""
    tokens = row.output_tokens
    if tokens is None:
        why = "cut at the limit"
    elif tokens < item.max_tokens:
        why = f"cut after {tokens} of {item.max_tokens} tokens: the context of its slot was full"
    else:
        why = f"cut at the limit of {tokens} tokens"
    check_result = finding.detail or finding.outcome.value
    if finding.outcome.passed:
        check_result = "the checks pass all the same"
    return replace(finding, outcome=VerdictOutcome.TRUNCATED, detail=f"{why}; {check_result}")

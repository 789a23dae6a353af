"""The two processes: what the one that runs the answer's code tells, and what the reporting one makes of that.

Nothing that the first knows makes a pass: it only tells what it saw.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

Say = Callable[..., None]
_LONGEST = 300


class Broken(Exception):
    """The code cannot be tried, or its process tells no more; `outcome` is broken unless it was a limit."""

    def __init__(self, detail: str, outcome: str = "broken") -> None:
        super().__init__(detail)
        self.detail = detail
        self.outcome = outcome


def work(try_out: Callable[[dict[str, Any], Say], None], job_fd: int, told_fd: int) -> None:
    with os.fdopen(job_fd, "rb") as pipe:
        job = json.loads(pipe.read())
    say = teller(job.pop("token").encode(), told_fd)
    try:
        try_out(job, say)
    except BaseException as error:
        last = _broken(error, "could not be tried")
        say(outcome=last.outcome, detail=last.detail)


def teller(token: bytes, told_fd: int) -> Say:
    """Return what sends messages to a `WorkerLink` that has the same token."""
    write, encoded = os.write, json.dumps  # held: the code may change the modules

    def say(**message: Any) -> None:
        line = token + encoded(message).encode() + b"\n"
        while line:
            line = line[write(told_fd, line) :]

    return say


def load(code: str, *before: str) -> types.ModuleType:
    """Return a module made of the answer's code, after code of ours; `__name__` is not `__main__`."""
    module = types.ModuleType("answer")
    module.__file__ = "answer.py"
    sys.modules["answer"] = module
    for text, file in (*((one, "given.py") for one in before), (code, "answer.py")):
        when = "does not compile"
        try:
            program = compile(text, file, "exec", dont_inherit=True)
            when = "before it could be tried"
            exec(program, module.__dict__)  # noqa: S102 - this is the place for it
        except BaseException as error:
            raise _broken(error, when) from None
    return module


def described(error: BaseException) -> str:
    """Return the error in one line. It may be of a class of the answer's own."""
    try:
        if isinstance(error, SyntaxError):
            return f"{type(error).__name__}: {error.msg} (line {error.lineno})"
        said = " ".join(str(error).split())
    except BaseException:
        said = "?"
    return f"{type(error).__name__}: {said}"[:_LONGEST].rstrip(": ")


def _broken(error: BaseException, when: str) -> Broken:
    if isinstance(error, Broken):
        return error
    if isinstance(error, MemoryError):
        return Broken("out of memory", "exceeded")
    return Broken(described(error) if isinstance(error, SyntaxError) else f"{described(error)}, {when}")


def function(module: types.ModuleType, name: str) -> Callable[..., Any]:
    found: Callable[..., Any] | None = module.__dict__.get(name)
    if not callable(found):
        why = "is not a function" if name in module.__dict__ else "is not there"
        raise Broken(f"`{name}` {why}", "wrong")
    return found


_POLL_S = 0.02
_SETTLE_S = 0.2  # for a process to end, once its pipe is closed
_ENDS = ("broken", "wrong", "exceeded", "no answer")  # what the other process may say; a pass is not for it to tell
_MOST_BYTES = 8 << 20  # of messages: more is a flood


class CheckReport:
    """Passed if all checks did, and there was at least one."""

    def __init__(self) -> None:
        self.checks: list[dict[str, Any]] = []
        self.note = ""
        self.ended: Broken | None = None  # before all was looked at

    def check(self, name: str, passed: bool, detail: str = "") -> None:
        self.checks.append({"name": name, "passed": bool(passed), "detail": detail})

    def document(self) -> dict[str, Any]:
        failed = [one for one in self.checks if not one["passed"]]
        outcome, detail = "wrong", "nothing could be checked"
        if self.ended is not None:
            outcome, detail = self.ended.outcome, self.ended.detail
        elif failed:
            why = str(failed[0]["detail"])
            more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
            told_with_name = f"failed: {failed[0]['name']}{f': {why}' if why else ''}{more}"
            detail = why if why and len(self.checks) == 1 else told_with_name
        elif self.checks:
            outcome, detail = "passed", ""
        told = "; ".join(part for part in (detail, self.note) if part)
        return {"outcome": outcome, "detail": told, "checks": self.checks}


class WorkerLink:
    """Messages count only with the token that went with the job; what the answer's code writes is passed over."""

    def __init__(self, pid: int, told: int, seconds: float, token: bytes | None = None, *, job: int = -1) -> None:
        self._pid, self._told, self._job = pid, told, job
        self._token = token or os.urandom(16).hex().encode()
        self.renew(seconds)
        self._held = b""
        self._read_bytes = 0
        self._waited: int | None = None

    def renew(self, seconds: float) -> None:
        """Give the other process so many seconds from now on."""
        self._seconds, self._deadline = seconds, time.monotonic() + seconds

    def send(self, job: Mapping[str, Any]) -> None:
        """All that the other process is told, once."""
        data = json.dumps({**job, "token": self._token.decode()}).encode()
        with suppress(BrokenPipeError), os.fdopen(self._job, "wb") as pipe:
            pipe.write(data)

    def receive(self) -> dict[str, Any]:
        """Return the next message; `Broken` if the process has ended, says that it cannot go on, or time is up."""
        while True:
            while b"\n" in self._held:
                line, _, self._held = self._held.partition(b"\n")
                message: Any = None
                with suppress(ValueError):
                    message = json.loads(line[len(self._token) :]) if line.startswith(self._token) else None
                if isinstance(message, dict):
                    if "outcome" not in message:
                        return message
                    outcome = message["outcome"] if message["outcome"] in _ENDS else "broken"
                    raise Broken(str(message.get("detail", "")), outcome)
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise Broken(f"still running after {self._seconds:.0f} s", "exceeded")
            gone = self._gone()
            if select.select([self._told], [], [], 0 if gone else min(left, _POLL_S))[0]:
                read = os.read(self._told, 1 << 16)
                self._read_bytes += len(read)
                if read and self._read_bytes <= _MOST_BYTES:
                    self._held += read
                    continue
                if read:
                    raise Broken("too much output", "exceeded")
                gone = self._gone(_SETTLE_S) or "it closed the pipe for its report"
            if gone:
                raise Broken(gone)

    def kill(self, *, wait: bool = False) -> None:
        if self._waited is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._waited = os.waitpid(self._pid, 0)[1] if wait else None

    def _gone(self, patience_s: float = 0.0) -> str:
        """Return how it ended; empty if it still runs after so long."""
        until = time.monotonic() + patience_s
        while self._waited is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._waited = status
            elif time.monotonic() < until:
                time.sleep(0.005)
            else:
                return ""
        if os.WIFSIGNALED(self._waited):
            number = os.WTERMSIG(self._waited)
            return f"the code's process was ended by {signal.Signals(number).name if number < 32 else number}"
        return f"the code ended its process with status {os.WEXITSTATUS(self._waited)} before it was judged"

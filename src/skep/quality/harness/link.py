"""What the reporting process has of the other one: its messages, how it ended, and the report made of both."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from .worker import Broken

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

    def __init__(self, pid: int, job: int, told: int, seconds: float) -> None:
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._pid = pid
        self._job = job
        self._told = told
        self._token = os.urandom(16).hex().encode()
        self._held = b""
        self._read_bytes = 0
        self._waited: int | None = None

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

    def kill(self) -> None:
        if self._waited is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

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

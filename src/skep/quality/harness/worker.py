"""The process in which the answer's code runs. Nothing that it knows makes a pass: it only tells what it saw."""

from __future__ import annotations

import json
import os
import sys
import types
from collections.abc import Callable
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
    token, write, encoded = job.pop("token").encode(), os.write, json.dumps  # held: the code may change the modules

    def say(**message: Any) -> None:
        line = token + encoded(message).encode() + b"\n"
        while line:
            line = line[write(told_fd, line) :]

    try:
        try_out(job, say)
    except BaseException as error:
        last = _broken(error, "could not be tried")
        say(outcome=last.outcome, detail=last.detail)


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

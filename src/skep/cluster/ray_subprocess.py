"""Runs a module that imports ray in a child process, which prints one JSON document.

So neither the supervisor nor a short command imports ray. The parent calls `send`, the child calls `tell`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from skep.cluster.ray_command import LENIENT
from skep.errors import DoesNotFit, EngineError, SkepError, UserError

_IMPATIENT = {"RAY_gcs_server_request_timeout_seconds": "8"}  # a machine that is not a node gets its error after it
_ERRORS: dict[int, type[SkepError]] = {error.exit_code: error for error in (EngineError, UserError, DoesNotFit)}


def send(
    module: str,
    words: Sequence[str],
    *,
    asked: str,
    wait_s: float,
    given: str = "",
    env: Mapping[str, str] | None = None,
    hint: str | None = None,
) -> dict[str, Any]:
    """Return the child's document or raise its error. `asked`: the subject of errors; `given`: the child's stdin."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, *words],
            input=given.encode(),
            env={**_IMPATIENT, **LENIENT, **(os.environ if env is None else env)},
            capture_output=True,
            timeout=wait_s,
            check=False,
        )
        document: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise EngineError(f"{asked} did not answer within {wait_s:g} s", hint=hint) from None
    except ValueError:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise EngineError(f"{asked} cannot be asked: {lines[-1][:200]}", hint=hint) from None
    if "error" in document:
        raise error_of(document)
    return document


def tell(find: Callable[[], dict[str, Any]]) -> int:
    """Print the document and return the exit code. What Ray prints goes to stderr."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        document, code = find(), 0
    except SkepError as error:
        document, code = words_of(error), error.exit_code
    with answer:
        json.dump(document, answer)
    return code


def words_of(error: SkepError) -> dict[str, Any]:
    return {"error": error.message, "hint": error.hint, "exit_code": error.exit_code}


def error_of(words: Mapping[str, Any]) -> SkepError:
    return _ERRORS.get(words["exit_code"], EngineError)(words["error"], hint=words["hint"])

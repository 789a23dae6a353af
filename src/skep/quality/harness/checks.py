"""The kinds of checkers: what is tried beside the answer's code, and what the reporting process makes of it.

`python` and `completion` run tests in the module of the answer's code; `cases` calls a function on arguments, and what
should come out is known only to the process that compares; `regex` searches the text.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import re
import sys
import textwrap
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from .link import Broken, CheckReport, Say, WorkerLink, described, function, load, work
from .sources import above, as_one_file, chosen, completed, free_names, giving, joined

_DEEPEST = 40
_TOLERANCE = 1e-9


def look_at_tests(job: dict[str, Any], link: WorkerLink, report: CheckReport) -> None:
    link.send({key: job[key] for key in ("kind", "blocks", "values")})
    report.note = link.receive().get("note", "")
    told = link.receive()
    report.check("the tests pass", told.get("passed") is True, str(told.get("detail", "")))


def try_tests(job: dict[str, Any], say: Say) -> None:
    values = job["values"]
    for name in values.get("packages", ()):  # once for all that is tried: they may take seconds
        importlib.import_module(name)
    entry_point = values.get("entry_point")
    before: tuple[str, ...] = (values["before"],) if "before" in values else ()
    if job["kind"] == "completion":
        before, code, note = _completion(values["prompt"], entry_point, job["blocks"])
    else:
        code, note = chosen(job["blocks"], giving(free_names(values["tests"]) | {entry_point}), *before)
    say(note=note)
    code = as_one_file(code)
    Path("answer.py").write_text(code, encoding="utf-8", errors="surrogatepass")  # for tests that start it anew
    module = load(code, *before)
    if entry_point is not None:
        function(module, entry_point)
    say(**_tested(module, values["tests"], entry_point if job["kind"] == "completion" else None))


def _completion(prompt: str, entry_point: str, blocks: list[str]) -> tuple[tuple[str, ...], str, str]:
    """A whole function with what belongs to it; or else a body: all that look like parts of one, or the one that is."""
    wanted = giving({entry_point})
    if any(wanted(textwrap.dedent(code)) for code in blocks):
        code, left_out = chosen(blocks, wanted, above(prompt, entry_point))
        before, code, note = completed(prompt, entry_point, code)
        return before, code, "; ".join(filter(None, (note, left_out)))
    bodies = [code for code in blocks if re.search(r"\b(?:return|yield|import)\b", code)] or blocks
    for code in [joined(bodies), *bodies, joined(blocks)]:
        before, text, note = completed(prompt, entry_point, code)
        if note:
            return before, text, note
    return completed(prompt, entry_point, joined(blocks))


def _tested(module: types.ModuleType, tests: str, candidate: str | None) -> dict[str, Any]:
    """HumanEval's tests are a function `check`; others are run as they stand, and their `test_` functions too.

    Those of the answer are not run; where both have one of the same name, the item's has taken its place.
    """
    known = dict(module.__dict__)
    try:
        exec(compile(tests, "tests.py", "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - the item's own
        if candidate is not None:
            module.__dict__["check"](module.__dict__[candidate])
        else:
            for name in [n for n, one in module.__dict__.items() if n.startswith("test_") and known.get(n) is not one]:
                module.__dict__[name]()
    except MemoryError:
        raise Broken("out of memory", "exceeded") from None
    except BaseException as error:
        return {"passed": False, "detail": _failing(error, tests)}
    return {"passed": True}


def _failing(error: BaseException, tests: str) -> str:
    """Return the error, and the line of the tests that met it."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "tests.py":
            line = trace.tb_lineno
        trace = trace.tb_next
    source = tests.splitlines()[line - 1].strip() if 0 < line <= len(tests.splitlines()) else ""
    return f"{described(error)} at `{source}`" if source else described(error)


def look_at_calls(job: dict[str, Any], link: WorkerLink, report: CheckReport) -> None:
    values = job["values"]
    cases, raises = list(values.get("cases", ())), list(values.get("raises", ()))
    calls = [case[0] for case in cases] + raises
    link.send({"blocks": job["blocks"], "entry_point": values["entry_point"], "calls": calls})
    report.note = link.receive().get("note", "")
    for number, arguments in enumerate(calls):
        named = isinstance(arguments, dict)
        parts = [f"{key}={shown(one)}" for key, one in arguments.items()] if named else map(shown, arguments)
        name = values["entry_point"] + f"({', '.join(parts)})"[:120]
        told = link.receive()
        raised = told.get("raised")
        if number >= len(cases):
            report.check(f"{name} raises", raised is not None, "it does not")
        elif raised is not None:
            report.check(name, passed=False, detail=f"raised {raised}")
        else:
            want, have = cases[number][1], decoded(told.get("value"))
            report.check(name, alike(want, have), f"gave {shown(have)}, not {shown(want)}")


def try_calls(job: dict[str, Any], say: Say) -> None:
    """Arguments are copied for each call, so that one that is changed does not spoil the next."""
    code, note = chosen(job["blocks"], giving({job["entry_point"]}))
    say(note=note)
    entry = function(load(as_one_file(code)), job["entry_point"])
    for arguments in copy.deepcopy(job["calls"]):
        try:
            value = entry(**arguments) if isinstance(arguments, dict) else entry(*arguments)
            told = {"value": encoded(value)}
        except MemoryError:
            raise
        except BaseException as error:
            told = {"raised": described(error)}
        say(**told)


class UnsupportedValue(str):
    """What JSON cannot hold: told by its type and looks, and like nothing."""

    __slots__ = ()
    __repr__ = str.__str__


def encoded(value: Any, depth: int = 0) -> Any:
    """As JSON between processes. Lists and tuples are alike there, and a number written as a key is its text."""
    if depth > _DEEPEST:
        return {"foreign": "a value nested too deep"}
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value) if abs(value) < 1 << 62 else {"int": hex(value)}
    if isinstance(value, float):
        return {"float": float(value).hex()}
    if isinstance(value, (list, tuple)):
        return {"list": [encoded(one, depth + 1) for one in value]}
    if isinstance(value, Mapping):
        return {"dict": [[encoded(key, depth + 1), encoded(one, depth + 1)] for key, one in value.items()]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    try:
        looks = repr(value)
    except Exception:
        looks = "?"
    return {"foreign": f"{type(value).__name__} {looks}"[:200]}


def decoded(value: Any) -> Any:
    """Return the value that `encoded` wrote; anything else is unsupported."""
    if not isinstance(value, dict):
        return value if not isinstance(value, list) else UnsupportedValue("?")
    try:
        ((kind, held),) = value.items()
        return _DECODERS[kind](held)
    except (ValueError, TypeError, KeyError):
        return UnsupportedValue("?")


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "int": lambda held: int(held, 16),
    "float": float.fromhex,
    "list": lambda held: [decoded(one) for one in held],
    "dict": lambda held: {_key(decoded(key)): decoded(one) for key, one in held},
    "bytes": bytes.fromhex,
    "foreign": lambda held: UnsupportedValue(str(held)),
}


def alike(want: Any, have: Any) -> bool:
    """True is not 1; floats may differ in the last digits."""
    if isinstance(want, bool) or isinstance(have, bool):
        return want is have
    if isinstance(want, (int, float)) and isinstance(have, (int, float)):
        return want == have or abs(want - have) <= _TOLERANCE * max(abs(want), abs(have))
    if isinstance(want, (list, tuple)) and isinstance(have, list):
        return len(want) == len(have) and all(map(alike, want, have))
    if isinstance(want, dict) and isinstance(have, dict):
        keys = {_key(key): value for key, value in want.items()}
        return keys.keys() == have.keys() and all(alike(keys[key], have[key]) for key in keys)
    return type(want) is type(have) and bool(want == have)


def shown(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python writes no number of more than 4300 digits
        text = "a value too large to be shown"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _key(key: Any) -> str:
    return json.dumps(key) if isinstance(key, bool | None) else str(key)


def look_at_match(job: dict[str, Any], link: WorkerLink, report: CheckReport) -> None:
    """No code of the answer runs. In a process that can be ended: Python's matcher backtracks, at times for ever."""
    pattern = job["values"]["pattern"]
    link.send({"pattern": pattern, "said": job["said"]})
    report.check(f"`{pattern}` is found", link.receive()["found"], "it is not there")


def try_match(job: dict[str, Any], say: Say) -> None:
    try:
        pattern = re.compile(job["pattern"], re.MULTILINE)
    except (re.error, RecursionError, OverflowError) as error:
        raise Broken(f"the item's pattern is not valid: {error}") from None
    say(found=pattern.search(job["said"]) is not None)


Look = Callable[[dict[str, Any], WorkerLink, CheckReport], None]
TryOut = Callable[[dict[str, Any], Say], None]
KINDS: dict[str, tuple[Look, TryOut]] = {
    "python": (look_at_tests, try_tests),
    "completion": (look_at_tests, try_tests),
    "cases": (look_at_calls, try_calls),
    "regex": (look_at_match, try_match),
}


def main() -> None:
    kind = sys.argv[1]
    os.closerange(3, 256)  # whatever was handed down is not for the answer's code
    os.environ["TMPDIR"] = os.environ["HOME"] = str(os.getcwd())  # noqa: PTH109 - quick to start
    job_out, job_in = os.pipe()
    told_out, told_in = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(job_in)
            os.close(told_out)
            nowhere = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):  # what the answer prints goes nowhere, and there is nothing for it to read
                os.dup2(nowhere, number)
            work(KINDS[kind][1], job_out, told_in)
        finally:
            os._exit(1)
    os.close(job_out)
    os.close(told_in)
    import ctypes

    with suppress(OSError, AttributeError):  # the other process has the same user, and could read this one's memory
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    job: dict[str, Any] = json.loads(sys.stdin.buffer.read())
    mark, link, report = job.pop("mark"), WorkerLink(pid, told_out, job.pop("seconds"), job=job_in), CheckReport()
    try:
        KINDS[kind][0]({**job, "kind": kind}, link, report)
    except Broken as ended:
        report.ended = ended
    link.kill()
    sys.stdout.write(f"\n{mark}{json.dumps(report.document())}\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

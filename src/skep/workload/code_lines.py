"""Which lines look like Python, by their form alone: much of what models write does not parse."""

from __future__ import annotations

import re
import textwrap

_DEFINED = re.compile(r"^(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)", re.MULTILINE)
_PROMPT = re.compile(r"(?:>>>|\.\.\.)(?: |$)")
# Lines that prose does not begin with. `[^\n]` is bounded by the line, and no two parts can match the same text.
_STRONG = re.compile(
    r"from [.\w]+ import |import [\w.]+(?: as \w+)?(?:, ?[\w.]+(?: as \w+)?)*\s*(?:#.*)?$"
    r"|(?:async )?def \w+ ?\(|class \w+ ?(?:\(|:\s*(?:#.*)?$)|@\w[\w.]*(?:\(|\s*$)"
    r"|[A-Za-z_][\w.]*(?:\[[^\]\n]*\])? ?(?:: ?[\w\[\], .|\"']+)? ?[-+*/|]?=(?!=) ?\S|if __name__ ?=="
)
_WEAK = re.compile(
    r"(?:if|elif|while|with|async with|except|match) .*:\s*(?:#.*)?$|(?:async )?for .* in .*:\s*(?:#.*)?$"
    r"|(?:else|try|finally|except):\s*(?:#.*)?$|(?:return|raise|yield|await|assert|del|global|nonlocal) ?\S"
    r"|(?:return|pass|break|continue)\s*(?:#.*)?$|[A-Za-z_][\w.]*\(.*\)?[,:]?\s*(?:#.*)?$|[)\]}]+[,:]?\s*(?:->.*)?$"
    r"|#|\"\"\"|'''"
)


def top_level_names(code: str) -> frozenset[str]:
    """Functions and classes that begin in the first column."""
    return frozenset(_DEFINED.findall(code))


def looks_like_code(text: str) -> bool:
    """At least one line that only code has, and as many lines of code as others."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    strong = sum(1 for line in lines if _STRONG.match(line[:400]))
    weak = sum(1 for line in lines if _WEAK.match(line[:400]))
    return bool(strong or (weak and weak == len(lines))) and 2 * (strong + weak) >= len(lines)


def is_session(code: str) -> bool:
    """An interpreter's session: its first line has the prompt."""
    return code.lstrip().startswith(">>>")


def session_code(code: str) -> str:
    """What was typed, without the prompts and without what was printed. Other code is left as it is."""
    if not is_session(code):
        return code
    typed = [line.strip() for line in code.split("\n")]
    return "\n".join(line[4:] for line in typed if _PROMPT.match(line)) + "\n"


def code_run(text: str) -> str | None:
    """The longest run of lines that look like code, in a text without fences; None: there is none.

    An answer whose first line is indented is the body of a function, and is kept with its indentation.
    """
    best: list[str] = []
    best_size = 0
    run: list[str] = []
    size = 0
    for line in [*_without_prompts(text).split("\n"), "."]:
        if _goes_on(line, run):
            run.append(line)
            size += len(line)
            continue
        if size > best_size and _has_code(run):
            best, best_size = run, size
        run, size = [], 0
    while best and (not best[-1].strip() or best[-1].startswith("#")):
        best.pop()
    if not best:
        return None
    code = "\n".join(best).strip("\n") + "\n"
    dedented = textwrap.dedent(code)
    return dedented if top_level_names(dedented) else code


def _without_prompts(text: str) -> str:
    return session_code(text) if is_session(text) else text


def _goes_on(line: str, run: list[str]) -> bool:
    if not line.strip():
        return bool(run)
    if line[0] in " \t":
        return bool(run) or bool(_STRONG.match(line.strip()[:400]) or _WEAK.match(line.strip()[:400]))
    return bool(_STRONG.match(line[:400]) or (_WEAK.match(line[:400]) and (run or not line.startswith("#"))))


def _has_code(run: list[str]) -> bool:
    return looks_like_code("\n".join(run))

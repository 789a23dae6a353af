"""What an agent may use: files under a root, and Python in the sandbox. Nothing else, and nothing beyond its bounds.

A tool never raises for what a model asks of it: the answer says in one line what was wrong. Hidden files and folders
(`.env`, `.git`) are not given, links that lead out of the root neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Self

from skep.errors import SkepError, UserError
from skep.sandbox.detect import open_sandbox
from skep.sandbox.runner import Sandbox
from skep.sandbox.script import Ending, Limits, Script
from skep.swarm.ask.chunks import lines_of
from skep.swarm.ask.files import PASSED_BY, inside, read_text, walk

MOST_LISTED = 500
MOST_FOUND = 60
MOST_SEARCHED = 64_000_000  # characters of one search: a second or two
MOST_READ_LINES = 400
LONGEST_LINE = 400
LONGEST_CODE = 100_000
CODE_LIMITS = Limits(seconds=20.0, memory_bytes=512 << 20, output_bytes=64 << 10)


@dataclass(frozen=True, slots=True)
class Told:
    """What a tool gave back: data for the model. `ok` False: it says what was wrong."""

    text: str
    ok: bool = True


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    says: str
    parameters: Mapping[str, Mapping[str, Any]]
    required: tuple[str, ...]

    def schema(self) -> dict[str, Any]:
        """As `tools` of a chat request has it."""
        properties = {name: dict(one) for name, one in self.parameters.items()}
        parameters = {"type": "object", "properties": properties, "required": list(self.required)}
        return {"type": "function", "function": {"name": self.name, "description": self.says, "parameters": parameters}}


_TEXT = {"type": "string"}
_NUMBER = {"type": "integer"}
LIST_FILES = Tool(
    "list_files",
    "Names of the text files, in a folder or everywhere.",
    {"folder": {**_TEXT, "description": "such as src; leave out for all"}},
    (),
)
READ_FILE = Tool(
    "read_file",
    f"Lines of a file, with their numbers, at most {MOST_READ_LINES} at once.",
    {"path": _TEXT, "first_line": _NUMBER, "last_line": _NUMBER},
    ("path",),
)
SEARCH_TEXT = Tool(
    "search_text",
    "Lines that contain a text (no pattern; upper and lower case are the same), with file and number.",
    {"text": _TEXT, "folder": _TEXT},
    ("text",),
)
RUN_PYTHON = Tool(
    "run_python",
    "Run a Python program and get what it prints. No network, none of the files; 20 seconds.",
    {"code": _TEXT},
    ("code",),
)
BY_KIND = {"files": (LIST_FILES, READ_FILE, SEARCH_TEXT), "code": (RUN_PYTHON,)}


def tools_of(kinds: Sequence[str]) -> tuple[Tool, ...]:
    return tuple(tool for kind in kinds for tool in BY_KIND.get(kind, ()))


class CodeRoom:
    """One sandbox for all agents that have the code tool: opened by the first use, closed when the last has left."""

    def __init__(self) -> None:
        self._agents = 0
        self._sandbox: Sandbox | None = None
        self._opening = asyncio.Lock()  # there is one sandbox, however many agents ask at once

    async def __aenter__(self) -> Self:
        self._agents += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._agents -= 1
        if self._agents == 0 and self._sandbox is not None:
            sandbox, self._sandbox = self._sandbox, None
            await asyncio.shield(sandbox.close())

    async def run(self, code: str) -> Told:
        async with self._opening:
            if self._sandbox is None:
                try:
                    self._sandbox = await self._open()
                except SkepError as error:
                    return Told(f"code cannot be run here: {error.message}", ok=False)
        script = Script(("-I", "program.py"), {"program.py": code.encode("utf-8", "replace")}, packages=False)
        try:
            result = await self._sandbox.run(script, CODE_LIMITS)
        except SkepError as error:
            return Told(f"the program could not be run: {error.message}", ok=False)
        said = result.stdout.decode(errors="replace")
        if result.stderr:
            said += f"\n[stderr]\n{result.stderr.decode(errors='replace')}"
        if result.ending is not Ending.EXITED or result.exit_code:
            how = f"exit code {result.exit_code}" if result.ending is Ending.EXITED else result.ending.value
            said += f"\n[ended: {how}]"
        return Told(said.strip() or "[it printed nothing]", ok=result.ok)

    @staticmethod
    async def _open() -> Sandbox:
        """Cancelled meanwhile: it is waited for and closed, not left behind."""
        opening = asyncio.ensure_future(asyncio.to_thread(open_sandbox))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            await (await opening).close()
            raise


class Toolbox:
    """The tools of one agent. `most_chars`: of what one use gives back."""

    def __init__(self, kinds: Sequence[str], root: Path, code_room: CodeRoom, most_chars: int) -> None:
        self.tools = tools_of(kinds)
        self._root = root.resolve()
        self._code_room = code_room
        self._most_chars = most_chars

    async def use(self, name: str, arguments: Mapping[str, Any]) -> Told:
        tool = next((one for one in self.tools if one.name == name), None)
        if tool is None:
            known = ", ".join(one.name for one in self.tools) or "none"
            return Told(f"there is no tool `{name[:60]}`; the tools are: {known}", ok=False)
        wrong = _why_wrong(tool, arguments)
        if wrong is not None:
            return Told(wrong, ok=False)
        if tool is RUN_PYTHON:
            told = await self._code_room.run(str(arguments["code"])[:LONGEST_CODE])
            return Told(_storable(_ends_of(told.text, self._most_chars)), told.ok)
        told = await asyncio.to_thread(self._of_files, tool, arguments)
        return Told(_storable(_shortened(told.text, self._most_chars)), told.ok)

    def _of_files(self, tool: Tool, arguments: Mapping[str, Any]) -> Told:
        does: dict[str, Callable[[Mapping[str, Any]], str]] = {
            LIST_FILES.name: self._list,
            READ_FILE.name: self._read,
            SEARCH_TEXT.name: self._search,
        }
        try:
            return Told(does[tool.name](arguments))
        except UserError as error:
            return Told(error.message, ok=False)
        except OSError as error:
            return Told(f"cannot be read: {error.strerror or 'unknown'}", ok=False)

    def _list(self, arguments: Mapping[str, Any]) -> str:
        names = list(self._names(arguments))
        if not names:
            return "no files there"
        more = f"\n[and {len(names) - MOST_LISTED:,} more: name a folder]" if len(names) > MOST_LISTED else ""
        return "\n".join(names[:MOST_LISTED]) + more

    def _read(self, arguments: Mapping[str, Any]) -> str:
        name = _inner(arguments["path"])
        lines = lines_of(self._text(name))
        first = max(1, int(arguments.get("first_line") or 1))
        wanted = int(arguments.get("last_line") or first + MOST_READ_LINES - 1)
        last = min(wanted, first + MOST_READ_LINES - 1, len(lines))
        if first > len(lines):
            raise UserError(f"`{name}` has {len(lines):,} lines")
        room = self._most_chars - 120
        kept: list[str] = []
        for number in range(first, last + 1):
            line = f"{number}: {_shortened(lines[number - 1], LONGEST_LINE)}"
            room -= len(line) + 1
            if room < 0 and kept:
                break
            kept.append(line)
        end = first + len(kept) - 1
        more = (
            f"\n[lines {first} to {end} of {len(lines)}; go on with first_line={end + 1}]" if end < len(lines) else ""
        )
        return "\n".join(kept) + more

    def _search(self, arguments: Mapping[str, Any]) -> str:
        wanted, left, read = str(arguments["text"]).casefold(), 0, 0
        found: list[str] = []
        if not wanted.strip():
            raise UserError("`text` is empty")
        for name in self._names(arguments):
            if read > MOST_SEARCHED:
                found.append(f"[not searched: what comes from {name} on; name a folder]")
                break
            try:
                text = self._text(name)
            except UserError:
                continue  # no text, or too large
            read += len(text)
            for number, line in enumerate(lines_of(text), 1):
                if wanted in line.casefold():
                    if len(found) < MOST_FOUND:
                        found.append(f"{name}:{number}: {_shortened(line.strip(), LONGEST_LINE)}")
                    else:
                        left += 1
        if not found:
            return "found nowhere"
        return "\n".join(found) + (f"\n[and {left:,} more: name a folder, or a longer text]" if left else "")

    def _text(self, name: str) -> str:
        """Nothing hidden by its true name either: a link may lead to it."""
        _check_shown(inside(self._root, name).relative_to(self._root).parts, name)
        return read_text(self._root, name)

    def _names(self, arguments: Mapping[str, Any]) -> list[str]:
        folder = str(arguments.get("folder") or "").strip().strip("/")
        folder = "" if folder in ("", ".") else _inner(folder)
        inside(self._root, folder or ".")
        return [name for name in walk(self._root) if not folder or name == folder or name.startswith(f"{folder}/")]


def _inner(value: Any) -> str:
    """A name under the root, nothing hidden."""
    parts = [part for part in PurePosixPath(str(value).strip()).parts if part != "."]
    if not parts:
        raise UserError("`path` is empty")
    if ".." in parts or parts[0] == "/":
        raise UserError(f"`{str(value)[:100]}` is outside of the root; names are relative to it")
    _check_shown(parts, str(value))
    return "/".join(parts)


def _check_shown(parts: Sequence[str], name: str) -> None:
    if any(part.startswith(".") or part in PASSED_BY for part in parts):
        raise UserError(f"`{name[:100]}` is not given to agents")


def _why_wrong(tool: Tool, arguments: Mapping[str, Any]) -> str | None:
    for name in tool.required:
        if arguments.get(name) in (None, ""):
            return f"{tool.name} needs `{name}`"
    for name, value in arguments.items():
        if name not in tool.parameters:
            return f"{tool.name} has no `{str(name)[:40]}`; it takes {', '.join(tool.parameters)}"
        wanted = tool.parameters[name]["type"]
        if value is None or (wanted == "string" and isinstance(value, str)):
            continue
        if wanted == "integer" and _is_whole(value):
            continue
        return f"`{name}` of {tool.name} must be {'a text' if wanted == 'string' else 'a whole number'}"
    return None


def _is_whole(value: Any) -> bool:
    """Models write numbers as texts."""
    if isinstance(value, str):
        return value.isascii() and value.isdigit() and len(value) < 10
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**9


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 40]}[… {len(text) - most + 40:,} characters left out]"


def _ends_of(text: str, most: int) -> str:
    """Of what a program printed: how it began, and how it ended, where the fault stands."""
    if len(text) <= most:
        return text
    half = (most - 50) // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out]\n{text[-half:]}"


def _storable(text: str) -> str:
    return text.replace("\0", "�").encode("utf-8", "replace").decode()

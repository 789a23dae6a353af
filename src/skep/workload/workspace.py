"""A small world that an agent's tools act on: files, issues, a store of parts and a calendar, all
in memory.

A call of a tool returns the text that a model is given back, and changes the world where the tool
does. `tools.json` has the tools as engines are told of them. Knows nothing of models and of what
is wanted; arguments were checked against the schema before they come here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

MOST_FILES = 64
LONGEST_FILE = 20_000  # characters
LONGEST_RESULT = 4_000  # characters that a model is given back
MOST_EVENTS = 64
MOST_MATCHES = 20


class Issue(msgspec.Struct):
    title: str
    label: str
    reporter: str
    assignee: str = "nobody"
    status: str = "open"
    priority: str = "normal"
    blocked_by: int | None = None

    def lines(self, number: int) -> str:
        fields = msgspec.structs.asdict(self)
        named = [f"{name}: {value}" for name, value in fields.items() if value is not None]
        return "\n".join([f"number: {number}", *named])


class FailingTest(msgspec.Struct, frozen=True):
    """A test that passes once a file has the expected line."""

    name: str
    path: str
    expected_line: str
    message: str


class Workspace(msgspec.Struct):
    """The state of the world. Two are equal where every call has had the same effect."""

    files: dict[str, str] = {}
    issues: dict[int, Issue] = {}
    shelves: dict[str, dict[str, int]] = {}
    events: list[dict[str, Any]] = []
    tests: tuple[FailingTest, ...] = ()

    def copied(self) -> Workspace:
        return deepcopy(self)

    def state(self) -> dict[str, Any]:
        """Return what counts of the state: white space at the ends of files does not, nor who is
        named first in an event, nor a shelf without a part.
        """
        texts = {path: text.strip() for path, text in self.files.items()}
        shelves = {
            name: {part: count for part, count in parts.items() if count}
            for name, parts in self.shelves.items()
        }
        events = [event | {"attendees": sorted(event["attendees"])} for event in self.events]
        return {
            "files": texts,
            "issues": self.issues,
            "shelves": {name: parts for name, parts in shelves.items() if parts},
            "events": sorted(events, key=str),
        }

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Carry out a call and return what the model is told; an error is told, not raised."""
        result = _TOOLS[name](self, **arguments)
        if len(result) > LONGEST_RESULT:
            return f"{result[:LONGEST_RESULT]}\n(cut)"
        return result

    def list_files(self, folder: str) -> str:
        beginning = folder.strip("./")
        paths = [
            path
            for path in sorted(self.files)
            if not beginning or path.startswith(f"{beginning}/")
        ]
        return "\n".join(paths) or f"error: there is no folder `{folder[:80]}`"

    def read_file(self, path: str) -> str:
        text = self.files.get(path)
        if text is None:
            return f"error: there is no file `{path[:80]}`"
        return text

    def search_text(self, query: str) -> str:
        matches = [
            f"{path}:{number}: {line}"
            for path, text in sorted(self.files.items())
            for number, line in enumerate(text.splitlines(), start=1)
            if query in line
        ]
        return "\n".join(matches[:MOST_MATCHES]) or "no match"

    def write_file(self, path: str, content: str) -> str:
        if len(content) > LONGEST_FILE:
            return f"error: a file has at most {LONGEST_FILE} characters"
        if path not in self.files and len(self.files) >= MOST_FILES:
            return f"error: there are {MOST_FILES} files already"
        self.files[path] = content
        return "written"

    def replace_text(self, path: str, old: str, new: str) -> str:
        text = self.files.get(path)
        if text is None:
            return f"error: there is no file `{path[:80]}`"
        if text.count(old) != 1:
            return f"error: the old text occurs {text.count(old)} times in it, not once"
        return self.write_file(path, text.replace(old, new))

    def run_tests(self) -> str:
        failing = [
            test
            for test in self.tests
            if test.expected_line not in self.files.get(test.path, "").splitlines()
        ]
        if not failing:
            return f"{len(self.tests)} tests passed"
        return "\n".join(f"FAILED {test.name} ({test.path}): {test.message}" for test in failing)

    def find_issues(self, label: str, status: str) -> str:
        lines = [
            f"{number}: {issue.title} ({issue.status})"
            for number, issue in sorted(self.issues.items())
            if issue.label == label and status in ("any", issue.status)
        ]
        return "\n".join(lines) or "no such issue"

    def read_issue(self, number: int) -> str:
        issue = self.issues.get(number)
        if issue is None:
            return f"error: there is no issue {number}"
        return issue.lines(number)

    def update_issue(self, number: int, **fields: str) -> str:
        issue = self.issues.get(number)
        if issue is None:
            return f"error: there is no issue {number}"
        self.issues[number] = msgspec.structs.replace(issue, **fields)
        return "updated"

    def find_parts(self, shelf: str) -> str:
        parts = self.shelves.get(shelf, {})
        lines = [f"{part}: {count}" for part, count in sorted(parts.items()) if count]
        return "\n".join(lines) or "the shelf is empty"

    def move_parts(self, part: str, from_shelf: str, to_shelf: str, count: int) -> str:
        held = self.shelves.get(from_shelf, {}).get(part, 0)
        if count > held:
            return f"error: {from_shelf} has {held} of `{part[:80]}`"
        target = self.shelves.get(to_shelf)
        if target is None:
            return f"error: there is no shelf {to_shelf}"
        self.shelves[from_shelf][part] = held - count
        target[part] = target.get(part, 0) + count
        return "moved"

    def add_event(
        self, title: str, day: str, start: str, minutes: int, attendees: list[str]
    ) -> str:
        if len(self.events) >= MOST_EVENTS:
            return f"error: the week has {MOST_EVENTS} events already"
        self.events.append(
            {
                "title": title,
                "day": day,
                "start": start,
                "minutes": minutes,
                "attendees": attendees,
            }
        )
        return "added"


TOOL_NAMES = (
    "list_files",
    "read_file",
    "search_text",
    "write_file",
    "replace_text",
    "run_tests",
    "find_issues",
    "read_issue",
    "update_issue",
    "find_parts",
    "move_parts",
    "add_event",
)
_TOOLS: Mapping[str, Callable[..., str]] = {name: getattr(Workspace, name) for name in TOOL_NAMES}
# Those that change the world.
CHANGING_TOOLS = frozenset(
    {"write_file", "replace_text", "update_issue", "move_parts", "add_event"}
)


@cache
def tool_schemas() -> Mapping[str, Mapping[str, Any]]:
    """Return the schema of each tool's arguments, by its name."""
    return {tool["name"]: tool["parameters"] for tool in _descriptions()}


def offered_tools() -> list[dict[str, Any]]:
    """Return the tools as a request offers them: the same ones each time, so that what stands
    before a conversation stays in an engine's prefix cache.
    """
    return [{"type": "function", "function": tool} for tool in _descriptions()]


@cache
def _descriptions() -> list[dict[str, Any]]:
    text = files(__package__).joinpath("tools.json").read_text(encoding="utf-8")
    descriptions: list[dict[str, Any]] = json.loads(text)
    return descriptions

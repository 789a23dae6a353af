"""Tasks for an agent with tools: a world, a goal in words, and the calls that reach it.

What is wanted is the world after those calls, however a model gets there, or a value in its last
answer. The same seed gives the same tasks for ever; a task of a number is the same however many
are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import msgspec

from skep.errors import UserError
from skep.workload.drills import NAMES, between, some
from skep.workload.filling import ADJECTIVES, FIELDS, THINGS, pick
from skep.workload.items import Checker, Item
from skep.workload.workspace import FailingTest, Issue, Workspace

TOOLS = "tools"  # the bank, and the kind of its checker
# Tokens of the context before the task, the sizes' names, and room for the tools, the task and its
# turns within a context of that name.
SIZES: Mapping[str, int] = {"2k": 2_048, "32k": 28_672, "128k": 122_880}
ROOM_TOKENS = 4_096  # behind the context, at least
LONGEST_WITHOUT_TOLD_CONTEXT = 32_768  # where an endpoint does not tell its context
FACTS = 6  # that the conversation before a task has told
LABELS = ("login", "export", "search", "billing", "upload", "layout")
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday")
MAX_TOKENS = 1024  # of one answer


class ToolStep(msgspec.Struct, frozen=True):
    """A call on the way to the goal."""

    name: str
    arguments: Mapping[str, Any]


class ToolTask(msgspec.Struct, frozen=True):
    """A goal and one way to it.

    `answer`: the value that the last answer must hold; None: the world alone counts.
    """

    family: str
    world: Workspace
    goal: str
    steps: tuple[ToolStep, ...]
    answer: str | None = None

    def wanted(self) -> Workspace:
        """Return the world as it is once the goal is reached."""
        world = self.world.copied()
        for step in self.steps:
            world.call(step.name, step.arguments)
        return world


class Fact(msgspec.Struct, frozen=True):
    """What an earlier turn of the conversation has told."""

    key: str
    value: str


def facts_of(seed: int, size: str) -> list[Fact]:
    """Return the facts that stand in the conversation before the tasks of a size."""
    rng = Random(f"{seed}/tools/{size}/facts")
    nouns = [singular for singular, _ in THINGS]
    return [
        Fact(f"{noun}_release_code", f"{noun[:2].upper()}-{between(rng, 10_000, 99_999)}")
        for noun in some(rng, nouns, FACTS)
    ]


def tool_task(seed: int, size: str, number: int) -> ToolTask:
    """Return a task. No two goals of a seed are equal."""
    rng = Random(f"{seed}/tools/{size}/{number}")
    tag = f"{1 + list(SIZES).index(size)}{number:04d}"
    draft = TaskDraft(rng, tag, facts_of(seed, size))
    family = list(FAMILIES)[number % len(FAMILIES)]
    goal, steps, answer = FAMILIES[family](draft)
    return ToolTask(family, draft.world, goal, tuple(steps), answer)


def tool_items(seed: int, sizes: Sequence[str], count: int) -> list[Item]:
    """Return `count` items, as many of each size as of the others."""
    items = []
    for place in range(count):
        size = sizes[place % len(sizes)]
        number = place // len(sizes)
        task = tool_task(seed, size, number)
        values = {"size": size, "seed": seed, "number": number, "steps": len(task.steps)}
        items.append(
            Item(
                f"tools-{size}-{seed}-{number}",
                ({"role": "user", "content": task.goal},),
                Checker(TOOLS, values),
                MAX_TOKENS,
                family=task.family,
            )
        )
    return items


def task_of(item: Item) -> ToolTask:
    values = item.checker.values
    return tool_task(values["seed"], values["size"], values["number"])


def size_of(item: Item) -> str:
    """Return the size of an item's context; empty: it is no item of the bank `tools`."""
    if item.checker.kind != TOOLS:
        return ""
    return str(item.checker.values["size"])


def sizes_named(bank: str) -> tuple[str, ...]:
    """Return the sizes of `tools` or `tools:32k`. Raises UserError for others."""
    _, colon, size = bank.partition(":")
    if not colon:
        return tuple(SIZES)
    if size.lower() not in SIZES:
        names = ", ".join(f"{TOOLS}:{name}" for name in SIZES)
        raise UserError(f"--bank `{bank}` has no such size", hint=f"choose {TOOLS}, {names}")
    return (size.lower(),)


class TaskDraft:
    """A world that a family of tasks is drawn in. `tag`: digits in what the goal names, so that no
    goal comes twice.
    """

    def __init__(self, rng: Random, tag: str, facts: Sequence[Fact]) -> None:
        self.rng = rng
        self.facts = facts
        self.tag = tag
        self.people = some(rng, NAMES, 6)
        nouns = [singular for singular, _ in THINGS]
        self.nouns = some(rng, nouns, 8)
        self.fields = some(rng, FIELDS, 6)
        self.labels = some(rng, LABELS, 4)
        self.settings: dict[str, tuple[str, str]] = {}  # path and line, by name
        self.world = Workspace()
        self._write_files()
        self._write_issues()
        self._fill_shelves()

    def _write_files(self) -> None:
        files = self.world.files
        for noun in self.nouns[:4]:
            path = f"config/{noun}.toml"
            lines = []
            for field in self.fields[:4]:
                name = f"{noun}_{field}_limit"
                line = f"{name} = {between(self.rng, 10, 899)}"
                self.settings[name] = (path, line)
                lines.append(line)
            files[path] = "\n".join([f"# limits of the {noun}", *lines, ""])
        for noun in self.nouns[4:6]:
            adjective = pick(self.rng, ADJECTIVES)
            files[f"src/{noun}.py"] = (
                f'"""What the {adjective} {noun} costs."""\n\n'
                f"RATE = {between(self.rng, 2, 49)}\n\n\n"
                f"def total(count: int) -> int:\n    return RATE * count\n"
            )
        owners = zip(self.labels, self.people, strict=False)
        files["OWNERS"] = "\n".join(f"{label}: {person}" for label, person in owners)

    def _write_issues(self) -> None:
        numbers = some(self.rng, [*range(11, 99)], 6)
        titles = some(self.rng, self.fields, 6)
        for place, number in enumerate(numbers):
            self.world.issues[number] = Issue(
                title=f"the {titles[place]} of the {pick(self.rng, self.nouns)} is wrong",
                label=self.labels[place % 3],
                reporter=pick(self.rng, self.people[:3]),
                assignee=pick(self.rng, self.people[3:]),
                status="closed" if place >= 4 else "open",
            )
        self.world.issues[numbers[0]].blocked_by = numbers[1]
        self.issues = numbers

    def _fill_shelves(self) -> None:
        letters = some(self.rng, "ABCDEFGH", 3)
        self.shelves = [f"{letter}{between(self.rng, 1, 9)}" for letter in letters]
        counts = some(self.rng, [*range(4, 90)], 12)
        for place, shelf in enumerate(self.shelves):
            drawn = counts[4 * place : 4 * place + 4]
            self.world.shelves[shelf] = dict(zip(self.nouns[:4], drawn, strict=True))


FamilyDraw = tuple[str, list[ToolStep], str | None]
DrawFamily = Callable[[TaskDraft], FamilyDraw]


def _step(name: str, **arguments: Any) -> ToolStep:
    return ToolStep(name, arguments)


def _setting(draft: TaskDraft) -> FamilyDraw:
    name = pick(draft.rng, list(draft.settings))
    path, line = draft.settings[name]
    value = 90_000 + int(draft.tag)
    goal = (
        f"One of the files sets `{name}`. Find it and set the value to {value}; change nothing "
        "else."
    )
    steps = [
        _step("search_text", query=name),
        _step("replace_text", path=path, old=line, new=f"{name} = {value}"),
    ]
    return goal, steps, None


def _failing_test(draft: TaskDraft) -> FamilyDraw:
    noun = draft.nouns[4]
    path = f"src/{noun}.py"
    text = draft.world.files[path]
    line = next(line for line in text.splitlines() if line.startswith("RATE"))
    rate = between(draft.rng, 51, 99)
    count = between(draft.rng, 2, 9)
    message = f"total({count}) must be {rate * count}, as one {noun} costs {rate}"
    test = FailingTest(f"test_total_{draft.tag}", path, f"RATE = {rate}", message)
    draft.world.tests = (test,)
    goal = (
        f"The test `{test.name}` fails. Run the tests, read the file that it names, and repair "
        "the value in it so that the test passes. Change nothing else."
    )
    steps = [
        _step("run_tests"),
        _step("read_file", path=path),
        _step("replace_text", path=path, old=line, new=test.expected_line),
        _step("run_tests"),
    ]
    return goal, steps, None


def _assign(draft: TaskDraft) -> FamilyDraw:
    label = "urgent"
    number = draft.issues[0]
    issue = draft.world.issues[number]
    issue.label = label
    issue.title = f"{issue.title} ({draft.tag})"
    owned = draft.labels[0]
    owner = draft.people[0]
    goal = (
        f"Find the open issue with the label `{label}` whose title ends in ({draft.tag}). Assign "
        f"it to the person whom the file `OWNERS` names for `{owned}`, and set its priority to "
        "high. Leave its other fields as they are."
    )
    steps = [
        _step("find_issues", label=label, status="open"),
        _step("read_file", path="OWNERS"),
        _step("update_issue", number=number, assignee=owner, priority="high"),
    ]
    return goal, steps, None


def _blocked(draft: TaskDraft) -> FamilyDraw:
    number = draft.issues[0]
    blocker = draft.issues[1]
    goal = (
        f"Request {draft.tag}: issue {number} is blocked by another issue. Set the status of that "
        "other issue to closed and its priority to low; leave all else as it is."
    )
    steps = [
        _step("read_issue", number=number),
        _step("update_issue", number=blocker, status="closed", priority="low"),
    ]
    return goal, steps, None


def _stock(draft: TaskDraft) -> FamilyDraw:
    source = draft.shelves[0]
    target = draft.shelves[1]
    parts = draft.world.shelves[source]
    rarest = min(parts, key=parts.__getitem__)
    goal = (
        f"Order {draft.tag}: move all pieces of the part of which shelf {source} has the fewest "
        f"to shelf {target}."
    )
    steps = [
        _step("find_parts", shelf=source),
        _step(
            "move_parts",
            part=rarest,
            from_shelf=source,
            to_shelf=target,
            count=parts[rarest],
        ),
    ]
    return goal, steps, None


def _review(draft: TaskDraft) -> FamilyDraw:
    number = draft.issues[2]
    issue = draft.world.issues[number]
    day = pick(draft.rng, DAYS)
    start = f"{between(draft.rng, 9, 16):02d}:{15 * between(draft.rng, 0, 3):02d}"
    minutes = 15 * between(draft.rng, 1, 6)
    title = f"Review {draft.tag}"
    goal = (
        f"Put an event with the title `{title}` into the calendar, on {day} at {start}, for "
        f"{minutes} minutes, with two attendees: who reported issue {number}, and to whom it is "
        "assigned."
    )
    steps = [
        _step("read_issue", number=number),
        _step(
            "add_event",
            title=title,
            day=day,
            start=start,
            minutes=minutes,
            attendees=[issue.reporter, issue.assignee],
        ),
    ]
    return goal, steps, None


def _recall(draft: TaskDraft) -> FamilyDraw:
    fact = pick(draft.rng, draft.facts)
    name = f"code_{draft.tag}"
    path = f"config/{draft.nouns[0]}.toml"
    draft.world.files[path] += f'{name} = "unknown"\n'
    goal = (
        f"Earlier in this conversation I told you the `{fact.key}`. One of the files sets "
        f"`{name}`: put that code there in place of the word unknown, and change nothing else."
    )
    steps = [
        _step("search_text", query=name),
        _step(
            "replace_text",
            path=path,
            old=f'{name} = "unknown"',
            new=f'{name} = "{fact.value}"',
        ),
    ]
    return goal, steps, None


def _count(draft: TaskDraft) -> FamilyDraw:
    first = draft.shelves[0]
    second = draft.shelves[2]
    part = draft.nouns[0]
    shelves = draft.world.shelves
    total = shelves[first][part] + shelves[second][part]
    goal = (
        f"Question {draft.tag}: how many pieces of the part `{part}` do the shelves {first} and "
        f"{second} have together? Move nothing; answer with the number alone."
    )
    steps = [_step("find_parts", shelf=first), _step("find_parts", shelf=second)]
    return goal, steps, str(total)


def _copy(draft: TaskDraft) -> FamilyDraw:
    path = f"config/{draft.nouns[1]}.toml"
    target = f"config/copy_{draft.tag}.toml"
    text = draft.world.files[path]
    first, _, rest = text.partition("\n")
    goal = (
        f"Write the text of the file `{path}` into the new file `{target}`, with "
        f"`# copy {draft.tag}` as its first line in place of `{first}`. Leave `{path}` as it is."
    )
    steps = [
        _step("read_file", path=path),
        _step("write_file", path=target, content=f"# copy {draft.tag}\n{rest}"),
    ]
    return goal, steps, None


FAMILIES: Mapping[str, DrawFamily] = {
    "setting": _setting,
    "failing test": _failing_test,
    "assign": _assign,
    "blocked": _blocked,
    "stock": _stock,
    "review": _review,
    "recall": _recall,
    "count": _count,
    "copy": _copy,
}

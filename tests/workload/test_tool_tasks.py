"""Tasks with tools: the way that each names reaches its goal, and the tools tell errors as text."""

import json

import pytest
from jsonschema import Draft202012Validator

from skep.errors import UserError
from skep.workload.filling import CHARS_PER_PIECE, TYPICAL_CHARS_PER_TOKEN, pieces
from skep.workload.items import Checker, Item
from skep.workload.tool_history import tool_history
from skep.workload.tool_tasks import (
    FAMILIES,
    SIZES,
    facts_of,
    size_of,
    sizes_named,
    task_of,
    tool_items,
    tool_task,
)
from skep.workload.workspace import (
    LONGEST_FILE,
    LONGEST_RESULT,
    MOST_EVENTS,
    MOST_FILES,
    TOOL_NAMES,
    Workspace,
    offered_tools,
    tool_schemas,
)

TASKS = [tool_task(7, size, number) for size in SIZES for number in range(2 * len(FAMILIES))]
EVENT = {"title": "t", "day": "friday", "start": "09:00", "minutes": 5, "attendees": ["Ada"]}


def test_the_same_seed_gives_the_same_tasks_and_no_goal_comes_twice():
    again = [tool_task(7, size, number) for size in SIZES for number in range(2 * len(FAMILIES))]
    assert again == TASKS
    assert len({task.goal for task in TASKS}) == len(TASKS)


@pytest.mark.parametrize("task", TASKS[: len(FAMILIES)], ids=lambda task: task.family)
def test_the_way_to_a_goal_has_valid_calls_that_succeed(task):
    world = task.world.copied()
    for step in task.steps:
        Draft202012Validator(tool_schemas()[step.name]).validate(dict(step.arguments))
        assert not world.call(step.name, step.arguments).startswith("error")
    assert 2 <= len(task.steps) <= 5


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.goal[:40])
def test_a_goal_is_not_reached_before_the_first_call(task):
    assert task.answer is not None or task.wanted().state() != task.world.state()


def test_items_are_shared_evenly_among_the_sizes_and_name_their_task():
    items = tool_items(7, ["2k", "32k"], 6)
    assert [size_of(item) for item in items] == ["2k", "32k"] * 3
    assert task_of(items[5]) == tool_task(7, "32k", 2)
    assert items[5].messages[0]["content"] == task_of(items[5]).goal
    assert size_of(Item("x", (), Checker("exact"))) == ""


def test_a_bank_names_all_sizes_or_one():
    assert sizes_named("tools") == tuple(SIZES)
    assert sizes_named("tools:32K") == ("32k",)
    with pytest.raises(UserError, match="no such size"):
        sizes_named("tools:64k")


@pytest.mark.parametrize("size", SIZES)
def test_a_conversation_before_a_task_has_its_length_and_tells_the_facts(size):
    messages = tool_history(7, size)
    text = "".join(f"{message['content']}{message.get('tool_calls', '')}" for message in messages)
    tokens = pieces(text) * CHARS_PER_PIECE / TYPICAL_CHARS_PER_TOKEN + 8 * len(messages)
    assert tokens == pytest.approx(SIZES[size], rel=0.1)
    assert messages == tool_history(7, size)
    assert all(fact.value in text for fact in facts_of(7, size))


def test_calls_in_a_conversation_have_results_and_ids_of_nine_letters():
    messages = tool_history(7, "32k")
    ids = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    results = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    assert ids == results
    assert {len(call_id) for call_id in ids} == {9}
    assert len(set(ids)) == len(ids)


def test_the_tools_that_are_offered_are_those_that_can_be_called():
    assert [tool["function"]["name"] for tool in offered_tools()] == list(TOOL_NAMES)
    assert json.dumps(offered_tools()) == json.dumps(offered_tools())


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        (
            "list_files",
            {"folder": "nowhere"},
            "error: there is no folder",
        ),
        (
            "read_file",
            {"path": "nowhere"},
            "error: there is no file",
        ),
        (
            "replace_text",
            {"path": "nowhere", "old": "a", "new": "b"},
            "error: there is no file",
        ),
        (
            "replace_text",
            {"path": "a.txt", "old": "x", "new": "b"},
            "error: the old text occurs 2",
        ),
        (
            "search_text",
            {"query": "zebra"},
            "no match",
        ),
        (
            "write_file",
            {"path": "b", "content": "x" * (LONGEST_FILE + 1)},
            "error: a file has at",
        ),
        (
            "find_issues",
            {"label": "none", "status": "any"},
            "no such issue",
        ),
        (
            "read_issue",
            {"number": 5},
            "error: there is no issue 5",
        ),
        (
            "update_issue",
            {"number": 5},
            "error: there is no issue 5",
        ),
        (
            "find_parts",
            {"shelf": "Z9"},
            "the shelf is empty",
        ),
        (
            "move_parts",
            {"part": "nut", "from_shelf": "A1", "to_shelf": "B2", "count": 9},
            "error: A1 has 3",
        ),
        (
            "move_parts",
            {"part": "nut", "from_shelf": "A1", "to_shelf": "Z9", "count": 1},
            "error: there is no shelf Z9",
        ),
        (
            "run_tests",
            {},
            "0 tests passed",
        ),
        (
            "list_files",
            {"folder": "."},
            "a.txt",
        ),
        (
            "add_event",
            EVENT,
            "added",
        ),
    ],
)
def test_a_tool_tells_what_is_wrong_as_text(name, arguments, expected):
    world = Workspace(files={"a.txt": "x x"}, shelves={"A1": {"nut": 3}, "B2": {}})
    assert world.call(name, arguments).startswith(expected)


def test_a_world_does_not_grow_without_bound():
    world = Workspace(files={str(number): "" for number in range(MOST_FILES)})
    assert world.call("write_file", {"path": "one more", "content": ""}).startswith("error")
    for _ in range(MOST_EVENTS):
        world.call("add_event", EVENT)
    assert world.call("add_event", EVENT).startswith("error")
    assert len(world.events) == MOST_EVENTS


def test_a_long_result_is_cut():
    world = Workspace(files={"long": "x" * 10_000})
    assert len(world.call("read_file", {"path": "long"})) < LONGEST_RESULT + 10


def test_order_of_attendees_and_space_at_the_end_of_a_file_are_the_same_state():
    worlds = [
        Workspace(files={"a": "x\n"}, events=[EVENT | {"attendees": ["A", "B"]}]),
        Workspace(
            files={"a": "x"}, events=[EVENT | {"attendees": ["B", "A"]}], shelves={"A1": {}}
        ),
    ]
    assert worlds[0].state() == worlds[1].state()

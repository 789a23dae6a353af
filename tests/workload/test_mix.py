"""Classes of traffic: what a file says, checked field by field."""

import tomllib
from pathlib import Path

import pytest

from skep.errors import UserError
from skep.workload.traffic import TrafficClass, parse_classes

STEADY = {"shape": "steady", "agents": 3}


def example():
    """The file that docs/measure.md shows."""
    text = (Path(__file__).parents[2] / "docs/measure.md").read_text()
    table = next(part for part in text.split("```toml\n") if "[class.chat]" in part)
    return tomllib.loads(table.split("```")[0])["class"]


def test_the_documented_example_is_read():
    """In the order of the file, with what was left out filled in."""
    chat, hooks, nightly = parse_classes(example())
    lengths = {"prompt_tokens": 400, "max_tokens": 200, "turns": 5, "think_s": 8.0}
    assert chat == TrafficClass("chat", "conversation", agents=4, priority="interactive", **lengths)
    assert (hooks.rate, hooks.arrivals, hooks.agents, hooks.priority) == (1.5, "gamma:2.0", None, "normal")
    assert (nightly.agents, nightly.prefix_tokens, nightly.priority) == (8, 4000, "batch")


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"shape": "stedy", "agents": 1}, "class `a`: `shape` must be one of `steady`, .*, not `stedy`"),
        ({"agents": 1}, "`shape` is missing: one of .*`open`"),
        (STEADY | {"max_token": 5}, "class `a`: `max_token` is not known; did you mean `max_tokens`"),
        (STEADY | {"zzz": 5}, "`zzz` is not known; known: .*`shape`"),
        (STEADY | {"name": "b"}, "`name` is not known"),
        (STEADY | {"agents": 0}, "`agents` must be a whole number from 1 .*, not `0`"),
        (STEADY | {"agents": True}, "`agents` must be a whole number .*, not `true`"),
        (STEADY | {"agents": 2.5}, "`agents` must be a whole number .*, not `2.5`"),
        (STEADY | {"priority": "urgent"}, "`priority` must be one of `interactive`, `normal`, `batch`, not `urgent`"),
        (STEADY | {"prompt_tokens": 5}, "`prompt_tokens` must be a whole number from 30 .*, not `5`"),
        (STEADY | {"max_tokens": "64"}, "`max_tokens` must be a whole number .*, not `64`"),
        (STEADY | {"think_s": float("nan")}, "`think_s` must be a number from 0 to 86400, not `NaN`"),
        (STEADY | {"rate": 2}, "`rate` has no meaning for the shape `steady`: it belongs to open"),
        (STEADY | {"turns": 3}, "`turns` has no meaning .* belongs to conversation"),
        ({"shape": "steady"}, "`agents` is missing: a steady class"),
        ({"shape": "open"}, "`rate` is missing: .* requests per second"),
        (
            {"shape": "open", "rate": 1, "agents": 2},
            "`agents` has no meaning .* steady and conversation",
        ),
        ({"shape": "open", "rate": 1, "arrivals": "gama:2"}, "`arrivals` must be .*gamma:CV.*, not `gama:2`"),
        ({"shape": "conversation", "agents": 2}, "`turns` is 1: a conversation has two turns or more"),
        (7, "not a table of fields, such as `shape`"),
    ],
)
def test_wrong_fields_are_named(values, problem):
    """The class, the field, what is wrong and what is wanted."""
    with pytest.raises(UserError, match=problem) as caught:
        parse_classes({"a": values})
    assert caught.value.hint


@pytest.mark.parametrize("name", ["", "a b", "x" * 41, "ä", "a/b"])
def test_names_are_plain_and_there_is_one_at_least(name):
    """They become file names and columns."""
    with pytest.raises(UserError, match="not a name"):
        parse_classes({name: STEADY})
    with pytest.raises(UserError, match="names no class"):
        parse_classes({})

"""The swarm from Python: what a caller gives, and what comes back."""

import json
import os
import signal
from dataclasses import dataclass
from typing import Annotated

import pytest
from pydantic import BaseModel, Field, field_validator

from skep import swarm
from skep.errors import UserError
from skep.paths import user_paths
from skep.store.database import open_store
from skep.swarm.address import key_here, url_here
from skep.swarm.api import AnswerForm, make_tasks
from skep.swarm.records import SwarmRunState
from skep.swarm.store import SwarmStore
from skep.testing.process import FakeEngine

STORED = (
    ("not accepted", '{"name": "mended", "legs": 6}'),
    ("stubborn", "I would rather not."),
    ("good", 'Here: {"name": "good", "legs": 6}'),
    ("lame", '{"name": "lame", "legs": 5}'),
)


class Bee(BaseModel):
    name: str
    legs: int

    @field_validator("legs")
    @classmethod
    def _six(cls, value):
        """What no schema says."""
        if value != 6:
            raise ValueError("bees have six legs")
        return value


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    answers = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    answers.write_text(
        "\n".join(json.dumps({"prompt": key, "answer": text}) for key, text in STORED)
    )
    with FakeEngine(slots=4, token_ms=1, answers=answers) as started:
        yield started


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch, engine):
    for name in ("CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setenv("SKEP_URL", engine.url)
    monkeypatch.delenv("SKEP_API_KEY", raising=False)


def tasks_for(prompt, items, schema=None):
    return make_tasks(prompt, items, schema, {})


def texts(prompt, items):
    return [task.messages[-1]["content"] for task in tasks_for(prompt, items)]


def runs():
    with open_store(user_paths(os.environ).store, read_only=True) as store:
        return SwarmStore(store).runs()


def test_values_come_in_the_order_of_the_items():
    answers = swarm.map_sync("Count to {}", range(1, 6), max_tokens=3)
    assert answers == ["the bees carry"] * 5
    (run,) = runs()
    assert (run.state, run.counts.done, run.name) == (SwarmRunState.DONE, 5, "python")


def test_a_model_gives_instances_of_it_and_its_own_validators_count():
    """The answer with five legs is JSON of the right form;
    the model takes it back to be mended.
    """
    assert swarm.map_sync("a {kind} bee", [{"kind": "good"}, {"kind": "lame"}], schema=Bee) == [
        Bee(name="good", legs=6),
        Bee(name="mended", legs=6),
    ]


def test_failures_are_raised_together_and_the_others_are_not_lost():
    with pytest.raises(swarm.SwarmError, match="1 of 2 tasks failed; task 2: ") as caught:
        swarm.map_sync("{} bee", ["good", "stubborn"], schema=Bee, tries=1, journal=False)
    good, stubborn = caught.value.values
    assert good.name == "good"
    assert caught.value.failures == [stubborn]
    assert (stubborn.task, stubborn.item, stubborn.kind, stubborn.tries) == (
        "2",
        "stubborn",
        "rejected",
        1,
    )
    assert stubborn.answer == "I would rather not."
    assert "holds no JSON" in str(stubborn)


def test_a_run_can_be_asked_for_again(engine):
    """Resumed with the same items, nothing is sent again; with others, it is refused."""
    first = swarm.map_sync("Say {}", ["x", "y"], max_tokens=4)
    sent = engine.state()["requests"]
    assert swarm.map_sync("Say {}", ["x", "y"], max_tokens=4, resume="last") == first
    assert engine.state()["requests"] == sent
    with pytest.raises(UserError, match=r"run `.*` has other tasks than these"):
        swarm.map_sync("Say {}", ["x", "z"], resume="last")


def test_a_run_may_leave_no_journal():
    assert swarm.map_sync("{}", ["a"], max_tokens=1, journal=False) == ["the"]
    assert not user_paths(os.environ).store.exists()
    with pytest.raises(UserError, match="nothing to resume"):
        swarm.map_sync("{}", ["a"], journal=False, resume="last")


async def test_where_a_loop_runs_already_the_other_form_is_named():
    with pytest.raises(UserError, match="a loop runs already"):
        swarm.map_sync("{}", ["a"])
    assert await swarm.map("{}", ["a"], max_tokens=2, journal=False) == ["the bees"]


@pytest.fixture
def interruptible():
    """As a program begins at a terminal: started in the background, or after other tests, SIGINT
    may be ignored.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_keeps_what_is_done():
    interrupted = False

    def watch(progress):
        nonlocal interrupted
        if progress.done and not interrupted:
            interrupted = True
            os.kill(os.getpid(), signal.SIGINT)

    length = {"short": 1, "long": 3000}
    with pytest.raises(KeyboardInterrupt):
        swarm.map_sync(
            lambda prompt: {"prompt": prompt, "max_tokens": length[prompt]},
            list(length),
            watch=watch,
        )
    (run,) = runs()
    assert (run.state, run.counts.done, run.counts.left) == (SwarmRunState.STOPPED, 1, 1)


def test_a_template_takes_items_and_their_fields():
    @dataclass
    class Page:
        title: str

    class Book(BaseModel):
        title: str

    assert texts("Do {}", ["a{b}", 5, [1, "x"]]) == ["Do a{b}", "Do 5", 'Do [1, "x"]']
    assert texts("{title} {{}} {item}", [{"title": "T"}]) == ['T {} {"title": "T"}']
    assert texts("{title}", [Page("p"), Book(title="b")]) == ["p", "b"]
    with pytest.raises(UserError, match=r"asks for `\{name\}`; known: `item`, `title`"):
        texts("{name}", [{"title": "T"}])


def test_a_function_gives_a_prompt_messages_or_fields():
    functions = {
        "text": "hello",
        "messages": [{"role": "user", "content": "hi"}],
        "fields": {"id": "own", "prompt": "hey", "max_tokens": 3},
    }
    tasks = tasks_for(functions.get, list(functions), {"type": "object"})
    assert [task.id for task in tasks] == ["1", "2", "own"]
    assert tasks[2].max_tokens == 3
    assert {task.schema["type"] for task in tasks} == {"object"}


@pytest.mark.parametrize(
    ("prompt", "items", "fault"),
    [
        (lambda _: 5, ["a"], "returned int for item 1"),
        (lambda _: {"prompt": "x", "extra": {"seed": {1}}}, ["a"], "task 1: not JSON"),
        (lambda _: {"promt": "x"}, ["a"], "did you mean `prompt`"),
        (
            lambda _: {"id": "same", "prompt": "x"},
            ["a", "b"],
            "the id `same` is already used in task 1",
        ),
        ("no place", ["a"], "no place to fill in"),
        (7, ["a"], "must be a template or a function"),
        ("{}", "abc", "not str"),
        ("{}", 5, "not int"),
    ],
)
def test_what_cannot_be_asked_is_told_before_anything_runs(prompt, items, fault):
    with pytest.raises(UserError, match=fault):
        swarm.map_sync(prompt, items)
    assert not user_paths(os.environ).store.exists()


@pytest.mark.parametrize(
    ("option", "value"), [("agents", 0), ("tries", True), ("timeout_s", 0), ("schema", open)]
)
def test_options_are_checked(option, value):
    with pytest.raises(UserError):
        swarm.map_sync("{}", ["a"], **{option: value})


def test_nothing_to_do_is_done_and_any_type_with_a_json_form_will_do():
    assert swarm.map_sync("{}", []) == []
    form = AnswerForm(list[Annotated[int, Field(gt=0)]])
    assert (form.schema["type"], form.read([1]), form.fault([1])) == ("array", [1], None)
    assert form.fault([1, 0]).startswith("$[1]: ")


def test_the_endpoint_is_this_machines_unless_named_and_the_key_goes_to_these_two():
    paths = user_paths(os.environ)
    assert url_here(paths, {"SKEP_URL": "http://box:1"}) == "http://box:1"
    assert url_here(paths, {}) == "http://127.0.0.1:8400"
    env = {"SKEP_API_KEY": "secret", "SKEP_URL": "https://hive.example:8443/v1"}
    assert key_here("http://localhost:8400/v1", env) == "secret"
    assert key_here("https://hive.example:8443", env) == "secret"
    assert key_here("https://hive.example", env) is None
    assert key_here("https://elsewhere.example:8443/v1", env) is None
    assert key_here("https://elsewhere.example", {"SKEP_API_KEY": "secret"}) is None

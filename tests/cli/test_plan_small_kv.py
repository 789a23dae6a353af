"""What `skep plan` says of KV types below 8 bits where agents call tools."""

import pytest
from in_process import call

from skep.planner.setup import find_kv
from skep.testing.process import FakeEngine
from tool_dialogues import SEED, write_dialogues

pytestmark = pytest.mark.usefixtures("paths")  # each test has an installation of its own
MODEL = "qwen3-8b"
PINNED = (MODEL, "--gpu", "rtx-3090", "--engine", "llamacpp", "--kv", "q4_0", "-c", "4")
WARNING = "HAS LESS THAN 8 BITS"
COUNT = 18


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    path = tmp_path_factory.mktemp("dialogues") / "solved.jsonl"
    return write_dialogues(path, COUNT, sizes=("2k",))


@pytest.fixture(scope="module")
def unsolved(tmp_path_factory):
    path = tmp_path_factory.mktemp("dialogues") / "unsolved.jsonl"
    return write_dialogues(path, COUNT, lambda _task: [{"text": "No."}], sizes=("2k",))


def trial(dialogues, kv):
    words = ("--items", str(COUNT), "-c", "1,2", "--delta", "45", "--seed", str(SEED), "--kv", kv)
    with FakeEngine(slots=2, token_ms=0.1, model=MODEL, dialogues=dialogues) as engine:
        call("bench", "quality", "--url", engine.url, "--bank", "tools:2k", *words, check=None)


def test_a_pinned_one_is_warned_of_and_how_it_can_be_shown():
    out = call("plan", *PINNED, check=0).out
    assert f"! KV OF Q4_0 {WARNING}" in out
    assert "skep bench quality --bank tools" in out


def test_it_stands_in_the_document_too():
    document = call("plan", *PINNED, "--json", check=0).json
    assert any(WARNING in caveat for caveat in document["plans"][0]["caveats"])


def test_single_tasks_are_planned_without_a_word_of_it():
    assert WARNING not in call("plan", *PINNED, "--load", "task", check=0).out


@pytest.mark.parametrize("words", ["qwen3-8b --gpu rtx-3090", "qwen3.6-27b --gpu 2xrtx-3090"])
def test_none_is_chosen_where_nobody_pins_it(words):
    document = call("plan", *words.split(), "-c", "8", "--json", check=0).json
    for plan in document["plans"]:
        assert find_kv(plan["kv_dtype"]).bytes >= 1


def test_trials_that_found_it_no_worse_lift_the_warning(solved):
    trial(solved, "f16")
    trial(solved, "q4_0")
    assert WARNING not in call("plan", *PINNED, check=0).out


def test_trials_that_found_it_worse_do_not(solved, unsolved):
    trial(solved, "f16")
    trial(unsolved, "q4_0")
    assert WARNING in call("plan", *PINNED, check=0).out

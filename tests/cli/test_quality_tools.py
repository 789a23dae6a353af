"""`skep bench quality --bank tools` as a user runs it: tasks of several turns against the fake
engine and the embedded one.
"""

import pytest
from in_process import call, refused

from skep.report.quality import EXIT_LOST, EXIT_OK
from skep.testing.process import FakeEngine
from skep.workload.tool_tasks import SIZES, tool_task
from tool_dialogues import SEED, solving, write_dialogues

pytestmark = pytest.mark.usefixtures("paths")  # each test has an installation of its own
COUNT = 18
WORDS = ("--items", str(COUNT), "-c", "1,4", "--delta", "45", "--seed", str(SEED))
READS = ["read_file", {"path": "OWNERS"}]
# Ways to fail by the number of the task, with the outcome that each is to have.
FAULTS = {
    0: (
        "wrong tool",
        [
            {"calls": [["write_file", {"path": "a", "content": "b"}]]},
        ],
    ),
    1: (
        "bad arguments",
        [
            {"calls": [["read_file", {"file": "OWNERS"}]]},
        ],
    ),
    2: (
        "unknown tool",
        [
            {"calls": [["delete_file", {"path": "OWNERS"}]]},
        ],
    ),
    3: (
        "malformed call",
        [
            {"calls": [["read_file", '{"path": "OWNERS']]},
        ],
    ),
    4: (
        "malformed call",
        [
            {"calls": [READS] * 200},
        ],
    ),
    5: (
        "malformed call",
        [
            {"calls": [["read_file", "[" * 30_000]]},
        ],
    ),
    6: (
        "malformed call",
        [
            {"calls": [["read_file", '{"path": "%s"}' % ("x" * 100_000)]]},
        ],
    ),
    7: ("no call", []),
    8: (
        "call as text",
        [
            {"text": '<tool_call>{"name": "read_file"}</tool_call>'},
        ],
    ),
}


def quality(engine, bank, *words, check):
    return call("bench", "quality", "--url", engine.url, "--bank", bank, *words, check=check)


def base_outcomes(document):
    (level,) = document["levels"]
    return level["base"]["outcomes"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("dialogues")


@pytest.fixture(scope="module")
def solved(folder):
    return write_dialogues(folder / "solved.jsonl", COUNT)


@pytest.fixture(scope="module")
def good(solved):
    with FakeEngine(slots=4, token_ms=0.1, ctx=50_000, dialogues=solved) as engine:
        yield engine


@pytest.fixture
def both_sizes(good):
    """A trial of the plain bank on an engine whose context has no room for 128K."""
    return quality(good, "tools", *WORDS, "--json", check=EXIT_OK)


def test_tasks_that_are_solved_alone_and_under_load_hold(good):
    done = quality(good, "tools:2k", *WORDS, check=EXIT_OK)
    assert "quality holds up to C=4: a loss of 45 points or more is excluded" in done.out
    assert "C=1 against itself: 0 of 18 verdicts changed" in done.err


def test_a_size_that_does_not_fit_is_one_line_and_the_others_are_asked(both_sizes):
    line = "tools:128k is left out: it needs a context of 126,976 tokens, the endpoint has 50,000"
    assert both_sizes.err.count(line) == 1
    assert "after 2k, 32k of context" in both_sizes.err


def test_each_size_of_context_has_its_own_figures(both_sizes):
    (level,) = both_sizes.json["levels"]
    sizes = {size["size"]: size for size in level["sizes"]}
    assert {name: size["context_tokens"] for name, size in sizes.items()} == {
        "2k": SIZES["2k"],
        "32k": SIZES["32k"],
    }
    assert [size["base"] for size in sizes.values()] == [{"passed": 9}] * 2
    assert sizes["32k"]["difference"]["items"] == 9


def test_a_bank_that_fits_in_no_size_is_refused_with_what_it_needs(solved):
    with FakeEngine(ctx=4096, dialogues=solved) as engine:
        message = refused("bench", "quality", "--url", engine.url, "--bank", "tools")
    assert "needs a context of 6,144 tokens, the endpoint has 4,096" in message


def test_a_size_that_there_is_not_is_one_clear_line():
    message = refused("bench", "quality", "--bank", "tools:9k", "--url", "http://127.0.0.1:9")
    assert "no such size" in message


def test_each_way_to_fail_has_an_outcome_of_its_own(folder):
    """A flood of calls, huge and deeply nested arguments end their task and nothing else."""
    goals = [tool_task(SEED, "2k", number).goal for number in range(COUNT)]

    def failing(task):
        if task.goal not in goals:
            return solving(task)
        number = goals.index(task.goal)
        if number not in FAULTS:
            return solving(task)
        _, turns = FAULTS[number]
        return [*turns, {"text": "Sorry."}]

    path = write_dialogues(folder / "faults.jsonl", COUNT, failing)
    expected = {"passed": COUNT - len(FAULTS)}
    for outcome, _ in FAULTS.values():
        expected[outcome] = expected.get(outcome, 0) + 1
    with FakeEngine(slots=4, token_ms=0.1, ctx=50_000, dialogues=path) as engine:
        document = quality(
            engine, "tools:2k", *WORDS, "--output-tokens", "4000", "--json", check=None
        ).json
    assert base_outcomes(document) == expected


def test_valid_calls_that_do_something_else_have_a_wrong_effect(folder):
    def off_by_one(task):
        turns = solving(task)
        if task.family == "stock":
            turns[1]["calls"][0][1]["count"] -= 1
        return turns

    path = write_dialogues(folder / "effect.jsonl", COUNT, off_by_one)
    with FakeEngine(slots=4, token_ms=0.1, ctx=50_000, dialogues=path) as engine:
        document = quality(engine, "tools:2k", *WORDS, "--json", check=None).json
    assert base_outcomes(document) == {"passed": 16, "wrong effect": 2}


def test_wrong_tools_under_load_are_a_loss(folder):
    wrong = {"calls": [["write_file", {"path": "a", "content": "b"}]]}
    path = write_dialogues(folder / "worse.jsonl", COUNT, wrong=wrong)
    with FakeEngine(
        slots=4, token_ms=1, ctx=50_000, dialogues=path, worse_above="1:0.9", seed=1
    ) as engine:
        words = ("--items", str(COUNT), "-c", "4", "--delta", "10", "--seed", str(SEED))
        document = quality(engine, "tools:2k", *words, "--json", check=EXIT_LOST).json
    (level,) = document["levels"]
    assert level["base"]["outcomes"] == {"passed": COUNT}
    assert level["load"]["outcomes"]["wrong tool"] >= COUNT // 2


def test_calls_that_come_as_text_end_the_trial_with_what_to_do(solved):
    with FakeEngine(slots=4, ctx=50_000, dialogues=solved, tool_calls="text") as engine:
        message = refused(
            "bench", "quality", "--url", engine.url, "--bank", "tools:2k", *WORDS, code=1
        )
    assert "answered the first 5 tasks with a tool call as text" in message
    assert "--tool-call-parser" in message


def test_a_server_that_refuses_tools_is_told_and_what_to_do(solved):
    with FakeEngine(slots=4, ctx=50_000, dialogues=solved, tool_calls="refused") as engine:
        message = refused(
            "bench", "quality", "--url", engine.url, "--bank", "tools:2k", *WORDS, code=1
        )
    assert "refuses requests with tools" in message
    assert "--enable-auto-tool-choice" in message


def test_the_text_and_the_report_have_a_row_for_each_size(good, tmp_path):
    done = quality(good, "tools", *WORDS, check=EXIT_OK)
    rows = [line.split() for line in done.out.splitlines()]
    assert any(row[:7] == ["1", "2k", "9", "100.0", "%", "0", "0"] for row in rows)
    assert any(row[:3] == ["4", "32k", "9"] for row in rows)
    page = tmp_path / "q.html"
    call("runs", "report", "last", "-o", str(page), check=0)
    assert "Each size of context at each concurrency" in page.read_text()


@pytest.fixture
def engine_with_worse_kv(folder):
    """Fails every second task, at any load."""

    def every_second(task):
        if goals.index(task.goal) % 2:
            return [{"text": "I cannot."}]
        return solving(task)

    goals = [tool_task(SEED, "2k", number).goal for number in range(COUNT)]
    path = write_dialogues(folder / "kv.jsonl", COUNT, every_second, sizes=("2k",))
    with FakeEngine(slots=4, token_ms=0.1, ctx=50_000, dialogues=path) as engine:
        yield engine


def test_two_kv_types_are_compared_task_by_task(good, engine_with_worse_kv):
    words = (*WORDS[:4], "--delta", "20", "--seed", str(SEED))
    quality(good, "tools:2k", *words, "--kv", "f16", check=None)
    quality(engine_with_worse_kv, "tools:2k", *words, "--kv", "q4_0", check=None)
    done = call("runs", "compare", "last~1", "last", check=EXIT_LOST)
    assert "KV q4_0 (B) against KV of 16 bits (A): worse at C=1: at least" in done.out
    document = call("runs", "compare", "last~1", "last", "--json", check=EXIT_LOST).json
    assert [level["concurrency"] for level in document["levels"]] == [1, 4]
    assert document["levels"][0]["difference"]["lost"] == COUNT // 2


def test_the_same_answers_with_another_kv_type_are_no_worse(good):
    quality(good, "tools:2k", *WORDS, "--kv", "f16", check=EXIT_OK)
    quality(good, "tools:2k", *WORDS, "--kv", "fp8", check=EXIT_OK)
    done = call("runs", "compare", "last~1", "last", check=EXIT_OK)
    assert "KV fp8 (B) against KV of 16 bits (A): no worse than 45 points at C=1, 4" in done.out


def test_trials_of_other_tasks_are_not_compared(good):
    for seed in ("7", "8"):
        words = ("--items", "9", "-c", "1,2", "--delta", "45", "--seed", seed)
        quality(good, "tools:2k", *words, check=None)
    message = refused("runs", "compare", "last~1", "last")
    assert "were asked other items" in message
    assert "--seed" in message

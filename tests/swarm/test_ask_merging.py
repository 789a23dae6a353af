"""From answers to the answer: merges level by level, from the journal alone, nothing lost where
one is no good.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skep.swarm.ask_files import FilePiece
from skep.swarm.ask_merging import answer_of, ask_document, next_tasks, plan_document
from skep.swarm.ask_sizes import Sizes
from skep.swarm.ask_split import GoalPart, GoalSplit
from skep.swarm.records import Counts, SwarmRun, SwarmRunState, Task, TaskEnding, TaskResult

SIZES = Sizes(chunk_chars=600, merge_chars=400, answer_tokens=100, chars_per_token=3.0)


def run_of(count, *, merge=True, by_model=True, why=None, names=None):
    names = names or [f"t{n}" for n in range(count)]
    parts = tuple(
        GoalPart(name, "Sum up", (FilePiece(f"Objective {n}", ""),))
        for n, name in enumerate(names)
    )
    ask = ask_document(
        plan_document("the goal", GoalSplit(parts, SIZES, by_model, why), merge=merge), SIZES
    )
    state = SwarmRunState.DONE
    counts = Counts(count, count, 0)
    return SwarmRun("run", "ask", 0.0, "", "", None, {"ask": ask}, "0", None, state, counts, 1)


def final_answer(run, results):
    return answer_of(run, results).with_notes()


def result(task, answer, *, ending=TaskEnding.DONE, error=None, finish="stop", value=None):
    return TaskResult(task, ending, answer, value, None, error, 1, 0.0, 1.0, 1, 1, finish)


def first_answers(count, size=80):
    return [result(f"t{n}", f"Finding {n} is {'x' * size}{n}.") for n in range(count)]


def carried_out(run, results, merge):
    """As the runner does it, to the end: the results, and the merges of each level."""
    tasks = []
    levels = []
    while new := next_tasks(run, tasks, results):
        levels.append([task.id for task in new])
        tasks += new
        results = [*results, *(merge(task) for task in new)]
    return results, levels, tasks


def test_merges_go_level_by_level_until_one_is_left():
    run = run_of(9)
    results, levels, tasks = carried_out(
        run, first_answers(9), lambda task: result(task.id, f"Merged in {task.id}.")
    )
    assert [len(level) for level in levels] == [3, 1]
    assert [task.stage for task in tasks] == [1, 1, 1, 2]
    assert final_answer(run, results) == "Merged in merge-2-1."
    assert answer_of(run, results).complete


def test_one_journal_gives_the_same_tasks_and_nothing_is_merged_before_all_is_there():
    """A killed run goes on with the merges that it had, and makes none twice."""
    run = run_of(9)
    results = first_answers(9)
    assert next_tasks(run, [], results[:8]) == []
    assert not answer_of(run, results[:8]).complete
    first = next_tasks(run, [], results)
    assert next_tasks(run, [], results) == first
    done = [*results, result(first[0].id, "Merged.")]
    assert [task.id for task in next_tasks(run, first[:1], done)] == [
        task.id for task in first[1:]
    ]
    assert next_tasks(run, first, done) == []


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"answer": ""}, "it is empty"),
        ({"answer": None, "ending": TaskEnding.FAILED, "error": "failed"}, "failed"),
        ({"answer": "y" * 2000}, "longer"),
        ({"answer": "A beginning", "finish": "length"}, "cut at its limit"),
    ],
)
def test_where_a_merge_is_no_good_its_parts_stand_one_after_the_other(bad, why):
    run = run_of(3)
    results, _, _tasks = carried_out(run, first_answers(3), lambda task: result(task.id, **bad))
    text = final_answer(run, results)
    assert all(f"## Objective {n}\n\nFinding {n} is" in text for n in range(3))
    assert why in text.partition("How this was made:")[2]


@given(st.lists(st.integers(0, 600), min_size=1, max_size=30), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_every_finding_is_in_the_answer_or_in_a_merge_that_was_used(sizes, rng):
    """However long the answers are and whichever merges fail, it ends, and nothing falls out."""
    run = run_of(len(sizes))
    results = [result(f"t{n}", f"finding-{n}. {'x' * size}") for n, size in enumerate(sizes)]

    def merge(task):
        if rng.random() < 0.5:
            return result(task.id, None, ending=TaskEnding.FAILED, error="no")
        words = {
            word for word in task.messages[1]["content"].split() if word.startswith("finding-")
        }
        return result(task.id, " ".join(sorted(words)))

    results, levels, _tasks = carried_out(run, results, merge)
    text = final_answer(run, results)
    assert all(f"finding-{n}." in text for n in range(len(sizes)))
    assert len(levels) <= len(sizes)


def test_missing_answers_are_named_and_those_too_long_to_merge_follow_one_another():
    run = run_of(3)
    long = first_answers(3, size=390)
    assert next_tasks(run, [], long) == []
    text = final_answer(run, long)
    assert "do not fit into one merge" in text
    assert text.count("## Objective") == 3
    failed = result("t1", None, ending=TaskEnding.FAILED, error="HTTP 400")
    text = final_answer(run, [*first_answers(1), failed, result("t2", " ")])
    assert "`t1` is missing: HTTP 400" in text
    assert "`t2` is missing: its answer is empty" in text
    cut = [result("t0", "Whole."), result("t1", "Only half of", finish="length")]
    assert "- 1 of 2 answers were cut at the limit of tokens" in final_answer(
        run_of(2, merge=False), cut
    )


def test_a_merge_may_not_take_a_tasks_name():
    run = run_of(2, names=["merge-1-1", "b"])
    new = next_tasks(
        run,
        [Task("merge-1-1", ()), Task("b", ())],
        [result("merge-1-1", "one"), result("b", "two")],
    )
    assert [task.id for task in new] == ["merge-1-1'"]


def test_a_plan_of_an_earlier_version_is_read():
    """It had fields of its own, and tasks without files."""
    task = {"objective": "Count", "input": "x", "output": {"type": "object"}, "tools": ["files"]}
    tasks = [{"id": "a", **task}, {"id": "b", **task, "files": ["a.md:1-3"]}]
    plan = {
        "goal": "g",
        "tasks": tasks,
        "reduce": {"how": "vote", "instruction": "count", "parts": True},
    }
    sizes = {"chunk_chars": 6, "merge_chars": 4, "answer_tokens": 1, "chars_per_token": 3.0}
    ask = {"goal": "g", "plan": plan, "sizes": sizes, "tools": ["files"], "native_tools": True}
    run = SwarmRun(
        "r",
        "ask",
        0,
        "",
        "",
        None,
        {"ask": ask},
        "0",
        None,
        SwarmRunState.DONE,
        Counts(2, 2, 0),
        1,
    )
    assert (
        final_answer(run, [result("a", "one"), result("b", "two")])
        == "## Count\n\none\n\n## a.md:1-3\n\ntwo"
    )

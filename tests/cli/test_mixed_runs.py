"""Two stored runs of the mixed workload as a user compares, draws and exports them: the models of
a write-up.
"""

import csv
import json
import re

import pytest
from in_process import call, refused
from installation import installation

from sample_mixed import GPT_OSS, QWEN, store_mixed
from skep.store.database import open_store


@pytest.fixture
def stored(paths):
    def keep(model, name, **how):
        with open_store(paths.store) as store:
            return store_mixed(store, model, name, **how)

    return keep


@pytest.fixture
def models(stored):
    """gpt-oss-20b as A, qwen3-coder-30b as B."""
    return stored(GPT_OSS, "gpt-oss-20b"), stored(QWEN, "qwen3-coder-30b", at=2e9)


def table(text, title):
    """The lines of one printed table, without its title."""
    return text.partition(f"\n{title}\n")[2].partition("\n\n")[0].splitlines()


def words(line):
    return " ".join(line.split())


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """What is printed of the published comparison: Qwen3-Coder is the better daily driver, 24 to
    50 % faster at every level.
    """
    with installation(tmp_path_factory.mktemp("comparison")) as paths:
        with open_store(paths.store) as store:
            gpt_oss = store_mixed(store, GPT_OSS, "gpt-oss-20b")
            qwen = store_mixed(store, QWEN, "qwen3-coder-30b", at=2e9)
        return call("runs", "compare", gpt_oss, qwen, check=0).out


def test_two_models_are_compared_with_a_column_each(comparison):
    head, *_ = table(comparison, "TTFT of turn 1")
    assert words(head) == "C A gpt-oss-20b B qwen3-coder-30b B / A"


def test_each_level_has_both_medians_their_change_from_one_agent_and_the_ratio(comparison):
    rows = table(comparison, "TTFT of turn 1")[1:]
    # Without the interval of the ratio.
    assert [re.split(r" \([012]", words(row))[0] for row in rows] == [
        "1 64 ms 135 ms 2.11",
        "2 139 ms (+117 %) 110 ms (-19 %) 0.79",
        "3 150 ms (+134 %) 135 ms (+0 %) 0.90",
        "5 290 ms (+353 %) 191 ms (+41 %) 0.66",
    ]


def test_the_time_of_a_conversation_is_compared_at_every_level(comparison):
    rows = table(comparison, "conversation time")[1:]
    assert [words(row).split()[:5] for row in rows] == [
        ["1", "3.2", "s", "2.2", "s"],
        ["2", "7.1", "s", "4.4", "s"],
        ["3", "7.4", "s", "3.7", "s"],
        ["5", "8.2", "s", "6.3", "s"],
    ]
    assert all(row.endswith("better") for row in rows)


def test_a_side_task_is_compared_by_its_passes_and_its_seconds(comparison):
    assert "S3" in comparison
    assert "0/3 (6.8 s)" in comparison


def test_two_models_are_compared_by_how_many_side_tasks_each_bears(comparison):
    advice = table(comparison, "advice: most side tasks")
    assert [words(row) for row in advice[1:]] == [
        "beside a conversation, within 1.5x of its time alone 0 0",
        "beside a conversation, within 2.5x 2 2",
        # Of A two of four side tasks failed at C=5.
        "for batch work 2 4",
    ]


def test_the_last_lines_of_a_comparison_are_memory_time_and_right_answers(comparison):
    last_lines = comparison.splitlines()[-5:]
    assert "GPU memory in use: 14.0 GiB of 24.0 GiB (A), 20.0 GiB of 24.0 GiB (B)" in last_lines
    assert "conversation: B takes 24 to 50 % less time at C=1, 2, 3, 5" in last_lines
    assert "TTFT of turn 1 at C=5: 4.5x of C=1 (A), 1.4x of C=1 (B)" in last_lines
    assert (
        "right answers: 51 of 57 (A), 54 of 57 (B): no difference is shown; so few answers "
        "show only a collapse"
    ) in last_lines


def test_a_comparison_ends_with_which_model_is_better_and_why(comparison):
    verdict = comparison.splitlines()[-1]
    assert verdict == "better for this work: B, as its conversation is faster at C=1, 2, 3, 5"


def test_a_comparison_in_which_the_first_model_is_better_ends_with_4(models):
    done = call("runs", "compare", *reversed(models), check=4)
    assert done.out.splitlines()[-1].startswith("better for this work: A")


def test_a_model_that_never_finishes_the_conversation_under_load_is_not_as_good(stored):
    """Its later turns were not asked: they left the comparison, and the two were not
    distinguishable.
    """
    whole = stored(QWEN, "whole")
    dying = stored(QWEN, "dying", at=2e9, dies_from=2)
    lines = call("runs", "compare", whole, dying, check=4).out.splitlines()
    assert "B never finished the conversation at C=2, 3, 5" in lines
    assert any(line.startswith("right answers: 54 of 57 (A), 27 of 57 (B)") for line in lines)
    assert (
        lines[-1] == "better for this work: A, as B never finished the conversation at C=2, 3, 5"
    )


def test_of_one_model_unfinished_conversations_are_a_regression(stored):
    runs = stored(QWEN, "m"), stored(QWEN, "m", at=2e9, dies_from=5)
    assert (
        "conversations that are never finished at C=5"
        in call("runs", "compare", *runs, check=4).out
    )


def test_the_json_of_compared_mixed_runs_has_both_the_answers_and_who_is_better(
    models,
):
    document = call("runs", "compare", *models, "--json", check=0).json
    mixed = document["mixed"]
    assert [run["model"] for run in mixed["runs"]] == ["gpt-oss-20b", "qwen3-coder-30b"]
    assert (mixed["better"], document["verdict"]) == ("B", "no regression")
    assert mixed["answers"]["items"] == 7
    assert {comparison["metric"] for comparison in document["comparisons"]} >= {
        "TTFT of turn 1",
        "conversation time",
    }
    assert len(document["comparisons"]) == 4 * 4


def test_more_right_answers_go_before_speed(stored):
    a = stored(GPT_OSS, "one")
    b = stored(QWEN, "two", collapsed=True)
    last_lines = call("runs", "compare", a, b, check=4).out.splitlines()[-4:]
    assert "right answers: 51 of 57 (A), 12 of 57 (B): B has fewer" in last_lines
    assert last_lines[-1] == (
        "better for this work: A, as it has more right answers, though B is faster at C=1, 2, 3, 5"
    )


def test_the_same_model_twice_is_judged_figure_by_figure_and_for_its_answers(stored):
    slower = {level: (figures[0] * 2, *figures[1:]) for level, figures in QWEN.items()}
    a = stored(QWEN, "same")
    b = stored(slower, "same", at=2e9, collapsed=True)
    last = call("runs", "compare", a, b, check=4).out.splitlines()[-1]
    assert last.startswith(
        "REGRESSION: B is worse than A by more than 5 %: right answers (14 % instead of 86 "
        "%), TTFT"
    )


def test_one_repeat_is_told_by_its_medians_and_not_judged(stored):
    a, b = (
        stored(model, name, repeats=(1.0,)) for model, name in ((GPT_OSS, "one"), (QWEN, "two"))
    )
    done = call("runs", "compare", a, b, check=0)
    assert (
        "conversation: B took 24 to 50 % less time at C=1, 2, 3, 5, in too few repeats to judge"
        in done.out
    )
    assert "no verdict: no figure of the conversation can be compared" in done.out
    assert (
        "one repeat of a level shows no spread; measure both with --repeats 3 or more" in done.err
    )


def test_without_names_the_last_two_mixed_runs_are_compared(models):
    document = call("runs", "compare", "--json", check=0).json
    assert (document["a"], document["b"]) == models


def test_two_models_are_drawn_in_one_report(models, tmp_path):
    call("runs", "report", *models, "-o", "both.html", check=0)
    page = (tmp_path / "both.html").read_text()
    assert "Better for this work: B" in page
    assert 'aria-label="Side tasks at full load"' in page


def test_mixed_runs_without_a_shared_level_are_not_compared(stored):
    other_run = stored(GPT_OSS, "three", levels=(2,))
    alone = stored(QWEN, "four", levels=(1,))
    assert "have no level in common" in refused("runs", "compare", other_run, alone)


def test_an_export_for_programs_has_every_answer_with_what_was_asked_and_its_verdict(models):
    document = json.loads(call("runs", "export", models[0], "--format", "json", check=0).out)
    assert (document["run"], document["model"], len(document["levels"])) == (
        models[0],
        "gpt-oss-20b",
        4,
    )
    assert len(document["answers"]) == 57
    last = document["answers"][-1]
    assert (last["level"], last["kind"], last["outcome"], last["answer"]) == (
        5,
        "S4",
        "passed",
        "answer of S4",
    )
    assert {answer["outcome"] for answer in document["answers"] if answer["kind"] == "S3"} == {
        "wrong"
    }


def test_an_export_for_a_readme_or_a_spreadsheet_has_the_figures_of_every_task(models):
    text = call("runs", "export", models[1], check=0).out
    assert "### conversation\n\n| C | level | TTFT of turn 1 |" in text
    assert "| S2 tests | – | – | 3/3 (3.1 s) | 3/3 (3.8 s) |" in text
    assert "memory left free | 0.17 | 20.0 GiB of 24.0 GiB in use |" in text
    rows = [
        *csv.DictReader(
            call("runs", "export", models[1], "--format", "csv", check=0).out.splitlines()
        )
    ]
    (task,) = [row for row in rows if (row["concurrency"], row["item"]) == ("5", "S3")]
    assert (task["title"], task["passed"], task["judged"]) == ("bug", "0", "3")
    assert float(task["seconds"]) == pytest.approx(5.2)


def test_requests_are_exported_with_their_answers_where_these_are_asked_for(models):
    words = ("runs", "export", models[0], "--requests", "--format", "csv")
    without, with_texts = (
        [*csv.DictReader(call(*words, *options, check=0).out.splitlines())]
        for options in ((), ("--answers",))
    )
    assert "answer" not in without[0]
    assert {row["answer"] for row in with_texts} >= {"answer of turn 1", "answer of S4"}
    assert "--answers belongs to --requests" in refused("runs", "export", models[0], "--answers")


def test_simulated_runs_and_the_same_model_twice_are_told_apart(stored):
    a = stored(QWEN, "same", at=1e9)
    b = stored(QWEN, "same", at=2e9, simulated=True)
    done = call("runs", "compare", a, b, check=0)
    assert "A  same @ 2001-09-09" in done.out
    assert "B  same @ 2033-05-18" in done.out
    assert f"SIMULATED: no model ran in {b}" in done.err
    assert "not distinguishable: neither is shown to be faster" in done.out

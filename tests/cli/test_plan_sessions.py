"""`skep plan` for sessions of agents, the load that it assumes."""

import re
import shlex
from functools import cache

import pytest
from in_process import call, refused

pytestmark = pytest.mark.usefixtures("paths")
DENSE = ("qwen3.6-27b", "--gpu", "2x rtx-3090")


@cache
def planned(*words):
    """Nothing but its words decides: no store holds a calibration, no card is here."""
    return call("plan", *words, "--json", check=0).json


@cache
def printed(*words):
    return call("plan", *words, check=0).out


def best(*words):
    return planned(*words)["plans"][0]


def test_without_further_words_agents_run_coding_sessions():
    goal = planned(*DENSE)["goal"]
    assert (goal["shape"], goal["window_tokens"]) == ("coding", 65_536)


def test_the_answer_is_turns_a_minute_and_the_time_of_a_session():
    lines = printed(*DENSE).splitlines()
    assert re.match(r"\d+\.\d turns/min together; a session of 43 turns takes \d+ min", lines[1])
    assert re.match(
        r"first token of a turn after \d.* \(p95 \d.*\); a session may have ", lines[2]
    )


def test_it_says_how_many_sessions_stay_warm_and_what_kv_in_ram_would_add():
    line = printed(*DENSE).splitlines()[3]
    assert re.search(r"^\d+ sessions of [\d,]+ tokens stay warm; ", line)
    assert re.search(r"with KV in RAM, too, \d+ stay warm$", line)


def test_sessions_are_told_at_one_two_four_and_twice_as_many():
    levels = best(*DENSE)["sessions"]["levels"]
    assert [level["sessions"] for level in levels] == [1, 2, 4, 8]


def test_the_table_by_sessions_has_hits_beside_the_possible_ones():
    head = next(line for line in printed(*DENSE).splitlines() if line.startswith("SESSIONS"))
    assert head.split()[:2] == ["SESSIONS", "TURNS/MIN"]
    assert "HITS" in head
    assert "POSSIBLE" in head


@pytest.mark.parametrize(
    "words",
    [
        DENSE,
        ("qwen3.6-35b-a3b", "--gpu", "rtx-5090", "-c", "8"),
        ("gpt-oss-20b", "--gpu", "rtx-4090"),
    ],
    ids=lambda words: words[0],
)
def test_a_session_gets_64k_where_the_cards_have_room(words):
    assert best(*words)["context"] >= 65_536


def test_agents_get_no_more_context_than_all_can_fill_at_once():
    """The engine's longest context let four sessions grow until they pushed each other out."""
    plan = best(*DENSE)
    assert plan["context"] <= max(65_536, plan["context_each"])


def test_where_64k_does_not_fit_for_all_less_is_planned_and_said():
    words = ("qwen3.6-27b", "--gpu", "rtx-3090")
    assert 32_768 <= best(*words)["context"] < 62_000
    assert "! a session gets " in printed(*words)


def test_a_context_below_32k_is_said_loudly():
    out = printed("qwen3-8b", "--gpu", "rtx-3060", "--load", "coding", "-c", "8")
    plan = best("qwen3-8b", "--gpu", "rtx-3060", "--load", "coding", "-c", "8")
    assert ("A SESSION GETS " in out) == (plan["context"] < 32_768)


def test_layouts_are_ranked_by_turns_a_minute():
    plans = planned("qwen3.6-27b", "--gpu", "rtx-pro-6000")["plans"]
    first = plans[0]["turns_per_min"]
    assert first > 0
    assert all(first >= 0.95 * plan["turns_per_min"] for plan in plans)


def test_a_model_with_a_short_context_is_planned_for_smaller_loads():
    assert planned("smollm2-135m", "--gpu", "rtx-3090")["goal"]["shape"] is None


def test_a_short_context_that_is_pinned_means_smaller_sessions():
    assert planned(*DENSE, "--context", "16384")["goal"]["shape"] == "small"


def test_lengths_that_are_given_are_those_of_a_task():
    goal = planned(*DENSE, "--prompt-tokens", "1024")["goal"]
    assert (goal["shape"], goal["input_tokens"]) == (None, 1024)


def test_a_task_is_planned_as_before():
    goal = planned(*DENSE, "--load", "task")["goal"]
    assert (goal["shape"], goal["input_tokens"], goal["output_tokens"]) == (None, 16_384, 1024)
    assert "16384 tokens in, 1024 out, none cached" in printed(*DENSE, "--load", "task")


def test_sessions_with_lengths_of_a_task_are_refused_with_what_to_do():
    message = refused("plan", *DENSE, "--load", "coding", "--prompt-tokens", "1024")
    assert "--load coding has its own" in message
    assert "--load task" in message


def test_an_unknown_load_is_refused_with_those_there_are():
    assert "coding, small, task" in refused("plan", *DENSE, "--load", "huge")


def test_a_window_in_which_no_coding_session_works_is_refused():
    message = refused("plan", *DENSE, "--load", "coding", "--context", "16384")
    assert "need a context of 32,768 tokens, this is 16,384" in message


def test_rigs_are_compared_by_turns_and_by_how_many_sessions_they_hold_warm():
    rigs = ("--gpu", "2x rtx-3090@700", "--gpu", "rtx-5090@2500")
    out = printed("qwen3.6-27b", *rigs)
    head = next(line for line in out.splitlines() if line.startswith("RIG"))
    assert "TURNS/MIN PER 1000" in head
    assert "WARM" in head
    assert "turns/min per 1000" in out


def test_the_start_line_has_the_context_that_was_planned():
    plan = best(*DENSE)
    words = shlex.split(plan["up"])
    assert words[words.index("--context") + 1] == str(plan["context"])


def test_a_preset_is_planned_with_the_tasks_that_its_author_measured():
    assert planned("qwen3.6-27b-2x3090-replicas")["goal"]["shape"] is None


def test_a_faster_layout_that_comes_later_is_named_with_its_turns():
    out = printed("qwen3-coder-30b-a3b", "--gpu", "rtx-5090")
    assert re.search(r"first because: .* with \d+\.\d turns/min", out)


def test_the_page_has_the_sessions_too(tmp_path):
    page = tmp_path / "plan.html"
    call("plan", *DENSE, "--html", str(page), check=0)
    text = page.read_text()
    assert "Expected by number of sessions" in text
    assert "stay warm" in text

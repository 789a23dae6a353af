"""The plan page: a model and cards in the address, the plan as `skep plan` has it."""

import html
import json
import re

import pytest
from starlette.datastructures import QueryParams
from stored_runs import put_run

from skep.deploy.plan_request import PlanFlags, answer_plan
from skep.errors import UserError
from skep.report.plan import answer_lines
from skep.report.plan_page import level_of
from skep.web.context import Site
from skep.web.plan import (
    MOST_WAITING,
    PlanPages,
    PlanQuery,
    drawn,
    plan_picture,
    read_query,
    term_colours,
)

TWO = "model=qwen3-8b&card=rtx-3090&count=2"


def fill(store):
    put_run(store, 0)


def asked_of(query):
    return read_query(QueryParams(query))


def test_the_page_paints_first_and_the_plan_is_that_of_the_command_line(ask, paths):
    first = ask("/plan?model=qwen3-8b&card=rtx-4090")[1]
    assert 'data-fetch="/plan/fragment?model=qwen3-8b&amp;card=rtx-4090"' in first
    assert "whole=1" in first  # without a script
    fragment = ask("/plan/fragment?model=qwen3-8b&card=rtx-4090")[1]
    assert "<html" not in fragment
    assert "Layouts, best first" in fragment
    document = ask.json(f"/api/plan.json?{TWO}&agents=8")
    answer = answer_plan(PlanFlags("qwen3-8b", ("2x rtx-3090",), agents=8), paths.store)
    at = next(point for point in document["plans"][0]["predicted"] if point["concurrency"] == 8)
    assert at["effective_tok_s"] == pytest.approx(
        answer.ranked[0][1].rated.outcome.effective_tok_s, rel=1e-3
    )


def test_a_setup_is_called_the_same_on_the_page_as_on_the_command_line(ask, paths):
    """The page said `int4, mtp:3` where the terminal says `INT4, mtp n=3`."""
    page = ask("/plan?model=qwen3.6-27b&card=rtx-3090&count=2&whole=1")[1]
    answer = answer_plan(PlanFlags("qwen3.6-27b", ("2x rtx-3090",)), paths.store)
    choice = answer.choices[0]
    first_line = answer_lines(answer, choice, choice.plans[0])[0]
    name = first_line.partition(" for 4 agents: ")[2]
    assert name.endswith("mtp n=3 (vllm)")
    assert f"{name} gives 4 sessions" in page
    assert "mtp:3" not in re.sub(r"<code>.*?</code>", "", page)
    reason = html.escape(choice.rejected[0].reason)
    assert f"<li>2 x TP=1, BF16, FP8 (vllm): {reason}</li>" in page


def test_the_page_shows_what_sessions_get_and_how_many_stay_warm(ask, paths):
    page = ask("/plan?model=qwen3.6-27b&card=rtx-3090&count=2&whole=1")[1]
    answer = answer_plan(PlanFlags("qwen3.6-27b", ("2x rtx-3090",)), paths.store)
    outlook = answer.choices[0].plans[0].outlook
    assert f"{outlook.warm_sessions} sessions of {outlook.typical_tokens:,} tokens" in page
    assert "turns/min with KV in RAM" in page


def test_a_page_of_tasks_has_no_sessions(ask):
    page = ask("/plan?model=qwen3.6-27b&card=rtx-3090&count=2&load=task&whole=1")[1]
    assert "gives 4 agents" in page
    assert "stay warm" not in page


def test_a_load_that_nobody_knows_is_refused_with_those_there_are():
    with pytest.raises(UserError, match="no load is called `big`") as error:
        asked_of("model=qwen3-8b&load=big")
    assert error.value.hint == "there are coding, small, task"


def test_lengths_in_an_address_of_before_mean_a_task():
    assert asked_of("model=qwen3-8b&input_tokens=2048").load == "task"


def test_the_page_says_why_every_faster_layout_comes_after_the_first(ask):
    """It said so in the terminal alone, and of the fastest alone."""
    query = "model=gemma-4-31b&card=rtx-5090&load=task"
    plans = ask.json(f"/api/plan.json?{query}")["plans"]
    tok_s = [round(level_of(plan, 4)["effective_tok_s"]) for plan in plans]
    faster = [speed for speed in tok_s if speed > tok_s[0]]
    assert len(faster) > 1
    (reason,) = re.findall(r"first because: (.*?)</p>", ask(f"/plan?{query}&whole=1")[1])
    assert all(f"with {speed} tok/s" in reason for speed in faster)


def test_a_model_that_does_not_fit_says_what_would(ask):
    query = "model=qwen3-235b-a22b&card=rtx-3090"
    page = ask(f"/plan?{query}&whole=1")[1]
    assert "does not fit" in page
    assert "what would fit" in page
    response, body = ask(f"/api/plan.json?{query}")
    assert response.status == 400
    assert "does not fit" in json.loads(body)["error"]["message"]


def test_without_a_model_there_are_the_form_and_examples(ask):
    page = ask("/plan")[1]
    assert "choose a model" in page
    assert "For example" in page
    assert ask("/api/plan.json")[0].status == 400


def test_an_address_holds_all_that_was_asked():
    plan_query = PlanQuery("qwen3-8b", "rtx-3090", 2, agents=8, load="task", input_tokens=2048)
    cards = "model=qwen3-8b&card=rtx-3090&count=2"
    assert plan_query.query() == f"{cards}&agents=8&load=task&input_tokens=2048"
    assert asked_of(plan_query.query()) == plan_query
    assert plan_query.command() == (
        'skep plan qwen3-8b --gpu "2x rtx-3090" --concurrency 8 --load task --prompt-tokens 2048'
    )
    assert asked_of("model=qwen3-8b").flags().gpu == ()  # this machine


def test_a_rig_may_be_described_in_words():
    plan_query = PlanQuery("qwen3-8b", rig="2x rtx-3090: nvlink(0-1)")
    assert asked_of(plan_query.query()) == plan_query
    assert plan_query.flags().gpu == ("2x rtx-3090: nvlink(0-1)",)


def test_no_path_reaches_the_reader_of_models(tmp_path, monkeypatch):
    """Only the catalogue's own names go on: a folder of that name beside the server is not looked
    at.
    """
    (tmp_path / "qwen3-8b").mkdir()
    (tmp_path / "qwen3-8b" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert asked_of("model=qwen3-8b").flags().model == "qwen3-8b"
    for name in ("./qwen3-8b", "qwen3-8b/config.json", "~/x", "/x.gguf"):
        with pytest.raises(UserError):
            asked_of(f"model={name}")


def test_a_picture_holds_every_curve_apart_and_a_term_has_one_colour_in_every_bar():
    level = {"low": 8.0, "high": 600.0, "ttft_ms": 5.0}
    plan = {
        "predicted": [
            {"concurrency": c, "effective_tok_s": 100.0 * c, **level} for c in (1, 2, 4)
        ],
        "memory": [],
    }
    picture = plan_picture([plan, plan], "effective_tok_s", "speed")
    assert len(re.findall(r"<title>C = \d+: \d+ tok/s", picture)) == 6
    assert "style=" not in picture
    words = re.findall(r"<text [^>]*translate\([\d.]+,([\d.]+)\)[^>]*>([AB])</text>", picture)
    places = {word: float(y) for y, word in words}
    assert set(places) == {"A", "B"}
    assert abs(places["A"] - places["B"]) > 12
    plans = [
        {"memory": [{"term": "weights"}, {"term": "x"}]},
        {"memory": [{"term": "y"}, {"term": "x"}]},
    ]
    assert list(term_colours(plans)) == ["weights", "KV pool", "x", "y"]
    assert len(set(term_colours(plans).values())) == 4


def test_a_context_of_nothing_is_no_figure(paths):
    plan_query = PlanQuery("qwen3-8b", "rtx-3090", load="task")
    plan_document = PlanPages(Site(paths))._plan(plan_query)
    assert "for each agent" in drawn(plan_query, plan_document)
    plan_document["plans"][0]["largest_context"] = 0
    unknown = '<dd class="value">–</dd><dd class="note">not all slots can be full at once</dd>'
    assert unknown in drawn(plan_query, plan_document)


def test_where_many_plans_are_made_the_rest_comes_again(paths):
    """Each of them would hold a thread, and with all of them held no page at all would be
    answered.
    """
    pages = PlanPages(Site(paths))
    for _ in range(MOST_WAITING):
        assert pages._queue.acquire(blocking=False)
    with pytest.raises(UserError, match="many plans"):
        pages._plan(PlanQuery("qwen3-8b", "rtx-5090"))
    pages._queue.release()
    assert pages._plan(PlanQuery("qwen3-8b", "rtx-5090"))["model"] == "qwen3-8b"

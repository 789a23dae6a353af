"""Goals as people type them."""

import pytest

from skep.errors import UserError
from skep.tuner.goal import parse_goal


def test_a_goal_names_a_metric_and_a_number_of_agents():
    aim = parse_goal("effective_tok_s@4", slo="ttft=1s", min_context=16384)
    assert (aim.metric, aim.concurrency, aim.target) == ("effective_tok_s", 4, None)
    assert (aim.slo, aim.min_context) == ("ttft_p95=1000ms", 16384)
    assert str(aim) == "effective_tok_s@4"


@pytest.mark.parametrize("text", ["task_tok_s@1>=90", " task-tok-s @ 1 >= 90 ", "TASK_TOK_S@1>=90.0"])
def test_a_target_ends_the_search(text):
    aim = parse_goal(text)
    assert (aim.metric, aim.concurrency, aim.target) == ("task_tok_s", 1, 90.0)
    assert parse_goal(str(aim)) == aim


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("efective_tok_s@4", "no metric is called `efective_tok_s`", "did you mean `effective_tok_s`?"),
        ("speed@4", "no metric is called `speed`", "known: effective_tok_s, task_tok_s, tok_per_joule"),
        ("effective_tok_s", "does not say at how many agents", "--goal"),
        ("effective_tok_s@", "does not say at how many agents", "--goal"),
        ("effective_tok_s@four", "`four` is no number of agents", "--goal"),
        ("effective_tok_s@-1", "`-1` is no number of agents", "--goal"),
        ("effective_tok_s@0", "0 agents cannot be measured", "1 to 4096"),
        ("effective_tok_s@4097", "4097 agents cannot be measured", "1 to 4096"),
        ("effective_tok_s@99999999999999999999", "cannot be measured", "1 to 4096"),
        ("effective_tok_s@4>=0", "a target of 0 cannot be aimed at", "above 0"),
        ("effective_tok_s@4>=-3", "a target of -3 cannot be aimed at", "above 0"),
        ("effective_tok_s@4>=nan", "a target of nan cannot be aimed at", "above 0"),
        ("effective_tok_s@4>=fast", "`fast` is no target", "--goal"),
        ("", "is not understood", "--goal"),
        ("@4", "is not understood", "--goal"),
        ("effective_tok_s@4<=9", "is not understood", "--goal"),
    ],
)
def test_a_goal_that_cannot_be_meant_is_refused_in_one_line(text, said, hint):
    with pytest.raises(UserError) as caught:
        parse_goal(text)
    assert said in caught.value.message
    assert "\n" not in caught.value.message
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"output_tokens": 2}, "--output-tokens 2 is too short an answer"),
        ({"input_tokens": 0}, "--prompt-tokens 0 is no prompt"),
        ({"min_context": 639}, "--min-context 639 is less than a task's 640 tokens"),
        ({"slo": "ttft"}, "--slo `ttft`"),
        ({"slo": "ttft=0s"}, "cannot be met"),
    ],
)
def test_a_load_that_cannot_be_measured_is_refused(flags, said):
    with pytest.raises(UserError, match=said):
        parse_goal("effective_tok_s@4", **flags)

"""One task with tools, answer by answer: what is sent back and how it ends."""

import json

import pytest

from skep.quality.tool_dialogue import MOST_TURNS, ToolAnswer, ToolDialogue, is_call_as_text
from skep.store.verdicts import VerdictOutcome
from skep.wire.tool_calls import ReceivedCall
from skep.workload.tool_tasks import FAMILIES, tool_task

FAMILY_NUMBERS = {family: number for number, family in enumerate(FAMILIES)}


def answer(*calls, text=""):
    """`calls`: names with arguments, as JSON unless they are text."""
    received = []
    for number, (name, arguments) in enumerate(calls):
        text_of_arguments = arguments if isinstance(arguments, str) else json.dumps(arguments)
        received.append(ReceivedCall(f"call0000{number}", name, text_of_arguments))
    return ToolAnswer(text=text, calls=tuple(received))


def dialogue_of(family):
    task = tool_task(7, "2k", FAMILY_NUMBERS[family])
    return task, ToolDialogue(task, [])


def step_answers(task):
    answers = []
    for step in task.steps:
        arguments = dict(step.arguments)
        answers.append(answer((step.name, arguments)))
    return answers


@pytest.mark.parametrize("family", FAMILIES)
def test_a_task_whose_steps_are_called_passes(family):
    task, dialogue = dialogue_of(family)
    assert all(dialogue.take(step) for step in step_answers(task))
    assert not dialogue.take(answer(text=task.answer or "Done."))
    assert dialogue.finding.outcome is VerdictOutcome.PASSED


def test_results_are_sent_back_with_the_ids_of_their_calls():
    task, dialogue = dialogue_of("count")
    first, second = task.steps
    calls = [
        (first.name, first.arguments),
        (second.name, second.arguments),
    ]
    dialogue.take(answer(*calls))
    _, sent, *results = dialogue.messages
    sent_ids = [call["id"] for call in sent["tool_calls"]]
    result_ids = [result["tool_call_id"] for result in results]
    assert sent_ids == result_ids == ["call00000", "call00001"]
    expected = task.world.call(first.name, first.arguments)
    assert results[0]["content"] == expected


def test_a_model_that_repairs_its_call_passes_all_the_same():
    task, dialogue = dialogue_of("setting")
    dialogue.take(answer(("search_text", {"text": "x"})))
    assert dialogue.messages[-1]["content"].startswith("error: search_text: ")
    for step in step_answers(task):
        dialogue.take(step)
    dialogue.take(answer(text="Done."))
    assert dialogue.finding.outcome is VerdictOutcome.PASSED


def test_an_answer_with_another_number_is_a_wrong_effect():
    task, dialogue = dialogue_of("count")
    for step in step_answers(task):
        dialogue.take(step)
    dialogue.take(answer(text=f"{task.answer}1"))
    assert dialogue.finding.outcome is VerdictOutcome.WRONG_EFFECT


def test_a_call_that_was_only_thought_of_is_no_call_as_text():
    _, dialogue = dialogue_of("stock")
    dialogue.take(answer(text="<think>I could use find_parts(shelf=...)</think>No."))
    assert dialogue.finding.outcome is VerdictOutcome.NO_CALL


def test_text_after_half_of_the_calls_is_no_call_and_says_which_was_missing():
    task, dialogue = dialogue_of("setting")
    dialogue.take(step_answers(task)[0])
    dialogue.take(answer(text="I have found it."))
    assert dialogue.finding.outcome is VerdictOutcome.NO_CALL
    assert "`replace_text` was never called; 1 calls" in dialogue.finding.detail


def test_looking_in_the_wrong_place_is_a_wrong_tool():
    _, dialogue = dialogue_of("stock")
    dialogue.take(answer(("list_files", {"folder": "."})))
    dialogue.take(answer(text="There are no parts."))
    assert dialogue.finding.outcome is VerdictOutcome.WRONG_TOOL


def test_a_model_that_never_stops_ends_at_the_bound_of_turns():
    _, dialogue = dialogue_of("stock")
    turns = 0
    while dialogue.take(answer(("find_parts", {"shelf": "A1"}))):
        turns += 1
    assert turns == MOST_TURNS - 1
    assert f"after {MOST_TURNS} turns" in dialogue.finding.detail


def test_an_answer_cut_at_the_token_limit_is_truncated():
    _, dialogue = dialogue_of("stock")
    assert not dialogue.take(ToolAnswer(text="I think", is_cut=True))
    assert dialogue.finding.outcome is VerdictOutcome.TRUNCATED


@pytest.mark.parametrize("arguments", ["[1]", "{", "null", "[" * 60_000, "9" * 5_000])
def test_arguments_that_are_no_object_end_the_task(arguments):
    _, dialogue = dialogue_of("stock")
    assert not dialogue.take(answer(("find_parts", arguments)))
    assert dialogue.finding.outcome is VerdictOutcome.MALFORMED_CALL


def test_deeply_nested_values_are_bad_arguments():
    _, dialogue = dialogue_of("stock")
    nested = '{"shelf": ' + "[" * 900 + "]" * 900 + "}"
    dialogue.take(answer(("find_parts", nested)))
    dialogue.take(answer(text="Sorry."))
    assert dialogue.finding.outcome is VerdictOutcome.BAD_ARGUMENTS


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "x"}</tool_call>',
        '```json\n{"name": "find_parts", "arguments": {"shelf": "A1"}}\n```',
        "[TOOL_CALLS]find_parts",
        '[find_parts(shelf="A1")]',
    ],
)
def test_calls_in_the_forms_of_known_models_are_seen_in_text(text):
    assert is_call_as_text(text)


def test_a_sentence_about_a_tool_is_no_call():
    assert not is_call_as_text("I would use find_parts to look at the shelf, then move_parts.")

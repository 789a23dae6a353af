"""A fake engine that answers wrongly on command: always, by chance, or while it is full."""

import json

import pytest

from skep.testing import fake_answers
from skep.testing.fake_answers import (
    LoadShare,
    Quality,
    QualityPolicy,
    StoredAnswer,
    parse_request,
    read_answers,
)

ITEMS = tuple(
    StoredAnswer(f"What is {n} plus {n}?", f"{2 * n} bees", (f"{2 * n + 1} bees",))
    for n in range(2000)
)


def ask_of(prompt: str, *, chat: bool = True):
    if chat:
        body = {"messages": [{"role": "user", "content": prompt}]}
    else:
        body = {"prompt": prompt}
    return parse_request(json.dumps(body).encode(), chat=chat)


def said(mind: QualityPolicy, prompt: str, inside: int = 1) -> str:
    return mind.decide(ask_of(prompt), inside=inside).text


def rights(mind: QualityPolicy, inside: int = 1) -> list[bool]:
    return [said(mind, item.prompt, inside) == item.text for item in ITEMS]


def test_a_flip_makes_right_wrong_and_wrong_right():
    """Twice the share of verdicts differ between two passes, and neither pass is better."""
    mind = QualityPolicy(ITEMS, Quality(wrong_share=0.5, flip_share=0.05, seed=3))
    nature = rights(QualityPolicy(ITEMS, Quality(wrong_share=0.5)))
    lost = gained = 0
    for was, now in zip(nature, rights(mind), strict=True):
        lost += was and not now
        gained += now and not was
    assert (lost + gained) / len(ITEMS) == pytest.approx(0.05, abs=0.02)
    assert min(lost, gained) > 0.3 * (lost + gained)


def test_answers_get_worse_above_the_load_and_not_at_it():
    """Four inside are not more than four."""
    assert all(rights(QualityPolicy(ITEMS, Quality()), inside=99))
    mind = QualityPolicy(ITEMS, Quality(worse=LoadShare(4, 0.15)))
    assert all(rights(mind, inside=4))
    assert 1 - sum(rights(mind, inside=5)) / len(ITEMS) == pytest.approx(0.15, abs=0.03)


def test_the_answer_to_exactly_this_message_goes_before_one_to_a_part_of_it():
    """`What is 1 plus 1?` is a part of a longer message with an answer of its own."""
    mind = QualityPolicy(
        [StoredAnswer("1 plus 1", "two"), StoredAnswer("What is 11 plus 11?", "22")], Quality()
    )
    assert said(mind, "What is 11 plus 11?") == "22"
    assert said(mind, "Say: 1 plus 1") == "two"
    assert mind.decide(ask_of("nothing"), inside=1).text is None


def test_the_last_user_message_counts_and_all_words_are_prompt_tokens():
    """The system message and earlier turns are not asked again;
    a message may be a list of parts.
    """
    parts = [{"type": "text", "text": "two"}, {"type": "text", "text": "c d"}]
    messages = [("system", "Be short."), ("user", "one"), ("assistant", "1"), ("user", parts)]
    body = {"messages": [{"role": role, "content": text} for role, text in messages]}
    parsed = parse_request(json.dumps(body).encode(), chat=True)
    assert parsed.last.split() == ["two", "c", "d"]
    assert parsed.prompt_tokens == 7
    assert ask_of("plain", chat=False).last == "plain"
    assert parse_request(b'{"messages": 5}', chat=True).last == ""


def test_answers_file_may_hold_wrong_ones(tmp_path):
    """One, several or none; a line separator inside a text is no end of a line."""
    rows = [{"wrong": "no"}, {"wrong": ["no", "never"]}, {}]
    path = tmp_path / "answers.jsonl"
    lines = [
        json.dumps({"prompt": "a\u2028b", "answer": "yes", **row}, ensure_ascii=False)
        for row in rows
    ]
    path.write_text("\n".join(lines), "utf-8")
    assert [answer.wrong for answer in read_answers(path)] == [
        ("no",),
        ("no", "never"),
        (fake_answers.DO_NOT_KNOW,),
    ]

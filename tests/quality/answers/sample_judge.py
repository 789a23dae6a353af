"""Judges answers in a real sandbox, many at once."""

import asyncio
from pathlib import Path

from answers.sample_tasks import ITEMS

from skep.quality.judging import AnsweredItem, Judge
from skep.sandbox.runner import open_sandbox
from skep.store.records import Request

FOLDER = Path(__file__).parent


def request(answer, **other):
    return Request(
        **{
            "level": 4,
            "repeat": 1,
            "index": 7,
            "kind": "x",
            "started_s": 0.0,
            "ended_s": 1.0,
            "answer": answer,
        }
        | {"finish_reason": "stop", "output_tokens": 512}
        | other
    )


def judged(answered, limits=None):
    async def judging():
        sandbox = open_sandbox()
        try:
            return await Judge(sandbox, limits=limits).judge(answered)
        finally:
            await sandbox.close()

    return asyncio.run(judging())


def texts_judged(item, texts, **options):
    return judged([AnsweredItem(request(text), item) for text in texts], **options)


def sample(name):
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


def samples_judged(names):
    """Name → verdict."""
    answered = [
        AnsweredItem(request(sample(name)), ITEMS[name.partition("/")[0]]) for name in names
    ]
    return dict(zip(names, judged(answered), strict=True))


def expected(name):
    """`fastapi1/no-answer-prose` → no answer."""
    stem = name.partition("/")[2]
    if stem.startswith("no-answer"):
        return "no answer"
    return stem.partition("-")[0]

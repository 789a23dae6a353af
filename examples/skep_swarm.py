"""skep's own runner: paced by the endpoint, journalled, retried, checked: `python
examples/skep_swarm.py`.

A run that is killed goes on with `resume="last"`; `skep swarm list` shows it, `skep swarm show`
what it cost."""

import argparse
import asyncio
import os
import sys
from typing import Literal

from pydantic import BaseModel

from skep import swarm
from skep.errors import SkepError

REVIEWS = (
    "The battery died after two days.", "My daughter will not put it down.", ("It came late, and "
"in the wrong colour."),
    ("Better than the one it "
"replaced."), "It does what it says.", "The hinge broke at once.", "Worth every penny.",
    "I have no opinion of it.", "Too loud for a bedroom.", "It just works.",
)  # fmt: skip


class Verdict(BaseModel):
    mood: Literal["good", "bad", "mixed"]
    stars: Literal[1, 2, 3, 4, 5]


async def main(url: str | None) -> None:
    answers = await swarm.map("Say it shorter: {}", REVIEWS, url=url, max_tokens=40, deadline_s=5)
    verdicts = await swarm.map(
        "How content is who wrote this? {}",
        REVIEWS,
        schema=Verdict,
        url=url,
        max_tokens=60,
        deadline_s=5,
    )
    for review, answer, verdict in zip(REVIEWS, answers, verdicts, strict=True):
        print(f"{verdict.stars} {verdict.mood:6} {review:42} {' '.join(answer.split())[:60]}")
    print(f"{len(answers)} answers, {len(verdicts)} of them in a form")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument(
        "--url", default=os.environ.get("SKEP_URL"), help="default: the gateway of this machine"
    )
    try:
        asyncio.run(main(options.parse_args().url))
    except SkepError as error:
        sys.exit(f"error: {error}")

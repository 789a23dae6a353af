"""What the gateway holds in memory of the answers to batches."""

import asyncio

from skep.gateway.batch.scheduler import MOST_ANSWER_BYTES, BatchAnswer
from skep.gateway.main import MOST_HELD_BYTES, BatchGatewayPort
from skep.gateway.proxy import Policy

PIECE = b"x" * 1_048_576


class Replicas:
    """Stands for the proxy: keeps the requests, so that a test can answer them."""

    policy = Policy()

    def __init__(self):
        self.requests = []
        self.given_up = []

    def submit_internal(self, request, _owner):
        request.on_gone = lambda: self.given_up.append(request)
        request.start(200, [], None)
        self.requests.append(request)


async def begin(count):
    replicas, answers = Replicas(), {}
    door = BatchGatewayPort(replicas)
    for number in range(count):
        errand = door.errand("ann")
        errand.go("/v1/embeddings", b"{}", lambda answer, number=number: answers.update({number: answer}))
    return replicas, answers


def test_an_answer_longer_than_the_bound_is_given_up_and_the_others_go_on():
    async def work():
        replicas, answers = await begin(2)
        long, short = replicas.requests
        for _ in range(MOST_ANSWER_BYTES // len(PIECE) + 5):
            long.write(PIECE)
        short.write(b"{}")
        short.finish()
        await asyncio.sleep(0)
        return replicas, answers

    replicas, answers = asyncio.run(work())
    assert replicas.given_up == replicas.requests[:1]
    assert answers == {0: BatchAnswer(None, fault="answer_too_large"), 1: BatchAnswer(200, b"{}")}


def test_when_all_answers_together_are_too_large_the_largest_is_given_up():
    """It comes again later, when there is room: none of them is too large by itself."""

    async def work():
        count = MOST_HELD_BYTES // MOST_ANSWER_BYTES + 1
        replicas, answers = await begin(count)
        for place, request in enumerate(replicas.requests):
            for _ in range(MOST_ANSWER_BYTES // len(PIECE) - (1 if place == 3 else 6)):
                request.write(PIECE)
        await asyncio.sleep(0)
        return replicas, answers

    replicas, answers = asyncio.run(work())
    assert replicas.given_up == [replicas.requests[3]]
    assert answers == {3: BatchAnswer(None)}

"""What is sent next, what an answer means, and what stands in the output. No loop, no clock."""

import json
from collections import Counter

import pytest

from skep.gateway.batch.scheduler import (
    ALONE_FROM,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    MOST_COSTLY,
    MOST_LOST,
    MOST_OF_KIND,
    BatchAnswer,
    BatchSchedule,
    choose,
    result_of,
)
from skep.gateway.batch.store import BatchRequest, UnfinishedBatch

LOST = json.dumps({"error": {"code": "replica_lost"}, "source": "gateway"}).encode()


def requests(count):
    return [BatchRequest(index, f"c{index}", 0, 0) for index in range(count)]


def test_requests_go_out_in_their_order_and_one_lost_replica_holds_up_no_other():
    work = BatchSchedule(requests(4))
    work.next(0.0)
    assert not work.answered(0, BatchAnswer(None), 0.0)
    assert [work.next(0.0).index for _ in range(3)] == [1, 2, 3]
    assert work.answered(1, BatchAnswer(200), 0.0)
    assert [request.index for request in work.remaining()] == [0, 2, 3]  # in the file's order
    now = FIRST_PAUSE_S
    assert (work.next(now - 0.01), work.next(now).index, work.next(now)) == (None, 0, None)
    assert all(work.answered(index, BatchAnswer(400), now) for index in (3, 0, 2))
    assert work.done


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_who_is_told_to_come_back_comes_back_until_the_end_of_time(status):
    work = BatchSchedule(requests(1))
    now = 0.0
    work.next(now)
    for _ in range(50):
        assert not work.answered(0, BatchAnswer(status, b"{}", retry_after_s=3.0), now)
        assert work.next(now + 2.9) is None
        now += LONGEST_PAUSE_S
        assert work.next(now).index == 0


def test_a_full_endpoint_gets_nothing_new_for_a_while_and_what_it_refused_goes_last():
    work = BatchSchedule(requests(3))
    work.next(0.0)
    assert not work.answered(0, BatchAnswer(429, retry_after_s=2.0), 0.0)
    assert work.next(1.9) is None
    assert [work.next(2.1).index for _ in range(3)] == [1, 2, 0]


@pytest.mark.parametrize("answer", [BatchAnswer(None), BatchAnswer(502, LOST)])
def test_a_request_that_costs_a_replica_each_time_is_set_aside(answer):
    work = BatchSchedule(requests(1))
    now = 0.0
    for _ in range(MOST_COSTLY - 1):
        now += 100
        work.next(now)
        assert not work.answered(0, answer, now)
    work.next(now + 100)
    assert work.answered(0, answer, now + 100)
    assert work.done


def read(result):
    assert result.line.endswith(b"\n")
    assert result.line.count(b"\n") == 1
    return json.loads(result.line)


def test_an_answer_is_one_line_whatever_form_it_came_in():
    request = BatchRequest(7, 'é "x"', 0, 0)
    body = (
        b'{\n "usage": {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": '
        b'{"cached_tokens": 1}}}'
    )
    result = result_of(request, BatchAnswer(200, body, "r-1"), "batch_req_1", 5.0)
    assert read(result) == {
        "id": "batch_req_1",
        "custom_id": 'é "x"',
        "response": {"status_code": 200, "request_id": "r-1", "body": json.loads(body)},
        "error": None,
    }
    assert (result.ok, result.index, result.ended_at) == (True, 7, 5.0)
    assert (result.prompt_tokens, result.cached_tokens, result.output_tokens) == (3, 1, 4)
    assert result.reasoning_tokens is None


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        *(
            (body, (None, None, None))
            for body in (b"", b"<html>\xff", b"[1]", b"null", b'{"usage": 3}')
        ),
        (b'{"usage": {"prompt_tokens": -1}}', (None, None, None)),
        (
            (
                b'{"usage": {"input_tokens": 5, "output_tokens": 6, "output_tokens_details": '
                b'{"reasoning_tokens": 2}}}'
            ),
            (5, 6, 2),
        ),
    ],
)
def test_an_odd_answer_is_kept_with_its_tokens_where_it_tells_them(body, tokens):
    result = result_of(BatchRequest(0, "a", 0, 0), BatchAnswer(500, body), "n", 0.0)
    assert read(result)["response"]["status_code"] == 500
    assert (result.ok, result.prompt_tokens, result.output_tokens, result.reasoning_tokens) == (
        False,
        *tokens,
    )


def test_what_has_no_answer_says_why_and_a_too_large_one_is_not_asked_for_again():
    work = BatchSchedule(requests(1))
    request = work.next(0.0)
    too_large = BatchAnswer(None, fault="answer_too_large")
    assert work.answered(0, too_large, 0.0)
    assert work.done
    results = {
        "answer_too_large": result_of(request, too_large, "n", 0.0),
        "stream_cut": result_of(request, BatchAnswer(None), "n", 0.0),
        "batch_expired": result_of(request, BatchAnswer(None, fault="batch_expired"), "n", 0.0),
    }
    for code, result in results.items():
        answer = read(result)
        assert (answer["custom_id"], answer["response"], answer["error"]["code"]) == (
            "c0",
            None,
            code,
        )


def schedules_with_one_turn():
    """Two batches, the first with two requests that may kill the gateway, the second with one."""
    turn = set()
    losses = {0: ALONE_FROM, 1: ALONE_FROM, 2: ALONE_FROM - 1}
    return BatchSchedule(requests(3), losses, turn), BatchSchedule(
        requests(2), {0: MOST_LOST - 1}, turn
    )


def test_what_may_kill_the_gateway_goes_last_and_alone():
    first, second = schedules_with_one_turn()
    assert [first.next(0.0).index, first.next(0.0).index, first.next(0.0)] == [2, 0, None]
    assert [second.next(0.0).index, second.next(0.0)] == [1, None]


def test_what_may_kill_the_gateway_takes_its_turn_across_batches():
    first, second = schedules_with_one_turn()
    for schedule in (first, first, second):
        schedule.next(0.0)
    assert not first.answered(0, BatchAnswer(503), 0.0)  # it comes again, and takes its turn again
    assert second.next(0.0).index == 0
    assert first.next(100.0) is None
    second.leave()
    assert [first.next(100.0).index, first.next(100.0)] == [1, None]
    assert first.answered(1, BatchAnswer(200), 100.0)
    assert first.next(100.0).index == 0
    assert [request.index for request in first.remaining()] == [0, 2]


def test_what_is_taken_back_is_the_next_to_go_out():
    work = BatchSchedule(requests(3), {2: ALONE_FROM})
    for index in (0, 1, 2):
        assert work.next(0.0).index == index
    work.take_back(2)
    work.take_back(1)
    assert [work.next(0.0).index, work.next(0.0).index, work.next(0.0)] == [1, 2, None]


def schedule_of(name, count, ended, lost, turn):
    """Return what a gateway makes of a batch that others have worked on."""
    pending = [request for request in requests(count) if (name, request.index) not in ended]
    losses = {index: times for (batch_name, index), times in lost.items() if batch_name == name}
    return BatchSchedule(pending, losses, turn)


class GatewayLife:
    """A gateway from its start until it is killed, by the test or by the poison."""

    def __init__(self, schedules, slots, answer_s, poison, dies_after_s):
        self.schedules = schedules
        self.slots = slots
        self.answer_s = answer_s
        self.poison = poison
        self.dies_after_s = dies_after_s
        self.under_way = {}  # since when, by batch and index
        self.ended = set()

    def live(self, until):
        now = 0
        while now != until and not all(schedule.done for schedule in self.schedules.values()):
            self.send(now)
            since = self.under_way.get(self.poison)
            if since is not None and now - since >= self.dies_after_s:
                break
            self.answer(now)
            now += 1

    def send(self, now):
        for name, schedule in self.schedules.items():
            while len(self.under_way) < self.slots:
                request = schedule.next(now)
                if request is None:
                    break
                self.under_way[name, request.index] = now

    def answer(self, now):
        for (name, index), since in list(self.under_way.items()):
            if (name, index) != self.poison and now - since >= self.answer_s:
                assert self.schedules[name].answered(index, BatchAnswer(200), now)
                self.ended.add((name, index))
                del self.under_way[name, index]


def lives_of(batches, *, slots, answer_s, kills, poison=None, dies_after_s=12):
    """Play gateways one after another, each killed after some seconds or by the poison; return the
    requests of each batch that were set aside.
    """
    lost = Counter()
    ended = set()
    aside = {name: set() for name in batches}
    while len(ended) + sum(map(len, aside.values())) < sum(batches.values()):
        turn = set()
        schedules = {}
        for name, count in batches.items():
            schedules[name] = schedule_of(name, count, ended, lost, turn)
            aside[name] = {request.index for request in schedules[name].set_aside}
        life = GatewayLife(schedules, slots, answer_s, poison, dies_after_s)
        life.live(until=next(kills, None))
        ended |= life.ended
        lost.update(life.under_way.keys())
    return aside


def test_a_killed_gateway_loses_nothing_and_only_what_kills_it_is_set_aside():
    """Killed seven times, and each time while the same long answers are under way, which are then
    done one by one.

    Answers of the others take longer than a gateway lives while it has the request that kills it.
    """
    assert lives_of({"a": 800}, slots=16, answer_s=60, kills=iter([100] * 7)) == {"a": set()}
    assert lives_of(
        {"a": 800}, slots=16, answer_s=60, kills=iter([59, 59, 59, 100, 59, 100, 59])
    ) == {"a": set()}
    batches = {"a": 40, "b": 40}
    poison = ("a", 3)
    assert lives_of(batches, slots=16, answer_s=60, kills=iter(()), poison=poison) == {
        "a": {3},
        "b": set(),
    }


def batch(number, owner="ann", model="m", **fields):
    return UnfinishedBatch(f"{owner} {model} {number}", owner, model, **fields)


def test_batches_of_one_owner_for_one_model_begin_in_their_order_while_there_is_room():
    """Those of others and for other models do so beside them; one that ends leaves its room."""
    waiting = [batch(number) for number in range(MOST_OF_KIND + 2)]
    assert choose(waiting, ()) == waiting[:MOST_OF_KIND]
    under_way = [entry.id for entry in waiting[1 : MOST_OF_KIND + 1]]
    others = [batch("c", ending=True), batch(1, "bob"), batch(1, model="other"), batch(2, "bob")]
    assert choose([*waiting, *others], under_way) == others
    assert choose(waiting, under_way[1:]) == waiting[:1]
    assert choose([batch(1, ending=True), *waiting[2:]], under_way) == waiting[-1:]

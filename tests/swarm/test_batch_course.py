"""What is sent next, what an answer means, and what stands in the output. No loop, no clock."""

import json

import pytest

from skep.store.batches import BatchRequest
from skep.swarm.batch.course import MOST_COSTLY, Answer, Course, never_sent, result_of

LOST = json.dumps({"error": {"code": "replica_lost"}, "source": "gateway"}).encode()


def course(count):
    return Course([BatchRequest(index, f"c{index}", 0, 0) for index in range(count)])


def test_requests_go_out_in_their_order_and_are_done_when_answered():
    work = course(2)
    first, second = work.next(0.0), work.next(0.0)
    assert (first.index, second.index, work.next(0.0), work.out) == (0, 1, None, 2)
    assert work.due_in_s(0.0) is None
    assert work.answered(1, Answer(200), 1.0)
    assert work.answered(0, Answer(400), 1.0)
    assert work.done


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_who_is_told_to_come_back_comes_back_until_the_end_of_time(status):
    work, now = course(1), 0.0
    work.next(now)
    for _ in range(50):
        assert not work.answered(0, Answer(status, b"{}", retry_after_s=3.0), now)
        assert work.next(now) is None
        pause_s = work.due_in_s(now)
        assert 3.0 <= pause_s <= 60.0
        now += pause_s
        assert work.next(now).index == 0


def test_an_endpoint_that_is_full_gets_nothing_new_for_a_while():
    work = course(3)
    work.next(0.0)
    assert not work.answered(0, Answer(429, retry_after_s=2.0), 0.0)
    assert work.next(1.9) is None
    assert work.due_in_s(1.5) == pytest.approx(0.5)
    assert work.next(2.1).index == 0


def test_one_lost_replica_does_not_hold_up_the_others():
    work = course(2)
    work.next(0.0)
    assert not work.answered(0, Answer(None), 0.0)
    assert work.next(0.0).index == 1


@pytest.mark.parametrize("answer", [Answer(None), Answer(502, LOST)])
def test_a_request_that_costs_a_replica_each_time_is_set_aside(answer):
    work, now = course(1), 0.0
    for _ in range(MOST_COSTLY - 1):
        now += 100
        work.next(now)
        assert not work.answered(0, answer, now)
    work.next(now + 100)
    assert work.answered(0, answer, now + 100)
    assert work.done


def test_what_has_no_answer_is_left_in_the_files_order():
    work = course(4)
    for _ in range(3):
        work.next(0.0)
    work.answered(2, Answer(None), 0.0)
    work.answered(0, Answer(200), 0.0)
    assert [request.index for request in work.left()] == [1, 2, 3]


def read(result):
    assert result.line.endswith(b"\n")
    assert result.line.count(b"\n") == 1
    return json.loads(result.line)


def test_an_answer_is_one_line_whatever_form_it_came_in():
    request = BatchRequest(7, 'é "x"', 0, 0)
    body = b'{\n "usage": {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 1}}}'
    result = result_of(request, Answer(200, body, "r-1"), "batch_req_1", 5.0)
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
    "body", [b"", b"<html>\xff", b"[1]", b"null", b'{"usage": 3}', b'{"usage": {"prompt_tokens": -1}}']
)
def test_an_odd_answer_is_kept_and_its_tokens_are_unknown(body):
    result = result_of(BatchRequest(0, "a", 0, 0), Answer(500, body), "n", 0.0)
    assert read(result)["response"]["status_code"] == 500
    assert (result.ok, result.prompt_tokens, result.output_tokens) == (False, None, None)


def test_tokens_of_the_other_dialect_are_counted_too():
    body = b'{"usage": {"input_tokens": 5, "output_tokens": 6, "output_tokens_details": {"reasoning_tokens": 2}}}'
    result = result_of(BatchRequest(0, "a", 0, 0), Answer(200, body), "n", 0.0)
    assert (result.prompt_tokens, result.output_tokens, result.reasoning_tokens) == (5, 6, 2)


def test_what_was_never_sent_says_why():
    told = read(never_sent(BatchRequest(0, "a", 0, 0), "batch_expired", "n", 0.0))
    assert (told["custom_id"], told["response"], told["error"]["code"]) == ("a", None, "batch_expired")
    broken = read(result_of(BatchRequest(0, "a", 0, 0), Answer(None), "n", 0.0))
    assert (broken["response"], broken["error"]["code"]) == (None, "stream_cut")

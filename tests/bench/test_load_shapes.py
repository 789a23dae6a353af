"""Traffic written down: the same requests whoever carries it out, each by one worker, conversations whole."""

import asyncio
from collections import Counter
from itertools import islice
from random import Random
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from sample_rows import tasks

from skep.bench.endpoint import Endpoint
from skep.bench.load_process import LEAD_S, Begin, LoadJob, beginnings
from skep.bench.load_shapes import (
    TimeWindow,
    conversations,
    endless_tasks,
    repetition_of,
    split_between_workers,
    wait_for_begin,
)
from skep.bench.open_loop import classes_part, open_part
from skep.bench.tasks import Repetition, TaskMaker, TrafficStream, Workload
from skep.errors import UserError
from skep.wire.heads import parse_url
from skep.workload.prompts import TokenCalibration
from skep.workload.traffic import TrafficClass

CLASSES = (
    TrafficClass("agents", "steady", agents=5, prompt_tokens=40, max_tokens=2, think_s=0.01, priority="batch"),
    TrafficClass("alone", "steady", agents=1, prompt_tokens=40, prefix_tokens=120, max_tokens=2),
    TrafficClass("chat", "conversation", agents=3, prompt_tokens=40, max_tokens=2, turns=3, think_s=0.01),
    TrafficClass("cron", "open", rate=400.0, prompt_tokens=40, max_tokens=2, arrivals="gamma:2.0"),
)


@pytest.fixture(scope="module")
def mix():
    return classes_part(CLASSES, TokenCalibration(), 0, seed=1, for_s=2.0)


def by_name(streams):
    return {stream.tasks[0].traffic: stream for stream in streams}


def asked(stream, number):
    return {task.index: task.messages for task in islice(endless_tasks(stream), number)}


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_agents_and_shares_of_every_class_are_kept_over_the_workers(mix, workers):
    """One agent is one worker's; no worker stands idle while another has two classes to itself."""
    shares = split_between_workers(mix.streams, workers)
    places = Counter()
    for share in shares:
        for stream in share:
            places[stream.tasks[0].traffic] += stream.width if stream.offsets is None else 0
    assert (places["agents"], places["alone"], places["chat"]) == (5, 1, 3)
    assert len(shares) == workers
    assert {stream.tasks[0].priority for stream in by_name(mix.streams).values()} == {"batch", "normal"}


@pytest.mark.parametrize("name", ["agents", "alone", "cron"])
def test_a_request_with_an_index_is_the_same_one_whoever_sends_it(mix, name):
    """Also when the prompts that were made beforehand have come to their end and begin anew."""
    alone = asked(by_name(mix.streams)[name], 900)
    parts = [by_name(share)[name] for share in split_between_workers(mix.streams, 2) if name in by_name(share)]
    sent = [asked(part, 300) for part in parts]
    assert all(len(some) == 300 for some in sent)
    assert all(alone[index] == said for some in sent for index, said in some.items() if index in alone)
    assert sum(map(len, sent)) == len({index for some in sent for index in some})
    assert max(max(some) for some in sent) % 1_000_000 >= 256


def test_a_conversation_is_one_workers_and_the_same_one(mix):
    """Indexes of turns do not meet when conversations begin anew."""

    def talks(stream, number):
        return {first.session: (first.index, script) for first, script in islice(conversations(stream), number)}

    alone = talks(by_name(mix.streams)["chat"], 600)
    sent = [talks(by_name(share)["chat"], 200) for share in split_between_workers(mix.streams, 3)]
    assert len(alone) == len({session for some in sent for session in some}) == 600
    assert all(index == 2_000_000 + 3 * session for session, (index, _) in alone.items())
    assert all(alone[session] == said for some in sent for session, said in some.items() if session in alone)


def test_fewer_arrivals_than_workers_leave_some_out():
    """A class without an arrival in its time is nobody's."""
    found = split_between_workers([TrafficStream(tasks(2), 9, [0.1, 0.2])], 3)
    assert [len(share[0].offsets) for share in found] == [1, 1]
    assert split_between_workers([TrafficStream(tasks(4), 1, [], again=Repetition(4, 0))], 2) == []
    assert split_between_workers([TrafficStream([], 3, [])], 2) == []


@pytest.mark.parametrize(
    ("span", "end_s"),
    [({}, None), ({"until_s": 9.0}, 9.0), ({"for_s": 4.0}, 7.0), ({"until_s": 5.0, "for_s": 4.0}, 5.0)],
)
def test_nothing_is_begun_after_the_first_of_two_ends(span, end_s):
    assert TimeWindow(**span).end_s(3.0) == end_s


def test_workers_pause_as_long_as_one_would_but_not_in_step(mix):
    seeds = [by_name(share)["agents"].seed for share in split_between_workers(mix.streams, 3)]
    assert seeds[0] == by_name(mix.streams)["agents"].seed
    assert len({Random(seed).random() for seed in seeds}) == 3


def test_where_all_share_a_system_message_the_question_changes():
    system = {"role": "system", "content": "all the same"}
    alike = [replace(task, messages=[system, *task.messages]) for task in tasks(2)]
    assert repetition_of(alike) == Repetition(2, -1)
    later = [*islice(endless_tasks(TrafficStream(alike, 1, again=repetition_of(alike))), 3)][-1]
    assert (later.index, later.messages) == (2, [system, {"role": "user", "content": "1. 0 hello"}])
    assert repetition_of(tasks(2)) == Repetition(2, 0)


def test_a_rate_is_split_without_making_its_prompts_anew():
    part = open_part(TaskMaker(Workload(seed=1)), 1, 0, rate=1000.0, arrivals="constant", for_s=1.0)
    shares = split_between_workers(part.streams, 4)
    assert sum(len(share[0].tasks) for share in shares) == 256
    assert sorted(at for share in shares for at in share[0].offsets) == part.streams[0].offsets


def test_more_arrivals_than_can_be_kept_are_refused_with_the_class():
    flood = TrafficClass("flood", "open", rate=5000.0)
    with pytest.raises(UserError, match=r"class `flood`: 5000 requests a second for 60 s make 300,000") as caught:
        classes_part([flood], TokenCalibration(), 0, seed=1, for_s=60.0)
    assert "--for" in caught.value.hint


# When it begins and ends


def job(stream, **span):
    return LoadJob(
        Endpoint(parse_url("http://127.0.0.1:9")[0], "/v1", "m"), [stream], 100.0, 1.0, True, TimeWindow(**span)
    )


def test_workers_of_a_schedule_count_from_one_moment_that_is_yet_to_come():
    timed, closed, mixed = (
        job(TrafficStream(tasks(1), 1, [0.0])),
        job(TrafficStream(tasks(1), 1)),
        job(TrafficStream(tasks(1), 1), for_s=5.0),
    )
    begins = [begin.at_s for begin in beginnings([timed, closed, mixed], 107.0)]
    assert begins == [7.0 + LEAD_S, None, 7.0 + LEAD_S]
    assert beginnings([timed], 107.0) == [Begin()]


@pytest.mark.parametrize(("window", "delay_s"), [(TimeWindow(begin_s=3.0), 7.0), (TimeWindow(), 0.0)])
def test_a_beginning_that_is_past_is_not_waited_for_and_the_delay_is_known(window, delay_s):
    clock = SimpleNamespace(now=lambda: 10.0)
    assert asyncio.run(asyncio.wait_for(wait_for_begin(clock, window), 1.0)) == delay_s

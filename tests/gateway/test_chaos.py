"""The short form of benchmarks/chaos.py: a few seconds of havoc, and every request accounted for."""

import secrets
import sys
from pathlib import Path

import pytest
import uvloop

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from havoc.asks import FAKE, Asker, words_of
from havoc.audit import of_rows
from havoc.clients import Note
from havoc.line import Head
from havoc.maker import Pace
from havoc.run import Effort, chaos
from havoc.verdicts import End, judge

SHORT = Effort(
    engine="fake",
    engines=2,
    clients=10,
    warm_s=0.5,
    havoc_s=1.8,
    pace=Pace(every_s=(0.05, 0.4), longest_stop_s=1.5, most_seats=3, scale=0.15),
    silence_s=40.0,
    idle_close_s=0.5,
)


def test_every_request_has_one_end_that_all_accounts_agree_on(tmp_path, capsys):
    """Engines die, stall and lie, the table and the settings change, clients leave: nobody is left without a word."""
    seed = secrets.randbelow(1_000_000)
    report = uvloop.run(chaos(SHORT, seed, tmp_path, print))
    assert report.requests > 50
    assert sum(report.havoc.values()) > 5
    failed = [f"{check.name}: {check.detail}" for check in report.checks if not check.ok]
    assert not failed, f"seed {seed}, {report.havoc}: {failed}"


def streamed_ask():
    import random

    asker = Asker(FAKE, random.Random(3))
    return next(ask for ask in iter(asker.next, None) if ask.streamed and len(ask.expected) > 40)


def event(text, finish="null"):
    return f'data: {{"choices":[{{"text":"{text}","finish_reason":{finish}}}]}}\n\n'.encode()


CUT = b'\n\ndata: {"error":{"message":"x","type":"server_error","code":"stream_cut"},"source":"gateway"}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("rest", "whole", "end"),
    [
        (event("", '"stop"') + DONE, True, End.ANSWERED),
        (CUT, True, End.CUT),
        (b'data: {"choi' + CUT, True, End.CUT),
        (b"", True, End.WRONG),
        (event("", '"stop"'), True, End.WRONG),
        (event("", '"stop"') + DONE, False, End.WRONG),
        (event(" m999.0") + event("", '"stop"') + DONE, True, End.WRONG),
        (event("", '"stop"') + DONE + event("more"), True, End.WRONG),
        (CUT + DONE, True, End.WRONG),
    ],
)
def test_the_judge_of_streams_is_not_easily_pleased(rest, whole, end):
    """A benchmark that passes everything proves nothing."""
    ask = streamed_ask()
    head = Head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked", "x-skep-request-id": "a"})
    assert judge(ask, head, event(ask.expected) + rest, whole=whole).end is end


def test_words_of_another_are_seen():
    ask = streamed_ask()
    head = Head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked", "x-skep-request-id": "a"})
    theirs = event(words_of("m511", 3)) + event("", '"stop"') + DONE
    assert judge(ask, head, theirs, whole=True).end is End.WRONG


def test_a_request_without_a_row_is_missed():
    note = Note(streamed_ask(), 0.0)
    assert [check.ok for check in of_rows([note], [])] == [False, True, True]

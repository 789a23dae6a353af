"""The short form of benchmarks/chaos.py: a few seconds of havoc,
and every request accounted for.
"""

import secrets
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import uvloop

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from havoc.asks import FAKE, Asker, words_of
from havoc.audit import of_rows
from havoc.clients import Note
from havoc.freezes import FreezeLog, FreezeVisit, freeze_checks
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
    pace=Pace(every_s=(0.05, 0.4), longest_stop_s=1.5, most_seats=3, scale=0.15, fewest_events=6),
    silence_s=40.0,
    idle_close_s=0.5,
)


@pytest.mark.parametrize("workers", [1, 4])
def test_every_request_has_one_end_that_all_accounts_agree_on(tmp_path, capsys, workers):
    """Engines die, stall and lie, the table and the settings change, clients leave: nobody is left
    without a word.
    """
    seed = secrets.randbelow(1_000_000)
    report = uvloop.run(chaos(replace(SHORT, workers=workers), seed, tmp_path, print))
    assert report.requests > 50
    assert sum(report.havoc.values()) > 5
    failed = [f"{check.name}: {check.detail}" for check in report.checks if not check.ok]
    assert not failed, f"seed {seed}, {report.havoc}: {failed}"


def streamed_ask():
    asker = Asker(FAKE, Random(3))
    return next(ask for ask in iter(asker.next, None) if ask.streamed and len(ask.expected) > 40)


def event(text, finish="null"):
    return f'data: {{"choices":[{{"text":"{text}","finish_reason":{finish}}}]}}\n\n'.encode()


CUT = (
    b"\n\ndata: "
    b'{"error":{"message":"x","type":"server_error","code":"stream_cut"},"source":"gateway"}\n\n'
)
DONE = b"data: [DONE]\n\n"


def judged(rest, *, code=None, whole=True):
    """How an answer ends for the judge that begins with what was expected, or with `said`."""
    ask = streamed_ask()
    head = Head(
        200,
        {"content-type": "text/event-stream", "transfer-encoding": "chunked", "x-skep": "id=a"},
    )
    return judge(ask, head, event(code or ask.expected) + rest, whole=whole).end


def test_the_judge_of_streams_is_strict_and_misses_a_request_without_a_row():
    """A benchmark that passes everything proves nothing."""
    stop = event("", '"stop"') + DONE
    assert judged(stop) is End.ANSWERED
    assert {judged(CUT), judged(b'data: {"choi' + CUT)} == {End.CUT}
    for rest in (
        b"",
        event("", '"stop"'),
        event(" m999.0") + stop,
        stop + event("more"),
        CUT + DONE,
    ):
        assert judged(rest) is End.WRONG, rest
    assert judged(stop, whole=False) is End.WRONG
    assert judged(stop, code=words_of("m511", 3)) is End.WRONG, "words of another"
    assert [check.ok for check in of_rows([Note(streamed_ask(), 0.0)], [])] == [False, True, True]


def stop_verdicts(*, newcomer_ended_s=5.0, ending="answered", replaced_s=10.5):
    """What the checks say of a stop after which one came at 4 s and one was under way, cut at 10
    s.
    """
    log = FreezeLog(gone_s=10.2, replaced_s=replaced_s)
    log.under_way.append(FreezeVisit(0.0, 10.2, "cut"))
    log.newcomers.append(FreezeVisit(4.0, newcomer_ended_s, ending))
    return [check.ok for check in freeze_checks(log, ["answered"], served_within_s=3.0)]


def test_a_stop_passes_only_where_others_serve_and_the_stopped_one_is_replaced():
    assert stop_verdicts() == [True, True, True, True]
    assert stop_verdicts(newcomer_ended_s=9.0) == [False, True, True, True]
    assert stop_verdicts(ending="refused with 503") == [False, True, True, True]
    assert stop_verdicts(replaced_s=None) == [True, True, False, True]

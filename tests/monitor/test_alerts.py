"""From stored probes to alerts that are stored, told and ended, with a real store."""

import asyncio
import json
from datetime import UTC, datetime

import pytest

from skep.config.settings import Monitor
from skep.errors import StoreError
from skep.monitor import records
from skep.monitor.alerts import AlertWatcher, check_document, free_bytes_of
from skep.monitor.store import SeriesStore
from skep.units import GIB

HOUR = 3600.0
START = datetime(2026, 5, 4, 12, 0, tzinfo=UTC).timestamp()  # a Monday


class Listener:
    """A notifier that remembers. `error` is what it says of each."""

    via = "webhook"

    def __init__(self, error=None):
        self.heard = []
        self.error = error

    async def send(self, notice):
        self.heard.append((notice.event, notice.text))
        return self.error

    def words(self):
        return [event for event, _ in self.heard]


class Rig:
    """A target probed hourly, the watch over it, and one who listens."""

    def __init__(self, series, settings=None, listener=None, free=100 * GIB, usual=0, **target):
        """`usual`: so many probes of the usual figures came before."""
        self.series = series
        self.wanted = settings or Monitor()
        self.listener = listener or Listener()
        self.log = []
        self.free = free
        self.notifiers = [self.listener]
        self.now = START
        series.put_target(records.ProbeTarget("box", "http://box:8000", added_at=START, **target))
        for _ in range(usual):
            self.store()

    def begin(self, env=None):
        how = {
            "free_bytes": lambda: self.free,
            "zone": UTC,
            "host": "attic",
            "notifiers": self.notifiers,
        }
        self.watch = AlertWatcher(
            self.series, self.wanted, env=env or {}, log=self.log.append, **how
        )

    def store(self, *, tok_s=50.0, ttft_ms=100.0, failed=None, running=None):
        if failed:
            outcome = records.ProbeOutcome.FAILED
        else:
            outcome = records.ProbeOutcome.DONE
        slot = int(self.now // HOUR)
        probe = records.Probe(
            "box", 0, slot, self.now, self.now, outcome, self.now, error=failed, running=running
        )
        samples = [
            records.ProbeSample(
                self.now,
                records.Heat.HOT,
                records.ProbeShape.SHORT,
                1,
                tok_s=tok_s,
                ttft_ms=ttft_ms,
            )
        ]
        self.series.append_probe(probe, [] if failed else samples)
        self.now += HOUR
        return probe

    async def probe(self, times=1, **figures):
        for _ in range(times):
            await self.watch.after_probe(self.store(**figures), self.now)
            assert await self.watch.delivered(5)

    async def tick(self, seconds=60.0):
        self.now += seconds
        await self.watch.tick(self.now)
        assert await self.watch.delivered(5)


def alive(rig, story, env=None):
    """A process with a watch in it, from its beginning to its end; a story may be the probes that
    are made.
    """

    async def run():
        rig.begin(env)
        async with rig.watch:
            if callable(story):
                await story()
                return
            for figures in story:
                await rig.probe(**figures)

    asyncio.run(run())


DOWN = [{"failed": "refused"}] * 2


def test_down_and_up_again_are_told_once_each_and_stored(series):
    rig = Rig(series)

    async def story():
        await rig.probe()
        await rig.probe(failed="refused")
        assert rig.listener.heard == []
        await rig.probe(2, failed="refused")
        await rig.probe(2)

    alive(rig, story)
    assert rig.listener.heard == [
        ("opened", "box is down: 2 probes in a row failed: refused"),
        ("closed", "box: no longer down after 2 h 00 min: it answers again"),
    ]
    (alert,) = series.alerts()
    assert (alert.rule, alert.closed_at - alert.opened_at) == (records.AlertRule.DOWN, 2 * HOUR)
    notices = [(event, via, error) for event, _, via, error in series.notices(alert.id)]
    assert notices == [
        (event, via, None) for event in ("opened", "closed") for via in ("webhook",)
    ]
    assert rig.log[0].startswith("alert.opened rule=down target=box")


def test_a_restart_in_the_middle_of_it_repeats_nothing(series):
    rig = Rig(series)

    async def later():
        await rig.tick()
        await rig.probe(failed="refused")
        await rig.probe()

    alive(rig, DOWN)
    alive(rig, later)
    assert rig.listener.words() == ["opened", "closed"]


def found_down(series):
    """By a process that ended then; the number of its alert."""
    rig = Rig(series)
    rig.store(failed="x")
    rig.store(failed="x")
    return rig, series.open_alert(
        records.Alert(records.AlertRule.DOWN, "box", rig.now, "box is down")
    )


def test_what_was_found_but_not_told_is_told_by_the_next_process(series):
    """But not what is over by then."""
    rig, _ = found_down(series)
    alert = series.open_alert(records.Alert(records.AlertRule.TTFT, "box", rig.now, "late"))
    series.close_alert(alert, rig.now + 60, "over")
    old = series.open_alert(
        records.Alert(records.AlertRule.SLOWER, "box", START - 9 * 86400, "slow")
    )
    series.close_alert(old, START - 8 * 86400, "over")
    for _ in range(2):
        alive(rig, rig.tick)
        assert rig.listener.words() == ["opened"]


def test_a_target_may_have_limits_of_its_own(series):
    rig = Rig(
        series, Monitor(slower_pct=None, ttft_ms=1000.0), usual=30, slower_pct=30.0, ttft_ms=200.0
    )

    async def story():
        for figures, rule in (
            ((40.0, 300.0), records.AlertRule.TTFT),
            ((30.0, 100.0), records.AlertRule.SLOWER),
        ):
            await rig.probe(3, tok_s=figures[0], ttft_ms=figures[1])
            assert [alert.rule for alert in series.alerts(open_only=True)] == [rule]

    alive(rig, story)


def test_a_change_point_for_the_worse_is_told_with_its_cause(series):
    rig = Rig(series)
    for _ in range(3):
        rig.store()
    key = records.SeriesKey(
        "box", records.Heat.HOT, records.ProbeShape.SHORT, 1, records.SeriesMetric.TOK_S
    )
    at = rig.now - 2 * HOUR

    async def story():
        cause = "the driver changed from 570 to 580"
        series.set_changes(
            key,
            [records.SeriesChange(key, at, (at - HOUR, at), 50, 48, 0.95, 0.97, 40, 20, cause)],
        )
        await rig.probe(2)
        series.set_changes(key, [])
        await rig.probe()

    alive(rig, story)
    assert rig.listener.words() == ["opened", "closed"]
    size = "box, hot, short answer: tok/s -4.0 % (-5.0 to -3.0 %)"
    assert (
        rig.listener.heard[0][1]
        == f"{size} since Monday 13:00, when the driver changed from 570 to 580"
    )


class FullStore(SeriesStore):
    """Takes no alert of the disk while it is full."""

    full = True

    def _append(self, table, record=None, *rest, **columns):
        if self.full and getattr(record, "rule", None) is records.AlertRule.DISK:
            raise StoreError("the store cannot grow: no space left on its disk")
        return super()._append(table, record, *rest, **columns)


def test_a_disk_that_fills_is_told_even_where_nothing_can_be_stored(series):
    """The alert that matters most comes when the store can take no rows; it is stored when there
    is room again.
    """
    full = FullStore(series.store)
    rig = Rig(full, free=GIB)

    async def story():
        await rig.tick()
        await rig.tick()
        assert (rig.listener.words(), series.alerts()) == (["opened"], [])
        full.full = False
        await rig.tick()
        (alert,) = series.alerts(open_only=True)
        assert alert.rule is records.AlertRule.DISK
        rig.free = 50 * GIB
        await rig.tick()

    alive(rig, story)
    assert rig.listener.words() == ["opened", "closed"]
    assert series.alerts(open_only=True) == []
    assert any("watch.failed in=tick" in line for line in rig.log)


def test_quiet_hours_hold_the_sender_but_not_the_log(series):
    rig = Rig(series, Monitor(quiet_hours="13:00-18:30"))

    async def story():
        await rig.probe(2, failed="x")  # found at 14:00
        await rig.probe()  # over at 15:00
        await rig.probe(2, failed="x")  # found at 17:00, still so in the evening
        await rig.tick()
        assert rig.listener.heard == []
        assert [line.split()[0] for line in rig.log] == [
            "alert.opened",
            "alert.closed",
            "alert.opened",
        ]
        await rig.tick(2 * HOUR)

    alive(rig, story)
    assert rig.listener.words() == ["closed", "opened"]


def test_what_came_and_went_in_quiet_hours_is_told_once_at_their_end(series):
    rig = Rig(series, Monitor(quiet_hours="13:00-20:30"))

    async def story():
        for _ in range(2):  # found at 14:00 and at 17:00, over at 15:00 and at 18:00
            await rig.probe(2, failed="refused")
            await rig.probe()
        assert rig.listener.heard == []
        await rig.tick(3 * HOUR)
        await rig.tick()

    alive(rig, story)
    alive(rig, [{}] * 2)
    ((event, text),) = rig.listener.heard
    assert event == "closed"
    expected = (
        "in quiet hours, and over: 2 times, the last one from Monday 17:00 to Monday 18:00: "
    )
    assert text == f"{expected}box is down: 2 probes in a row failed: refused; it answers again"


def test_each_night_is_told_by_itself(series):
    rig = Rig(series, Monitor(quiet_hours="13:00-20:30"))

    async def nights():
        for _ in range(2):
            await rig.probe(2, failed="refused")
            await rig.probe(22)

    alive(rig, nights)
    assert [text.partition(": box")[0] for _, text in rig.listener.heard] == [
        "in quiet hours, and over: from Monday 14:00 to Monday 15:00",
        "in quiet hours, and over: from Tuesday 14:00 to Tuesday 15:00",
    ]


@pytest.mark.parametrize(
    ("hours", "by_night"), [("13:00-18:30", ["opened"]), ("14:30-18:30", ["opened", "closed"])]
)
def test_quiet_hours_survive_a_restart(series, hours, by_night):
    """What is still wrong is told when they end, and so is the end of what was told before them;
    each once.
    """
    rig = Rig(series, Monitor(quiet_hours=hours))

    async def evening():
        before = rig.listener.words()
        await rig.probe(failed=None if before else "x")
        await rig.tick()
        assert rig.listener.words() == before
        await rig.tick(5 * HOUR)
        await rig.tick()

    alive(rig, DOWN)
    alive(rig, evening)
    assert rig.listener.words() == by_night


def test_down_may_be_told_at_any_hour(series):
    rig = Rig(series, Monitor(quiet_hours="00:00-23:59", quiet_except=("down",)))
    alive(rig, DOWN)
    assert rig.listener.words() == ["opened"]


def test_a_delivery_that_failed_is_written_down_and_tried_a_few_times(series):
    rig = Rig(series, listener=Listener("https://x:443 answered 500"))

    async def story():
        await rig.probe(2, failed="x")
        assert rig.listener.words() == ["opened"]
        for _ in range(9):
            await rig.tick()
        assert rig.listener.words() == ["opened"] * 5

    alive(rig, story)
    (alert,) = series.alerts()
    assert series.notices(alert.id)[-1][2:] == ("webhook", "https://x:443 answered 500")
    assert 'alert.untold via=webhook event=opened error="https://x:443 answered 500"' in rig.log


def test_no_secret_reaches_message_log_or_store(series):
    rig = Rig(series, Monitor(webhook_env="HOOK", webhook_token_env="TOKEN"), key_env="KEY")
    env = {"KEY": "sk-very-secret", "HOOK": "https://hooks.example/hidden", "TOKEN": "tk_hidden"}
    alive(
        rig,
        [{"failed": "401: sk-very-secret is no key; https://hooks.example/hidden tk_hidden"}] * 2,
        env,
    )
    (alert,) = series.alerts()
    output = json.dumps([rig.log, rig.listener.heard, alert.message])
    assert "401: *** is no key; *** ***" in alert.message
    assert "hidden" not in output
    assert "very-secret" not in output


def test_alerts_of_a_removed_target_end(series):
    rig = Rig(series)

    async def story():
        await rig.probe(2, failed="x")
        series.remove_target("box", rig.now)
        await rig.tick()

    alive(rig, story)
    assert rig.listener.words() == ["opened", "closed"]
    assert rig.listener.heard[1][1].endswith("the target was removed")


WHERE = ("after_probe", "tick", "notices")


def test_nothing_that_goes_wrong_inside_comes_out(series):
    class Broken(SeriesStore):
        def alerts(self, **_):
            raise RuntimeError("broken")

    rig = Rig(series)
    rig.series = Broken(series.store)
    missed = records.Probe("box", 0, 1, START, START, records.ProbeOutcome.MISSED)

    async def story():
        await rig.probe()
        await rig.tick()
        await rig.watch.after_probe(missed, rig.now)

    alive(rig, story)
    assert set(rig.log) == {
        f'watch.failed in={name} error="RuntimeError: broken"' for name in WHERE
    }


def test_check_names_open_alerts_overdue_probes_and_the_free_bytes(series, tmp_path):
    """The free bytes are also read for a store that does not exist yet."""
    rig = Rig(series, usual=1)
    assert check_document(series, rig.now)["ok"]
    alive(rig, DOWN)
    assert [row["rule"] for row in check_document(series, rig.now)["wrong"]] == ["down"]
    series.put_target(records.ProbeTarget("new", "http://new:1", added_at=rig.now - 60))
    late = check_document(series, rig.now + 4 * HOUR, running=False)
    rows = [(row["rule"], row["target"]) for row in late["wrong"]]
    assert rows == [("down", "box"), ("unwatched", "box"), ("unwatched", "new")]
    assert "the monitor is not running" in late["wrong"][1]["message"]
    assert (
        "runs but is late"
        in check_document(series, rig.now + 4 * HOUR, running=True)["wrong"][1]["message"]
    )
    json.dumps(late)
    assert free_bytes_of(tmp_path / "store") > 0
    assert free_bytes_of(tmp_path / "a" / "b") is None

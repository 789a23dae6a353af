"""`skep top`: what is drawn from readings, and the command in a real terminal in front of a
control socket.
"""

import json
import os
import signal

import pytest
from hive_client import FakeHive, rest_of, streaming
from hypothesis import given
from hypothesis import strategies as st
from in_process import refused
from terminal import Terminal

from skep.errors import EngineError
from skep.paths import user_paths
from skep.report.hive_text import frame
from skep.report.liveview import Page, bar_cells, drawn, sparkline
from skep.supervisor.hive_status import HiveReadings, Rate, replicas_of


def row(name="m-0", **fields):
    common = {
        "kind": "replica",
        "state": "ready",
        "pid": 7,
        "url": "http://127.0.0.1:9",
        "slots": 8,
        "busy": 0,
    }
    return {
        "name": name,
        **common,
        "model": "m",
        "engine": "fake",
        "restarts": 0,
        "why": None,
        **fields,
    }


def served(name="m-0", **fields):
    common = {
        "model": "m",
        "url": "http://127.0.0.1:9",
        "engine": "fake",
        "simulated": False,
        "slots": 8,
    }
    return {"name": name, **common, "active": 0, "releasing": 0, "state": "up", **fields}


def reading(rows=None, replicas=None, *, tokens=None, ended=None, queues=None, **fields):
    """A hive of one idle replica, unless told otherwise."""
    waiting = queues or {"m": {"interactive": 0, "normal": 0, "batch": 0}}
    queued = sum(sum(classes.values()) for classes in waiting.values())
    gateway = {
        "queued": queued,
        "in_flight": 0,
        "busy": {},
        "queues": waiting,
        "tokens": tokens or {},
    }
    gateway |= {"replicas": [served()] if replicas is None else replicas, "ended": ended or {}}
    front = row("gateway", kind="gateway", queued=0)
    rows = [*([row()] if rows is None else rows), front]
    return {
        "phase": "ready",
        "url": "http://127.0.0.1:8400",
        "pid": 42,
        "rows": rows,
        "gateway": gateway,
        **fields,
    }


def lines_of(view, *page):
    return [line.rstrip() for line in drawn(frame(view, Page(*page))).plain.split("\n")]


def view_of(*readings):
    """One reading a second."""
    view = HiveReadings()
    for second, status in enumerate(readings):
        view.take(status, float(second))
    return view


def line_of(lines, start):
    (line,) = [line for line in lines if line.startswith(start)]
    return line


def rate_of(*points):
    rate = Rate()
    for now, value in points:
        rate.take(value, now)
    return rate.per_s()


RATES = {
    "the gain between readings": ([(0, 100), (1, 130), (2, 150)], 25),
    "nothing of no reading": ([], None),
    "nothing of one reading": ([(5, 100)], None),
    "not negative after a restart of the gateway, which counts from zero": (
        [(0, 1000), (1, 40)],
        0,
    ),
    "not all that was counted since a restart": (
        [(0, 1000), (1, 1010), (2, 40), (3, 50)],
        pytest.approx(20 / 3),
    ),
    "still of a burst within the window": (
        [(0, 0), (1, 5000), (6, 5000)],
        pytest.approx(5000 / 6),
    ),
    "without what is older than the window": (
        [(0, 0), (1, 5000), *((second, 5000) for second in range(2, 12))],
        0,
    ),
    "of readings further apart than the window": ([(0, 0), (60, 600), (120, 1800)], 20),
    "nothing of who never counted": ([(0, None), (1, None)], None),
    "from zero of who begins to count": ([(0, None), (1, 30)], 30),
    "zero of who stops to count": ([(0, 30), (1, None)], 0),
}


@pytest.mark.parametrize(("points", "per_s"), RATES.values(), ids=RATES)
def test_a_rate_is(points, per_s):
    assert rate_of(*points) == per_s


@given(st.lists(st.integers(0, 300), min_size=1, max_size=4).filter(sum), st.integers(5, 40))
def test_a_bar_is_full_and_only_a_part_of_zero_has_no_cell(parts, cell_count):
    cells = bar_cells(parts, sum(parts), cell_count)
    assert sum(cells) == cell_count
    assert [cell > 0 for cell in cells] == [part > 0 for part in parts]
    assert sum(parts) != cell_count or cells == parts


def test_a_bar_draws_active_releasing_and_free_slots_and_a_sparkline_zero():
    lines = lines_of(view_of(reading(replicas=[served(active=3, releasing=2)])))
    assert "███▒▒···     3/8" in line_of(lines, "m-0")
    lines = lines_of(view_of(reading([row(slots=400)], [served(slots=400, active=100)])), 120)
    assert "█" * 8 + "·" * 22 + "  100/400" in line_of(lines, "m-0")
    assert sparkline((0, 1, 500, 1000), 80) == "▁▂▅█  max 1,000"
    assert sparkline(range(200), 40).endswith("█  max 199")
    assert len(sparkline(range(200), 40)) <= 40
    assert sparkline((), 40) == "  max 0"


def test_a_replica_or_lost_cluster_is_shown_as_who_knows_best_has_it():
    """The gateway lists the replaced process, draining, beside the new one of the same name: they
    are one line.
    """
    for state in ("up", "open", "half-open", "draining"):
        assert replicas_of(reading(replicas=[served(state=state)]))[0].state == state
    for state in ("starting", "warming", "backoff", "failed", "stopping", "stopped"):
        (replica,) = replicas_of(reading([row(state=state)], [served(state="draining", active=1)]))
        assert (replica.state, replica.active) == (state, 1)
    (both,) = replicas_of(
        reading(replicas=[served(active=2), served(active=3, releasing=1, state="draining")])
    )
    assert (both.state, both.active, both.releasing) == ("up", 5, 1)
    # Fronted, not started, by skep: until it answers, its model is not known.
    lines = lines_of(view_of(reading(replicas=[])), 100)
    assert "–/8" in line_of(lines, "m-0")
    assert "  gets no requests" in lines
    names = [
        replica.name
        for replica in replicas_of(reading(replicas=[served(), served("far-0", active=1)]))
    ]
    assert names == ["m-0", "far-0"]
    far = row("far", kind="upstream", state="starting", model=None, why="refused")
    lines = lines_of(view_of(reading([far], [])), 100)
    assert line_of(lines, "far").split() == ["far", "–", "starting", "–/8", "–", "0"]
    assert "  refused" in lines
    lines = lines_of(
        view_of(reading(rows=[row(node="node-7"), row("gateway", kind="gateway", queued=0)]))
    )
    assert line_of(lines, "REPLICA").split()[:3] == ["REPLICA", "NODE", "MODEL"]
    assert line_of(lines, "m-0").split()[:3] == ["m-0", "node-7", "m"]
    assert "NODE" not in "".join(lines_of(view_of(reading())))
    lost = {
        "name": "cluster",
        "kind": "cluster",
        "state": "lost",
        "why": "no answer from its head",
        "restarts": None,
    }
    assert "cluster lost: no answer from its head" in lines_of(
        view_of(reading(rows=[row(), lost]))
    )
    assert [replica.name for replica in replicas_of(reading(rows=[row(), lost]))] == ["m-0"]
    assert "  gone [2J" in lines_of(view_of(reading([row(why="gone\x1b[2J\x07")])), 100)


def test_tokens_a_second_are_shown_by_replica_and_in_total_queues_by_model():
    rows = [row(), row("m-1"), row("m-2")]
    replicas = [served(), served("m-1"), served("m-2")]
    first = reading(rows, replicas, tokens={"m-0": 100}, ended={"answered": 4})
    second = reading(
        rows, replicas, tokens={"m-0": 150, "m-1": 20}, ended={"answered": 6, "hung_up": 1}
    )
    view = view_of(first, second)
    rates = {
        "tok_s": 70.0,
        "requests_per_s": 3.0,
        "replicas": {"m-0": 50.0, "m-1": 20.0, "m-2": None},
    }
    assert view.rates() == rates
    lines = lines_of(view)
    assert line_of(lines, "m-0").split()[-2] == "50.0"
    assert line_of(lines, "m-2").split()[-2] == "–"  # nobody says
    assert line_of(lines, "tokens") == "tokens    about 70.0 tok/s  █  max 70.0"
    assert line_of(lines, "requests").endswith("3.0/s ended")
    assert "6 answered, 0 refused, 0 broken, 1 hung up" in line_of(lines, "so far")
    lines = lines_of(
        view_of(reading(queues={"m": {"interactive": 0, "normal": 40, "batch": 80}})), 120
    )
    assert line_of(lines, "QUEUE").split() == ["QUEUE", "INTERACTIVE", "NORMAL", "BATCH"]
    assert line_of(lines, "m  ").split() == ["m", "0", "40", "80"]


def test_without_a_gateway_or_a_token_so_far_nothing_is_said_to_be_zero():
    """Prompts are being read, or the answers are not streamed: nobody knows a speed."""
    rows = [row(), row("m-1")]
    replicas = [served(active=2), served("m-1")]
    view = view_of(*[reading(rows, replicas, tokens={"m-0": 100, "m-1": 100})] * 3)
    assert view.rates()["tok_s"] is None
    assert view.rates()["replicas"] == {"m-0": None, "m-1": 0.0}
    lines = lines_of(view)
    assert line_of(lines, "tokens").startswith("tokens    – tok/s")
    assert "– none yet" in lines[-1]
    idle = view_of(*[reading(rows, [served(), served("m-1")], tokens={"m-0": 100})] * 3)
    assert idle.rates()["tok_s"] == 0.0
    without_the_other = reading([row()], tokens={"m-0": 5})
    without_the_other["rows"][-1] |= {
        "state": "starting",
        "restarts": 1,
        "why": "the gateway ended with code -9",
    }
    view = view_of(reading(tokens={"m-0": 5}), {**without_the_other, "gateway": {}})
    lines = lines_of(view)
    assert "gateway starting, restarts 1: the gateway ended with code -9" in lines
    assert "the gateway reports no figures" in lines
    assert line_of(lines, "requests") == "requests  – in flight, – queued, –/s ended"
    assert line_of(lines, "m-0").split() == ["m-0", "m", "ready", "–/8", "–", "0"]
    assert view.rates() == {"tok_s": None, "requests_per_s": None, "replicas": {}}


LONG = "Qwen3-30B-A3B-Instruct-2507-GGUF-Q4_K_M"


def busy_reading():
    why = (
        "the engine ended with code 1: CUDA error: out of memory while it made room for 12.4 "
        "GiB of keys and values"
    )
    names = [f"{LONG}-{i}" for i in range(4)]
    rows = [row(name, model=LONG, slots=256, restarts=12) for name in names]
    rows[3] |= {"state": "backoff", "why": why}
    states = ("up", "half-open", "draining")
    replicas = [
        served(name, model=LONG, slots=256, active=200, releasing=9, state=state, simulated=True)
        for name, state in zip(names, states, strict=False)
    ]
    queues = {LONG: {"interactive": 12, "normal": 3456, "batch": 123456}}
    tokens = dict.fromkeys(names, 123456789)
    return reading(
        rows, replicas, tokens=tokens, ended={"answered": 99999}, queues=queues, up_s=99999.0
    )


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_a_frame_fits_its_width_and_names_that_are_cut_keep_their_ends(width):
    lines = lines_of(view_of(*[busy_reading()] * 70), width)
    assert max(map(len, lines)) <= width
    assert [line.split()[0].rpartition("-")[2] for line in lines if line.startswith("Qwen")][
        1:
    ] == list("0123")
    notes = " ".join(line.strip() for line in lines if line.startswith("  "))
    assert notes.startswith("the engine ended with code 1: CUDA error")
    assert notes.endswith("of keys and values")


class Readings(FakeHive):
    """Answers every question with `answer`, and counts them."""

    def __init__(self, paths, answer):
        self.answer = answer
        self.asked = 0
        super().__init__(paths, self.tell)

    def tell(self, message):
        assert message == {"op": "status"}
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def control(env):
    status = reading(replicas=[served(active=3)], tokens={"m-0": 1}, pid=os.getpid())
    with Readings(user_paths(env), status) as control:
        yield control


@pytest.fixture
def terminal(env):
    terminals = []

    def start(*args, **extra):
        terminals.append(Terminal({**env, **extra}, "top", *args))
        return terminals[-1]

    yield start
    for opened in terminals:
        opened.close()


def test_top_follows_the_hive_through_bad_answers_and_scrolls_until_q(control, terminal):
    page = terminal("--every", "100ms", NO_COLOR="")
    page.until("███·····     3/8")
    assert "\x1b[32m" in page.raw
    control.answer = reading(
        replicas=[served(active=4, releasing=1, state="half-open")], pid=os.getpid()
    )
    page.until("████▒···     4/8")
    page.until("half-open")
    good = control.answer
    control.answer = EngineError("the supervisor is busy")
    page.until("the supervisor is busy")
    assert "4/8" in page.output.rpartition("the supervisor is busy")[0].rpartition("\x1b[H")[0]
    control.answer = {**good, "phase": "stopping"}
    page.until("stopping")
    names = [f"m-{i}" for i in range(40)]
    control.answer = reading(
        [row(name) for name in names], [served(name) for name in names], pid=os.getpid()
    )
    page.until("more lines: arrow down")
    assert "m-39" not in page.output
    page.press(b"\x1b[B" * 20)
    page.until("m-39")
    page.press(b"x")
    page.press(b"Q")
    assert page.left() == 0
    assert "Traceback" not in page.output


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
def test_a_signal_ends_top_and_leaves_the_terminal_as_it_was(control, terminal, number, code):
    page = terminal()
    page.until("q quits")
    page.process.send_signal(number)
    assert page.left() == code
    assert "Traceback" not in page.output
    assert "Aborted" not in page.output


def test_top_says_when_the_hive_goes_down_and_respects_no_color(control, terminal):
    page = terminal("--every", "100ms", NO_COLOR="1")
    page.until("q quits")
    assert "\x1b[32m" not in page.raw
    control.close()
    page.until("skep is down")
    assert page.left() == 0


def test_without_a_terminal_one_frame_is_printed_and_json_has_the_rates(control, skep):
    lines = skep("top", check=0).stdout.splitlines()
    assert control.asked == 2
    assert "http://127.0.0.1:8400  ready  up " in lines[0]
    assert line_of(lines, "m-0").split() == ["m-0", "m", "up", "███·····", "3/8", "–", "0"]
    assert "q quits" not in lines[-1]
    assert all("\x1b" not in line for line in lines)
    document = json.loads(skep("top", "--json", check=0).stdout)
    assert document.pop("rates") == {
        "tok_s": None,
        "requests_per_s": 0.0,
        "replicas": {"m-0": None},
    }
    assert document.pop("up_s") > 0
    assert document == control.answer


def test_top_without_a_hive_or_with_a_wrong_period_is_one_line(paths):
    for option in ("--once", "--json"):
        assert refused("top", option, code=1) == "skep is not running | start it with `skep up -d`"
    assert refused("top", "--every", "often").startswith("`often` is not a duration")


def test_top_of_a_real_hive_with_an_answer_under_way(skep, configure, up):
    configure({"extra": ["--token-ms=50"]})
    url = up()["url"]
    counted = {"stream_options": {"include_usage": True}}
    with streaming(url, max_tokens=3, **counted) as short:
        rest_of(short, b"")
    with streaming(url, max_tokens=4000, **counted) as long:
        long.recv(1000)
        status = json.loads(skep("top", "--json", check=0).stdout)
        frame = skep("top", "--once", check=0, PYTHONIOENCODING="ascii:strict").stdout.splitlines()
    assert status["gateway"]["tokens"]["fake-model-0"] > 3
    assert status["gateway"]["ended"] == {"answered": 1}
    rates = status["rates"]
    assert 0 < rates["tok_s"] < 40
    assert rates == {
        "tok_s": rates["tok_s"],
        "requests_per_s": 0.0,
        "replicas": {"fake-model-0": rates["tok_s"]},
    }
    *columns, speed, restarts, mark = line_of(frame, "fake-model-0").split()
    assert (*columns, restarts, mark) == (
        "fake-model-0",
        "fake-model",
        "up",
        "#.",
        "1/2",
        "0",
        "simulated",
    )
    assert 0 < float(speed) < 40
    assert line_of(frame, "tokens").startswith(f"tokens    about {speed} tok/s")
    assert line_of(frame, "requests").startswith("requests  1 in flight, 0 queued")

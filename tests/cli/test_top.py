"""`skep top`: what is drawn from readings, and the command in a real terminal in front of a
control socket.
"""

import json
import os
import signal
from types import SimpleNamespace

import pytest
from hive_client import FakeHive, rest_of, streaming, write_hive
from hypothesis import given
from hypothesis import strategies as st
from in_process import refused
from terminal import Terminal

from commands import environment, running_skep
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


@pytest.mark.parametrize("state", ["up", "open", "half-open", "draining"])
def test_the_state_of_a_ready_replica_is_what_the_gateway_says(state):
    assert replicas_of(reading(replicas=[served(state=state)]))[0].state == state


@pytest.mark.parametrize(
    "state", ["starting", "warming", "backoff", "failed", "stopping", "stopped"]
)
def test_the_state_of_a_replica_that_is_not_ready_is_what_the_supervisor_says(state):
    (replica,) = replicas_of(reading([row(state=state)], [served(state="draining", active=1)]))
    assert (replica.state, replica.active) == (state, 1)


def test_a_replaced_process_that_drains_is_one_line_with_the_new_one_of_its_name():
    both = [served(active=2), served(active=3, releasing=1, state="draining")]
    (replica,) = replicas_of(reading(replicas=both))
    assert (replica.state, replica.active, replica.releasing) == ("up", 5, 1)


def test_a_replica_that_the_gateway_does_not_list_gets_no_requests():
    lines = lines_of(view_of(reading(replicas=[])), 100)
    assert "–/8" in line_of(lines, "m-0")
    assert "  gets no requests" in lines


def test_a_replica_that_only_the_gateway_knows_follows_the_started_ones():
    replicas = replicas_of(reading(replicas=[served(), served("far-0", active=1)]))
    assert [replica.name for replica in replicas] == ["m-0", "far-0"]


def test_an_upstream_that_has_not_answered_is_shown_with_the_reason_and_no_model():
    """Fronted, not started, by skep: until it answers, its model is not known."""
    far = row("far", kind="upstream", state="starting", model=None, why="refused")
    lines = lines_of(view_of(reading([far], [])), 100)
    assert line_of(lines, "far").split() == ["far", "–", "starting", "–/8", "–", "0"]
    assert "  refused" in lines


def test_the_node_of_a_replica_has_a_column():
    lines = lines_of(view_of(reading([row(node="node-7")])))
    assert line_of(lines, "REPLICA").split()[:3] == ["REPLICA", "NODE", "MODEL"]
    assert line_of(lines, "m-0").split()[:3] == ["m-0", "node-7", "m"]


def test_on_one_machine_there_is_no_column_of_nodes():
    assert "NODE" not in "".join(lines_of(view_of(reading())))


def test_a_lost_cluster_is_told_and_is_no_replica():
    lost = {
        "name": "cluster",
        "kind": "cluster",
        "state": "lost",
        "why": "no answer from its head",
        "restarts": None,
    }
    status = reading([row(), lost])
    assert "cluster lost: no answer from its head" in lines_of(view_of(status))
    assert [replica.name for replica in replicas_of(status)] == ["m-0"]


def test_a_reason_cannot_give_orders_to_the_terminal():
    assert "  gone [2J" in lines_of(view_of(reading([row(why="gone\x1b[2J\x07")])), 100)


@pytest.fixture
def busy_second():
    """Two readings of three replicas: tokens of one, of one that begins to count, of none."""
    rows = [row(), row("m-1"), row("m-2")]
    replicas = [served(), served("m-1"), served("m-2")]
    first = reading(rows, replicas, tokens={"m-0": 100}, ended={"answered": 4})
    second = reading(
        rows, replicas, tokens={"m-0": 150, "m-1": 20}, ended={"answered": 6, "hung_up": 1}
    )
    return view_of(first, second)


def test_tokens_a_second_are_of_each_replica_and_in_total(busy_second):
    assert busy_second.rates() == {
        "tok_s": 70.0,
        "requests_per_s": 3.0,
        "replicas": {"m-0": 50.0, "m-1": 20.0, "m-2": None},
    }


def test_tokens_a_second_are_shown_by_replica_and_in_total(busy_second):
    lines = lines_of(busy_second)
    assert line_of(lines, "m-0").split()[-2] == "50.0"
    # Nobody says how many tokens m-2 has made.
    assert line_of(lines, "m-2").split()[-2] == "–"
    assert line_of(lines, "tokens") == "tokens    about 70.0 tok/s  █  max 70.0"


def test_ended_requests_are_shown_by_the_second_and_by_how_they_ended(busy_second):
    lines = lines_of(busy_second)
    assert line_of(lines, "requests").endswith("3.0/s ended")
    assert "6 answered, 0 refused, 0 broken, 1 hung up" in line_of(lines, "so far")


def test_queues_are_shown_by_model_and_class():
    queues = {"m": {"interactive": 0, "normal": 40, "batch": 80}}
    lines = lines_of(view_of(reading(queues=queues)), 120)
    assert line_of(lines, "QUEUE").split() == ["QUEUE", "INTERACTIVE", "NORMAL", "BATCH"]
    assert line_of(lines, "m  ").split() == ["m", "0", "40", "80"]


def three_readings_of_two(first_active, **tokens):
    """Three equal readings of two replicas, the second of which is idle."""
    replicas = [served(active=first_active), served("m-1")]
    return view_of(*[reading([row(), row("m-1")], replicas, tokens=tokens)] * 3)


def test_the_speed_of_who_answers_without_a_token_so_far_is_unknown():
    """Prompts are being read, or the answers are not streamed: nobody knows a speed."""
    view = three_readings_of_two(2, **{"m-0": 100, "m-1": 100})
    assert view.rates()["tok_s"] is None
    assert view.rates()["replicas"] == {"m-0": None, "m-1": 0.0}


def test_an_unknown_speed_is_shown_as_a_dash():
    lines = lines_of(three_readings_of_two(2, **{"m-0": 100, "m-1": 100}))
    assert line_of(lines, "tokens").startswith("tokens    – tok/s")
    assert "– none yet" in lines[-1]


def test_the_speed_of_who_is_idle_is_zero():
    assert three_readings_of_two(0, **{"m-0": 100}).rates()["tok_s"] == 0.0


@pytest.fixture
def gateway_ended():
    """A reading before the gateway ended, and one after."""
    status = reading(tokens={"m-0": 5})
    status["rows"][-1] |= {
        "state": "starting",
        "restarts": 1,
        "why": "the gateway ended with code -9",
    }
    return view_of(reading(tokens={"m-0": 5}), {**status, "gateway": {}})


def test_a_gateway_that_ended_is_told_with_the_reason(gateway_ended):
    lines = lines_of(gateway_ended)
    assert "gateway starting, restarts 1: the gateway ended with code -9" in lines
    assert "the gateway reports no figures" in lines


def test_without_a_gateway_no_figure_is_said_to_be_zero(gateway_ended):
    lines = lines_of(gateway_ended)
    assert line_of(lines, "requests") == "requests  – in flight, – queued, –/s ended"
    assert line_of(lines, "m-0").split() == ["m-0", "m", "ready", "–/8", "–", "0"]
    assert gateway_ended.rates() == {"tok_s": None, "requests_per_s": None, "replicas": {}}


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


def test_without_a_terminal_one_frame_of_two_readings_is_printed(control, skep):
    lines = skep("top", check=0).stdout.splitlines()
    assert control.asked == 2
    assert "http://127.0.0.1:8400  ready  up " in lines[0]
    assert line_of(lines, "m-0").split() == ["m-0", "m", "up", "███·····", "3/8", "–", "0"]
    assert "q quits" not in lines[-1]
    assert all("\x1b" not in line for line in lines)


def test_the_document_of_top_is_the_status_with_the_rates(control, skep):
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


@pytest.fixture(scope="module")
def real_top(tmp_path_factory):
    """The document and the frame of a hive that has given one answer and is giving another."""
    folder = tmp_path_factory.mktemp("real-top")
    write_hive(folder, {"extra": ["--token-ms=50"]})
    counted = {"stream_options": {"include_usage": True}}
    with running_skep(environment(folder), folder) as skep:
        url = json.loads(skep("up", "-d", "--json", check=0).stdout)["url"]
        with streaming(url, max_tokens=3, **counted) as short:
            rest_of(short, b"")
        with streaming(url, max_tokens=4000, **counted) as long:
            long.recv(1000)
            document = json.loads(skep("top", "--json", check=0).stdout)
            ascii_only = {"PYTHONIOENCODING": "ascii:strict"}
            lines = skep("top", "--once", check=0, **ascii_only).stdout.splitlines()
    return SimpleNamespace(document=document, lines=lines)


def test_the_document_of_a_real_hive_counts_tokens_and_ended_answers(real_top):
    gateway = real_top.document["gateway"]
    assert gateway["tokens"]["fake-model-0"] > 3
    assert gateway["ended"] == {"answered": 1}


def test_the_rates_of_a_real_hive_are_those_of_the_answer_under_way(real_top):
    rates = real_top.document["rates"]
    assert 0 < rates["tok_s"] < 40
    assert rates == {
        "tok_s": rates["tok_s"],
        "requests_per_s": 0.0,
        "replicas": {"fake-model-0": rates["tok_s"]},
    }


def test_the_frame_of_a_real_hive_shows_the_slot_and_the_speed_of_its_replica(real_top):
    *columns, speed, restarts, mark = line_of(real_top.lines, "fake-model-0").split()
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
    assert line_of(real_top.lines, "tokens").startswith(f"tokens    about {speed} tok/s")


def test_the_frame_of_a_real_hive_counts_the_requests_in_flight(real_top):
    assert line_of(real_top.lines, "requests").startswith("requests  1 in flight, 0 queued")

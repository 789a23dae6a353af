"""`skep top`: what is drawn from readings, and the command in a real terminal in front of a control socket."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import socketserver
import struct
import subprocess
import sys
import termios
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.cli.top import HISTORY, UNICODE, HiveView, Rate, Screen, Sparkline, replicas_of, slot_cells
from skep.paths import make_runtime, user_paths

SPARKS = UNICODE[-1]


def row(name="m-0", **fields):
    common = {"kind": "replica", "state": "ready", "pid": 7, "url": "http://127.0.0.1:9", "slots": 8, "busy": 0}
    return {"name": name, **common, "model": "m", "engine": "fake", "restarts": 0, "why": None, **fields}


def served(name="m-0", **fields):
    common = {"model": "m", "url": "http://127.0.0.1:9", "engine": "fake", "simulated": False, "slots": 8}
    return {"name": name, **common, "active": 0, "releasing": 0, "state": "up", **fields}


def reading(rows=None, replicas=None, *, tokens=None, ended=None, queues=None, **fields):
    """A hive of one idle replica, unless told otherwise."""
    waiting = queues or {"m": {"interactive": 0, "normal": 0, "batch": 0}}
    gateway = {
        "queued": sum(sum(classes.values()) for classes in waiting.values()),
        "in_flight": 0,
        "busy": {},
        "queues": waiting,
        "replicas": [served()] if replicas is None else replicas,
        "tokens": tokens or {},
        "ended": ended or {},
    }
    front = row("gateway", kind="gateway", queued=0)
    rows = [*([row()] if rows is None else rows), front]
    return {"phase": "ready", "url": "http://127.0.0.1:8400", "pid": 42, "rows": rows, "gateway": gateway, **fields}


def drawn(view, *page, **options):
    return ["".join(text for text, _ in line).rstrip() for line in view.frame(Screen(*page), **options)]


def view_of(*readings):
    """One reading a second."""
    view = HiveView()
    for second, status in enumerate(readings):
        view.take(status, float(second))
    return view


def line_of(lines, start):
    (found,) = [line for line in lines if line.startswith(start)]
    return found


def rate_of(*points):
    rate = Rate()
    for now, value in points:
        rate.take(value, now)
    return rate.per_s()


def test_a_rate_is_the_gain_between_readings():
    assert rate_of((0, 100), (1, 130), (2, 150)) == 25


def test_one_reading_tells_no_rate():
    assert rate_of((5, 100)) is None
    assert Rate().per_s() is None


def test_a_counter_that_goes_down_gives_no_negative_rate():
    """A restarted gateway counts from zero; what it counted by then is not a second's work."""
    assert rate_of((0, 1000), (1, 40)) == 0
    assert rate_of((0, 1000), (1, 1010), (2, 40), (3, 50)) == pytest.approx(20 / 3)


def test_a_rate_forgets_what_is_older_than_its_window():
    burst = [(0, 0), (1, 5000)]
    quiet = [(second, 5000) for second in range(2, 12)]
    assert rate_of(*burst, *quiet[:5]) > 0
    assert rate_of(*burst, *quiet) == 0


def test_readings_further_apart_than_the_window_still_tell_a_rate():
    assert rate_of((0, 0), (60, 600), (120, 1800)) == 20


def test_who_never_counted_has_no_rate_and_who_begins_counts_from_zero():
    assert rate_of((0, None), (1, None)) is None
    assert rate_of((0, None), (1, 30)) == 30
    assert rate_of((0, 30), (1, None)) == 0


def test_a_sparkline_tells_zero_from_little_and_names_its_maximum():
    history = Sparkline()
    for value in (0, 1, 500, 1000):
        history.take(value)
    assert history.line(80, SPARKS) == "▁▂▅█  max 1,000"


def test_a_sparkline_of_all_readings_fits_a_narrow_page():
    history = Sparkline()
    for value in range(3 * HISTORY):
        history.take(value)
    assert len(history.line(100, SPARKS)) == HISTORY + len("  max 179")
    narrow = history.line(40, SPARKS)
    assert len(narrow) <= 40
    assert narrow.startswith("▆")  # 120 of 179: the oldest of sixty is on it
    assert Sparkline().line(40, SPARKS) == "  max 0"


@given(st.integers(0, 300), st.integers(0, 300), st.integers(1, 300), st.integers(5, 40))
def test_a_bar_has_as_many_cells_as_slots_or_as_there_is_room(active, releasing, slots, most):
    cells = slot_cells(active, releasing, slots, most)
    assert sum(cells) == min(slots, most)
    active = min(active, slots)
    releasing = min(releasing, slots - active)
    parts = (active, releasing, slots - active - releasing)
    assert [cell > 0 for cell in cells] == [part > 0 for part in parts]
    if slots <= most:
        assert tuple(cells) == parts


def test_a_bar_draws_active_releasing_and_free_slots():
    lines = drawn(view_of(reading(replicas=[served(active=3, releasing=2)])))
    assert "███▒▒···     3/8" in line_of(lines, "m-0")


def test_more_slots_than_forty_are_drawn_to_scale():
    status = reading([row(slots=400)], [served(slots=400, active=100)])
    line = line_of(drawn(view_of(status), 120), "m-0")
    assert "█" * 10 + "·" * 30 + "  100/400" in line


@pytest.mark.parametrize("state", ["up", "open", "half-open", "draining"])
def test_the_gateway_says_the_state_of_a_ready_replica(state):
    assert replicas_of(reading(replicas=[served(state=state)]))[0].state == state


@pytest.mark.parametrize("state", ["starting", "warming", "backoff", "failed", "stopping", "stopped"])
def test_the_supervisor_says_the_state_of_one_that_is_not_ready(state):
    (replica,) = replicas_of(reading([row(state=state)], [served(state="draining", active=1)]))
    assert (replica.state, replica.active) == (state, 1)


def test_a_replica_that_came_back_is_one_line_with_the_answers_of_both():
    """The gateway lists the replaced process, draining, beside the new one of the same name."""
    status = reading(replicas=[served(active=2), served(active=3, releasing=1, state="draining")])
    (replica,) = replicas_of(status)
    assert (replica.state, replica.active, replica.releasing) == ("up", 5, 1)


def test_a_ready_replica_that_the_gateway_does_not_list_says_so():
    lines = drawn(view_of(reading(replicas=[])), 100)
    assert "–/8" in line_of(lines, "m-0")
    assert line_of(lines, "m-0").endswith("gets no requests")


def test_a_replica_that_only_the_gateway_knows_is_shown():
    names = [replica.name for replica in replicas_of(reading(replicas=[served(), served("far-0", active=1)]))]
    assert names == ["m-0", "far-0"]


def test_an_upstream_is_shown_before_it_has_told_its_model():
    """Fronted, not started, by skep: until it answers, its model is not known."""
    lines = drawn(view_of(reading([row("far", kind="upstream", state="starting", model=None, why="refused")], [])), 100)
    assert line_of(lines, "far").split() == ["far", "–", "starting", "–/8", "–", "0", "refused"]


def test_simulated_replicas_are_marked():
    lines = drawn(view_of(reading([row(), row("m-1")], [served(simulated=True), served("m-1")])))
    assert line_of(lines, "m-0").endswith("simulated")
    assert "simulated" not in line_of(lines, "m-1")


def test_tokens_per_second_are_shown_by_replica_and_in_total():
    rows, replicas = [row(), row("m-1"), row("m-2")], [served(), served("m-1"), served("m-2")]
    first = reading(rows, replicas, tokens={"m-0": 100}, ended={"answered": 4})
    second = reading(rows, replicas, tokens={"m-0": 150, "m-1": 20}, ended={"answered": 6, "hung_up": 1})
    view = view_of(first, second)
    rates = {"tok_s": 70.0, "requests_per_s": 3.0, "replicas": {"m-0": 50.0, "m-1": 20.0, "m-2": None}}
    assert view.rates() == rates
    lines = drawn(view)
    assert line_of(lines, "m-0").split()[-2] == "50.0"
    assert line_of(lines, "m-2").split()[-2] == "–"  # nobody says
    assert line_of(lines, "tokens") == "tokens    about 70.0 tok/s  █  max 70.0"
    assert line_of(lines, "requests").endswith("3.0/s ended")
    assert "6 answered, 0 refused, 0 broken, 1 hung up" in line_of(lines, "so far")


def test_busy_slots_without_a_token_so_far_are_not_said_to_be_zero():
    """Prompts are being read, or the answers are not streamed: nobody knows a speed."""
    rows, replicas = [row(), row("m-1")], [served(active=2), served("m-1")]
    view = view_of(*[reading(rows, replicas, tokens={"m-0": 100, "m-1": 100})] * 3)
    assert view.rates()["tok_s"] is None
    assert view.rates()["replicas"] == {"m-0": None, "m-1": 0.0}
    lines = drawn(view)
    assert line_of(lines, "tokens").startswith("tokens    – tok/s")
    assert "– none yet" in lines[-1]
    idle = view_of(*[reading(rows, [served(), served("m-1")], tokens={"m-0": 100})] * 3)
    assert idle.rates()["tok_s"] == 0.0


def test_queues_are_shown_by_model_and_class_with_their_history():
    queues = [{"m": {"interactive": 0, "normal": n, "batch": 2 * n}} for n in (0, 10, 20, 40, 0)]
    lines = drawn(view_of(*(reading(queues=found) for found in queues[:4])), 120)
    assert line_of(lines, "QUEUE").split() == ["QUEUE", "INTERACTIVE", "NORMAL", "BATCH", "LAST", "60", "READINGS"]
    assert line_of(lines, "m  ").split() == ["m", "0", "40", "80", "▁▃▅█", "max", "120"]
    lines = drawn(view_of(*(reading(queues=found) for found in queues)), 120)
    assert line_of(lines, "m  ").split()[:5] == ["m", "0", "0", "0", "▁▃▅█▁"]


def test_without_a_gateway_nothing_is_said_to_be_zero():
    gone = reading([row()], tokens={"m-0": 5})
    gone["rows"][-1] |= {"state": "starting", "restarts": 1, "why": "the gateway ended with code -9"}
    view = view_of(reading(tokens={"m-0": 5}), {**gone, "gateway": {}})
    lines = drawn(view)
    assert "gateway starting, restarts 1: the gateway ended with code -9" in lines
    assert "the gateway gives no figures" in lines
    assert line_of(lines, "requests") == "requests  – in flight, – queued, –/s ended"
    assert line_of(lines, "m-0").split() == ["m-0", "m", "ready", "–/8", "–", "0"]
    assert view.rates() == {"tok_s": None, "requests_per_s": None, "replicas": {}}


LONG = "Qwen3-30B-A3B-Instruct-2507-GGUF-Q4_K_M"


def busy_reading():
    why = "the engine ended with code 1: CUDA error: out of memory while it made room for 12.4 GiB of keys and values"
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
    return reading(rows, replicas, tokens=tokens, ended={"answered": 99999}, queues=queues, up_s=99999.0)


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_a_frame_fits_its_page(width):
    for height in (None, 24):
        lines = drawn(view_of(*[busy_reading()] * 70), width, height)
        assert max(map(len, lines)) <= width
        assert [line.split()[0].rpartition("-")[2] for line in lines if line.startswith("Qwen")][1:] == list("0123")
        notes = " ".join(line.strip() for line in lines if line.startswith("  "))
        assert notes.startswith("the engine ended with code 1: CUDA error")
        assert notes.endswith("of keys and values")


def test_replicas_that_find_no_place_are_counted():
    names = [f"m-{i}" for i in range(30)]
    view = view_of(reading([row(name) for name in names], [served(name) for name in names]))
    assert sum(line.startswith("m-") for line in drawn(view)) == 30
    lines = drawn(view, 80, 24)
    assert len(lines) == 24
    shown = sum(line.startswith("m-") for line in lines)
    assert f"{30 - shown} more: make the window taller, or see `skep ps`" in lines


def test_a_terminal_without_unicode_gets_ascii():
    status = reading([row(why="früher – kaputt")], [served(active=2, releasing=1)])
    lines = drawn(view_of(status, status), 100, None, "ascii")
    assert all(line.isascii() for line in lines)
    assert "##%.....     2/8      -" in line_of(lines, "m-0")
    assert "fr?her ? kaputt" in line_of(lines, "m-0")


def test_what_an_engine_writes_cannot_steer_the_terminal():
    lines = drawn(view_of(reading([row(why="gone\x1b[2J\x07")])), 100)
    assert line_of(lines, "m-0").endswith("gone [2J")


class FakeControl(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Answers every question with `answer`, where `skep` looks for its supervisor."""

    daemon_threads = True

    def __init__(self, path, answer):
        self.answer = answer
        self.asked = threading.Semaphore(0)
        super().__init__(str(path), Answering)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self):
        self.shutdown()
        self.server_close()


class Answering(socketserver.StreamRequestHandler):
    def handle(self):
        assert json.loads(self.rfile.readline()) == {"op": "status"}
        self.wfile.write(json.dumps(self.server.answer).encode() + b"\n")
        self.server.asked.release()


@pytest.fixture
def control(env):
    paths = user_paths(env)
    make_runtime(paths.runtime)
    server = FakeControl(paths.socket, reading(replicas=[served(active=3)], tokens={"m-0": 1}, pid=os.getpid()))
    yield server
    server.close()
    paths.socket.unlink(missing_ok=True)


class Terminal:
    """`skep top` in a terminal of 100 columns and 30 lines."""

    def __init__(self, env, *args):
        self._master, self._slave = pty.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.modes = termios.tcgetattr(self._slave)
        self.raw = ""
        env = {key: value for key, value in env.items() if key not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "skep", "top", *args],
            **dict.fromkeys(("stdin", "stdout", "stderr"), self._slave),
            env={**env, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"},
            start_new_session=True,
        )

    @property
    def output(self):
        """Without colours."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self.raw)

    def until(self, text):
        while text not in self.output:
            assert select.select([self._master], [], [], 30)[0], self.output
            self.raw += os.read(self._master, 65536).decode(errors="replace")

    def press(self, key):
        os.write(self._master, key)

    def left(self):
        """The exit code; the terminal is as it was before."""
        self.until("\x1b[?1049l")
        code = self.process.wait(30)
        assert termios.tcgetattr(self._slave) == self.modes
        assert self.output.rindex("\x1b[?25h") > self.output.rindex("\x1b[?25l")  # the cursor is shown again
        return code

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
        os.close(self._slave)


@pytest.fixture
def terminal(env):
    made = []

    def start(*args, **extra):
        made.append(Terminal({**env, **extra}, *args))
        return made[-1]

    yield start
    for found in made:
        found.close()


def test_top_follows_the_hive_until_q(control, terminal):
    shown = terminal("--every", "100ms")
    shown.until("███·····     3/8")
    control.answer = reading(replicas=[served(active=4, releasing=1, state="half-open")], pid=os.getpid())
    shown.until("████▒···     4/8")
    shown.until("half-open")
    shown.press(b"x")
    shown.press(b"q")
    assert shown.left() == 0
    assert "Traceback" not in shown.output


def test_ctrl_c_leaves_top_and_the_terminal_as_it_was(control, terminal):
    shown = terminal()
    shown.until("q leaves")
    shown.process.send_signal(signal.SIGINT)
    assert shown.left() == 0
    assert "Traceback" not in shown.output
    assert "Aborted" not in shown.output


def test_a_terminated_top_leaves_the_terminal_as_it_was(control, terminal):
    shown = terminal()
    shown.until("q leaves")
    shown.process.terminate()
    assert shown.left() == 128 + signal.SIGTERM


def test_top_says_when_the_hive_goes_down(control, terminal):
    shown = terminal("--every", "100ms")
    shown.until("q leaves")
    control.close()
    shown.until("skep is down")
    assert shown.left() == 0


def test_a_hive_that_answers_badly_for_a_while_is_shown_as_it_was(control, terminal):
    shown = terminal("--every", "100ms")
    shown.until("3/8")
    good, control.answer = control.answer, {"error": "the supervisor is busy"}
    shown.until("the supervisor is busy")
    assert "3/8" in shown.output.rpartition("the supervisor is busy")[0].rpartition("\x1b[H")[0]
    control.answer = {**good, "phase": "stopping"}
    shown.until("stopping")
    shown.press(b"Q")
    assert shown.left() == 0


def test_no_color_is_respected_and_states_are_words(control, terminal):
    shown = terminal(NO_COLOR="1")
    shown.until("q leaves")
    assert "\x1b[32m" not in shown.raw
    coloured = terminal(NO_COLOR="")
    coloured.until("q leaves")
    assert "\x1b[32m" in coloured.raw


def test_without_a_terminal_one_frame_of_two_readings_is_printed(control, skep):
    lines = skep("top", check=0).stdout.splitlines()
    assert control.asked.acquire(timeout=0)
    assert control.asked.acquire(timeout=0)
    assert not control.asked.acquire(timeout=0)
    assert "http://127.0.0.1:8400  ready  up " in lines[0]
    assert line_of(lines, "m-0").split() == ["m-0", "m", "up", "███·····", "3/8", "–", "0"]
    assert "q leaves" not in lines[-1]
    assert all("\x1b" not in line for line in lines)


def test_once_prints_one_frame_on_a_terminal_too(control, terminal):
    shown = terminal("--once")
    shown.until("over 10 s")
    assert shown.process.wait(30) == 0
    assert "\x1b[?1049h" not in shown.output


def test_ascii_output_is_ascii(control, skep):
    done = skep("top", "--once", check=0, PYTHONIOENCODING="ascii:strict")
    assert done.stdout.isascii()
    assert "###.....     3/8" in done.stdout


def test_json_is_the_reading_and_its_rates(control, skep):
    found = json.loads(skep("top", "--json", check=0).stdout)
    assert found.pop("rates") == {"tok_s": None, "requests_per_s": 0.0, "replicas": {"m-0": None}}
    assert found.pop("up_s") > 0
    assert found == control.answer


@pytest.mark.parametrize("option", ["--once", "--json"])
def test_top_without_a_hive_says_how_to_start_one(skep, option):
    done = skep("top", option, check=1)
    assert done.stderr.splitlines() == ["error: skep is not running", "hint: start it with `skep up -d`"]
    assert done.stdout == ""


def test_a_wrong_period_is_one_line(skep):
    done = skep("top", "--every", "often", check=2)
    assert done.stderr.startswith("error: `often` is not a duration")


CONFIG = """
[gateway]
port = 0
[[serve]]
model = "fake-model"
engine = "fake"
slots = 2
extra = ["--token-ms=50"]
"""


def test_top_of_a_real_hive_with_an_answer_under_way(skep, tmp_path):
    (tmp_path / "skep.toml").write_text(CONFIG)
    url = json.loads(skep("up", "-d", "--json", check=0).stdout)["url"]
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    with request(address, max_tokens=3) as short:
        until_end(short)
    with request(address, max_tokens=4000) as long:
        long.recv(1000)
        status = json.loads(skep("top", "--json", check=0).stdout)
        frame = skep("top", "--once", check=0).stdout.splitlines()
    assert status["gateway"]["tokens"]["fake-model-0"] > 3
    assert status["gateway"]["ended"] == {"answered": 1}
    rates = status["rates"]
    assert 0 < rates["tok_s"] < 40
    assert rates == {"tok_s": rates["tok_s"], "requests_per_s": 0.0, "replicas": {"fake-model-0": rates["tok_s"]}}
    *told, speed, restarts, mark = line_of(frame, "fake-model-0").split()
    assert (*told, restarts, mark) == ("fake-model-0", "fake-model", "up", "█·", "1/2", "0", "simulated")
    assert 0 < float(speed) < 40
    assert line_of(frame, "tokens").startswith(f"tokens    about {speed} tok/s")
    assert line_of(frame, "requests").startswith("requests  1 in flight, 0 queued")


def request(address, **fields):
    """A plain socket with an answer under way."""
    body = {"model": "fake-model", "messages": [{"role": "user", "content": "hi"}], "stream": True, **fields}
    data = json.dumps({**body, "stream_options": {"include_usage": True}}).encode()
    sock = socket.create_connection(address, timeout=30)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    sock.sendall(head % len(data) + data)
    return sock


def until_end(sock):
    while sock.recv(65536):
        pass


def test_nodes_are_shown_where_there_are_any():
    lines = drawn(view_of(reading(rows=[row(node="node-7"), row("gateway", kind="gateway", queued=0)])))
    title = next(line for line in lines if line.startswith("REPLICA"))
    replica = next(line for line in lines if line.startswith("m-0"))
    assert title.split()[:3] == ["REPLICA", "NODE", "MODEL"]
    assert replica.split()[:3] == ["m-0", "node-7", "m"]
    assert "NODE" not in "".join(drawn(view_of(reading())))


def test_a_lost_cluster_is_said():
    lost = {"name": "cluster", "kind": "cluster", "state": "lost", "why": "no answer from its head", "restarts": None}
    assert "cluster lost: no answer from its head" in drawn(view_of(reading(rows=[row(), lost])))
    assert [shown.name for shown in replicas_of(reading(rows=[row(), lost]))] == ["m-0"]

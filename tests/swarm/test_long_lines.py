"""Tasks whose line is very long, whole and broken: what comes of them, and how much memory they
take.

A line of text may take ten times its size in `skep swarm run`, which checks it, stores it in ASCII
and sends it, and three times its size in the gateway, beside what the process has anyway."""

import http.client
import json
import subprocess
import sys
from pathlib import Path

import pytest

from commands import environment, eventually
from skep.testing.process import FakeEngine
from skep.units import MIB

BASE_BYTES = 150 * MIB
PER_BYTE = 10
PER_UPLOADED_BYTE = 3
LENGTHS = (
    pytest.param(3_000_000, id="3 MB"),
    pytest.param(100_000_000, id="100 MB", marks=pytest.mark.slow),
)
ENDED = ("completed", "failed")
# The command in a process that says at its end how much memory it has had.
CHILD = """
import sys
from pathlib import Path
from skep.cli.main import main
peak_file = Path(sys.argv.pop(1))
try:
    sys.exit(main())
finally:
    peak_file.write_text(Path("/proc/self/status").read_text())
"""


def peak_bytes(status):
    """Return the most memory that a process has had, as its /proc/PID/status tells it."""
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(slots=2, token_ms=1, ctx=10**9, prefill_tok_s=1e12) as running:
        yield running


@pytest.fixture
def run_tasks(engine, tmp_path):
    """Run a file of this one line; return the process, the results, and the most memory that it
    took.
    """

    env = environment(tmp_path)

    def run(line, *options):
        tasks = tmp_path / "tasks.jsonl"
        tasks.write_bytes(line + b"\n")
        peak = tmp_path / "peak"
        argv = [
            sys.executable,
            "-c",
            CHILD,
            peak,
            "swarm",
            "run",
            tasks,
            "--url",
            engine.url,
            "--max-tokens",
            "2",
        ]
        done = subprocess.run(
            [*argv, *options], env=env, capture_output=True, text=True, check=False
        )
        output = tmp_path / "tasks.results.jsonl"
        if output.exists():
            results = [json.loads(text) for text in output.read_text().splitlines()]
        else:
            results = []
        return done, results, peak_bytes(peak.read_text())

    return run


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("word", ["word ", "é ", "🙂 "], ids=["letters", "accents", "emoji"])
def test_a_task_of_any_length_is_sent_and_answered(run_tasks, length, word):
    repeats = length // len(word.encode())
    document = json.dumps({"id": "long", "prompt": word * repeats}, ensure_ascii=False)
    done, results, peak = run_tasks(document.encode())
    assert (done.returncode, [result["id"] for result in results]) == (0, ["long"]), done.stderr[
        -1000:
    ]
    assert results[0]["answer"]
    assert peak < BASE_BYTES + PER_BYTE * length, peak / length


BROKEN = {
    "cut in its text": (b'{"prompt": "', b"word ", b"", "not JSON: Unterminated string"),
    "no JSON": (b"", b"x", b"", "not JSON: Expecting value"),
    "words": (b"", b"a b\t", b"", "not JSON: Expecting value"),
    "brackets": (b"", b"[", b"", "nested too deeply"),
    "half a character": (b'{"prompt": "', b"x", b'\\ud800"}', "half of a surrogate pair"),
    "no UTF-8": (b'{"prompt": "', b"x", b'\xff"}', "a byte that is not UTF-8"),
    "an unknown key": (b'{"prompt": "x", "', b"k", b'": 1}', "is not known"),
    "a long id": (b'{"prompt": "x", "id": "', b"k", b'"}', "`id` must be"),
    "a long role": (
        b'{"messages": [{"content": "x", "role": "',
        b"k",
        b'"}]}',
        "`messages[0].role` must be",
    ),
    "a long kind": (b'{"prompt": "x", "checker": {"kind": "', b"k", b'"}}', "unknown kind"),
    "a long type": (
        b'{"prompt": "x", "schema": {"type": "',
        b"k",
        b'"}}',
        "not a JSON schema: $.type",
    ),
    "a long number": (
        b'{"prompt": "x", "max_tokens": ',
        b"9",
        b"}",
        "a number in it has too many digits",
    ),
}


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_line_of_any_length_is_told_in_few_words(run_tasks, length, name):
    head, repeated, end, fault = BROKEN[name]
    done, results, peak = run_tasks(head + repeated * (length // len(repeated)) + end)
    assert (done.returncode, results) == (2, [])
    assert "tasks.jsonl, line 1:" in done.stderr
    assert fault in done.stderr
    assert len(done.stderr) < 1000
    assert peak < BASE_BYTES + PER_BYTE * length, peak / length


def test_a_task_with_very_many_faults_names_the_first_ones(run_tasks):
    """All were made and kept, which took fifty times the size of the line."""
    done, _, _ = run_tasks(b'{"messages": [' + b'{"role":1},' * 100_000 + b"1]}")
    assert "has at least 100 faults:" in done.stderr
    assert done.stderr.count("messages[") == 10
    assert "and 90 more" in done.stderr


def test_a_file_with_very_many_faults_names_the_first_ones(run_tasks):
    done, _, _ = run_tasks(b"\n".join([b"{}"] * 20_000))
    assert "has 20000 faults:" in done.stderr
    assert done.stderr.count("neither `prompt` nor `messages`") == 10
    assert "and 19990 more" in done.stderr


@pytest.mark.slow
def test_a_file_of_nothing_but_broken_lines_takes_little_more_than_its_size(run_tasks):
    lines = b"{\n" * 999_999 + b"{"
    done, _, peak = run_tasks(lines)
    assert "has 1000000 faults:" in done.stderr
    assert peak < BASE_BYTES + 4 * len(lines), peak / len(lines)


@pytest.fixture
def batching(start_gateway, engine, tmp_path):
    """Start a gateway with batches in front of the engine."""

    def start(**setup):
        places = {"store": str(tmp_path / "store"), "files": str(tmp_path / "files")}
        gateway = start_gateway(batches=places, **setup)
        gateway.serve_engines(engine, slots=2)
        return gateway

    return start


def call(gateway, method, path, body=None, content_type="application/json"):
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    connection.request(method, path, body, {"content-type": content_type})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, text


def upload(gateway, line):
    field = b'--x\r\ncontent-disposition: form-data; name="%b"\r\n\r\n%b\r\n'
    file = (
        b'--x\r\ncontent-disposition: form-data; name="file"; '
        b'filename="a.jsonl"\r\n\r\n%b\r\n--x--\r\n'
    )
    form = field % (b"purpose", b"batch") + file % line
    return call(gateway, "POST", "/v1/files", form, "multipart/form-data; boundary=x")


def batch_of(gateway, line):
    """Carry out a batch of this one line, and return what became of it."""
    status, text = upload(gateway, line)
    assert status == 200, text
    order = {
        "input_file_id": json.loads(text)["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    _, text = call(gateway, "POST", "/v1/batches", json.dumps(order))
    path = f"/v1/batches/{json.loads(text)['id']}"

    def ended():
        batch = json.loads(call(gateway, "GET", path)[1])
        if batch["status"] in ENDED:
            return batch
        return None

    return eventually(ended, timeout_s=100)


def request_of(prompt):
    body = {
        "model": "fake-model",
        "max_tokens": 2,
        "messages": [{"role": "user", "content": prompt}],
    }
    return {"custom_id": "long", "method": "POST", "url": "/v1/chat/completions", "body": body}


@pytest.mark.parametrize("length", LENGTHS)
def test_a_batch_with_a_line_of_any_length_is_done_and_a_broken_one_told_briefly(batching, length):
    gateway = batching(server={"body_bytes": 150_000_000})
    whole = json.dumps(request_of("word " * (length // 5))).encode() + b"\n"
    batch = batch_of(gateway, whole)
    assert (batch["status"], batch["request_counts"]) == (
        "completed",
        {"total": 1, "completed": 1, "failed": 0},
    )
    long_id = whole.replace(b'"long"', b'"%b"' % (b"k" * 1000))
    for broken in (
        whole[:-5],
        b"[" * length,
        b"x" * length,
        long_id,
        b'{"custom_id":"' + b"k" * length + b'"}',
    ):
        batch = batch_of(gateway, broken)
        (fault,) = batch["errors"]["data"]
        assert (batch["status"], fault["line"]) == ("failed", 1)
        assert len(fault["message"]) < 200
    status = Path(f"/proc/{gateway.process.pid}/status").read_text()
    assert peak_bytes(status) < BASE_BYTES + PER_UPLOADED_BYTE * length, (
        peak_bytes(status) / length
    )


def test_an_upload_beyond_the_limit_of_a_body_is_refused_before_it_is_read(batching):
    gateway = batching()
    status, text = upload(gateway, b"x" * 100_000_000)
    assert (status, b"body_limit" in text) == (413, True)
    assert peak_bytes(Path(f"/proc/{gateway.process.pid}/status").read_text()) < BASE_BYTES

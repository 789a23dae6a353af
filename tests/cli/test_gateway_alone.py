"""`skep gateway` in front of servers that skep did not start."""

import contextlib
import json
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from hive_client import ask, eventually, free_port, rest_of, rows_of, streaming
from in_process import refused

from skep.testing.process import FakeEngine

CERTIFICATE = Path(__file__).parent.parent / "wire" / "localhost.pem"


@pytest.fixture
def front(skep):
    """Starts the gateway alone, in the background."""

    def run(*args, **env):
        return json.loads(
            skep("gateway", "-d", "--json", "--port", "0", *args, check=0, **env).stdout
        )

    return run


def test_two_servers_are_one_endpoint(skep, front):
    with FakeEngine(slots=2) as fake_engine, FakeEngine(slots=3) as second_engine:
        # Which say how many slots they have.
        ready = front("--upstream", f"{fake_engine.url}/v1", "--upstream", second_engine.url)
        assert ready["models"] == ["fake-model"]
        assert {row["state"] for row in ready["replicas"]} == {"ready"}
        with contextlib.ExitStack() as streams:
            for _ in range(5):
                streams.enter_context(streaming(ready["url"], max_tokens=5000))
            fake_engine.wait_for(running=2)
            second_engine.wait_for(running=3)
        rows = rows_of(skep)
        assert rows[f"127.0.0.1-{fake_engine.port}"]["kind"] == "upstream"
        assert rows[f"127.0.0.1-{fake_engine.port}"]["pid"] is None
        assert rows["gateway"]["slots"] == 5
        skep("down", check=0)
        assert fake_engine.state()["running"] == 0
        assert ask(fake_engine.url)[0] == 200  # not ours: it goes on


def test_a_server_that_is_not_there_yet_is_no_reason_to_wait(skep, front):
    port = free_port()
    ready = front(
        "--upstream", f"http://127.0.0.1:{port}", "--slots", "2", "--model", "fake-model"
    )
    (row,) = ready["replicas"]
    assert row["state"] == "starting"
    assert "refused" in row["why"]
    with streaming(ready["url"], max_tokens=3) as sock:  # its model is known: the request waits
        eventually(lambda: rows_of(skep)["gateway"]["queued"] == 1)
        with FakeEngine(port=port, slots=2):
            assert b"[DONE]" in rest_of(sock, b"")
            assert rows_of(skep)[row["name"]]["state"] == "ready"


def test_who_does_not_answer_is_told_to_a_person(skep):
    port = free_port()
    done = skep(
        "gateway", "-d", "--port", "0", "--upstream", f"127.0.0.1:{port}", "--slots", "2", check=0
    )
    assert f"warning: 127.0.0.1-{port} is not ready yet, skep keeps asking" in done.stderr
    assert "no model yet" in done.stderr
    assert done.stdout.startswith("http://127.0.0.1:")


def test_upstreams_of_the_file_are_fronted_and_reloaded(skep, front, tmp_path):
    with FakeEngine(slots=2, token_ms=20) as fake_engine, FakeEngine(slots=2) as second_engine:
        table = '[[upstream]]\nname = "{}"\nurl = "{}"\nslots = 2\n'
        (tmp_path / "skep.toml").write_text(table.format("one", fake_engine.url))
        ready = front()
        with streaming(ready["url"], max_tokens=100) as sock:
            received = sock.recv(1000)
            (tmp_path / "skep.toml").write_text(table.format("other", second_engine.url))
            answer = json.loads(skep("reload", "--wait", "--json", check=0).stdout)
            assert (answer["added"], answer["removed"]) == (["other"], ["one"])
            assert b"[DONE]" in rest_of(sock, received)
        assert ask(ready["url"])[0] == 200
        assert second_engine.state()["requests"] == 1
        assert set(rows_of(skep)) == {"other", "gateway"}


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["--upstream", "http://x:1"], "does not answer"),
        (
            ["--upstream", "http://x:1", "--slots", "1", "--slots", "2"],
            "1 --upstream, but 2 --slots",
        ),
        (["--upstream", "http://x:1/api/openai", "--slots", "1"], "has the path `/api/openai`"),
        (["--upstream", "ftp://x:1", "--slots", "1"], "not an http(s) URL"),
        (["--upstream", "http://me:pw@x:1", "--slots", "1"], "contains a user name"),
        (
            ["--upstream", "x:1", "--upstream", "http://x:1/v1", "--slots", "1"],
            "two replicas are named `x-1`",
        ),
        (["--upstream", "http://127.0.0.1:8400", "--slots", "1"], "the gateway's own address"),
        (
            ["--upstream", "http://x:1", "--slots", "2", "--reserve", "2"],
            "`reserve` = 2 takes all 2 slots",
        ),
        (
            ["--upstream", "http://x:1", "--slots", "2", "--soft-slots", "3"],
            "`soft_slots` = 3 of 2 slots",
        ),
        (["--slots", "2"], "go with --upstream"),
        ([], "no upstream is given"),
    ],
)
def test_what_cannot_be_meant_is_refused(paths, args, complaint):
    assert complaint in refused("gateway", "-d", *args)


def test_up_with_upstreams_alone_starts_just_the_gateway_with_tls(skep, up, tmp_path):
    context = ssl.create_default_context(cafile=CERTIFICATE)
    context.check_hostname = False
    with FakeEngine(slots=2) as engine:
        tables = (
            'tls_certificate = "server.pem"\ntls_key = "server.pem"\n[[upstream]]\nurl = '
            f'"{engine.url}"\nslots = 2\n'
        )
        (tmp_path / "skep.toml").write_text(f"[gateway]\nport = 0\n{tables}")
        shutil.copy(CERTIFICATE, tmp_path / "server.pem")
        url = up()["url"]
        assert url.startswith("https://")
        assert ask(url, context=context)[0] == 200
        assert [row["kind"] for row in rows_of(skep).values()] == ["upstream", "gateway"]


def test_certificates_that_cannot_serve_are_found_before_the_start(paths, tmp_path):
    def complaint(certificate, key):
        names = f'tls_certificate = "{certificate}"\n' + (f'tls_key = "{key}"\n' if key else "")
        (tmp_path / "skep.toml").write_text(
            f'[gateway]\nport = 0\n{names}[[serve]]\nengine = "fake"\n'
        )
        return refused("up", "-d")

    shutil.copy(CERTIFICATE, tmp_path / "good.pem")
    (tmp_path / "bad.pem").write_text("nothing\n")
    assert "`gateway.tls_certificate` is set without `gateway.tls_key`" in complaint(
        "good.pem", None
    )
    assert "No such file" in complaint("none.pem", "good.pem")
    assert "both are PEM files that belong together" in complaint("good.pem", "bad.pem")
    if shutil.which("openssl"):
        make = [
            "openssl",
            "genpkey",
            "-algorithm",
            "EC",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-out",
        ]
        subprocess.run([*make, tmp_path / "other.pem"], check=True, capture_output=True)
        assert "MISMATCH" in complaint("good.pem", "other.pem")
        locked = [*make, tmp_path / "locked.pem", "-aes256", "-pass", "pass:x"]
        subprocess.run(locked, check=True, capture_output=True)
        assert "the key has no passphrase" in complaint("good.pem", "locked.pem")


def test_a_server_that_wants_a_key_gets_its_own_and_not_the_clients(skep, front, start_gateway):
    """Another skep plays the server."""
    with FakeEngine(token_ms=1) as engine:
        server = start_gateway(api_key="upstairs")
        server.serve_engines(engine)
        args = ("--upstream", server.url, "--slots", "2", "--key-env", "UPSTAIRS_KEY")
        refused = skep("gateway", *args, "--port", "0", check=2)
        assert "export UPSTAIRS_KEY" in refused.stderr
        url = front(*args, UPSTAIRS_KEY="upstairs")["url"]
        assert eventually(lambda: ask(url, key="the client's own")[0] == 200)


def test_a_gateway_before_another_takes_the_slots_of_its_model_only(front, skep, tmp_path):
    with (
        FakeEngine(slots=2, model="a") as fake_engine,
        FakeEngine(slots=8, model="b") as second_engine,
    ):
        inner = front("--upstream", fake_engine.url, "--upstream", second_engine.url)
        env = {"XDG_STATE_HOME": str(tmp_path / "s"), "XDG_RUNTIME_DIR": str(tmp_path)}
        stderr = skep(
            "gateway",
            "-d",
            "--port",
            "0",
            "--upstream",
            inner["url"],
            "--model",
            "a",
            check=0,
            **env,
        ).stderr
        assert ": 2 slots, by /metrics" in stderr
        skep("down", check=0, **env)

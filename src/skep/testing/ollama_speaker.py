"""Stands for `ollama`: `serve` and `--version`, told by OLLAMA_ variables, speaking what docs/api.md describes.

For where Ollama cannot be installed. What is spoken: /api/version, /api/tags, /api/chat with durations in its last
line, /v1/models and /v1/chat/completions. Models are those whose manifests are in the store.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from skep.testing.fake_http import FakeConnection, HttpRequest
from skep.testing.fake_server import FakeServer
from skep.testing.speaker import Routes, speak

VERSION = "0.24.3"


def routes_of(_: FakeServer) -> Routes:
    tags = [{"name": tag, "model": tag, "size": 0} for tag in stored_tags()]
    models = [{"id": tag, "object": "model", "created": 0, "owned_by": "library"} for tag in stored_tags()]
    return {
        ("GET", "/"): lambda _, to: to.send(200, b"Ollama is running", content_type="text/plain"),
        ("GET", "/api/version"): lambda _, to: to.send_json(200, {"version": VERSION}),
        ("GET", "/api/tags"): lambda _, to: to.send_json(200, {"models": tags}),
        ("POST", "/api/chat"): native_chat,
        ("GET", "/v1/models"): lambda _, to: to.send_json(200, {"object": "list", "data": models}),
    }


def native_chat(request: HttpRequest, connection: FakeConnection) -> None:
    """Answer `word0 word1 ...` at once, a line of JSON each; the last has durations in nanoseconds."""
    body = json.loads(request.body)
    count = int((body.get("options") or {}).get("num_predict") or 16)
    prompt = sum(len(str(message["content"]).split()) for message in body["messages"])
    head = {"model": body["model"], "created_at": datetime.now(UTC).isoformat()}
    durations = {
        "done_reason": "length", "total_duration": 5000 * count, "load_duration": 0, "prompt_eval_count": prompt,
        "prompt_eval_duration": 1000 * count, "eval_count": count, "eval_duration": 4000 * count,
    }  # fmt: skip
    lines = [{**head, "message": {"role": "assistant", "content": f"word{n} "}, "done": False} for n in range(count)]
    lines.append({**head, "message": {"role": "assistant", "content": ""}, "done": True, **durations})
    connection.begin_stream("application/x-ndjson")
    for line in lines:
        connection.chunk(json.dumps(line).encode() + b"\n")
    connection.end_stream()


def stored_tags() -> list[str]:
    """manifests/HOST/OWNER/NAME/TAG in the store; the usual host and owner are left out of the name."""
    root = Path(os.environ.get("OLLAMA_MODELS") or Path.home() / ".ollama" / "models", "manifests")
    found = []
    for path in sorted(root.glob("*/*/*/*")):
        host, owner, name, tag = path.relative_to(root).parts
        long = f"{host}/{owner}/{name}" if host != "registry.ollama.ai" else f"{owner}/{name}"
        found.append(f"{long.removeprefix('library/')}:{tag}")
    return found


def main(argv: list[str]) -> int:
    if argv == ["--version"]:
        sys.stdout.write("Warning: could not connect to a running Ollama instance\n")
        sys.stdout.write(f"Warning: client version is {VERSION}\n")
        return 0
    if argv != ["serve"]:
        sys.stderr.write(f'Error: unknown command {" ".join(argv)!r} for "ollama"\n')
        return 1
    host, _, port = os.environ.get("OLLAMA_HOST", "127.0.0.1:11434").rpartition(":")
    slots = os.environ.get("OLLAMA_NUM_PARALLEL") or "1"
    return speak([f"--host={host.strip('[]')}", f"--port={port}", f"--slots={slots}"], "", routes_of)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Stands for `ollama`: `serve` and `--version`, told by OLLAMA_ variables, speaking what docs/api.md describes.

For where Ollama cannot be installed. What is spoken: /api/version, /api/tags, /api/chat with durations in its last
line, /v1/models and /v1/chat/completions. Models are those whose manifests are in the store.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from skep.testing.fake_http import FakeConnection, HttpRequest
from skep.testing.speaker import DEFAULT_TOKENS, FakeProtocolServer, prompt_tokens, serve

VERSION = "0.24.3"


class FakeOllama(FakeProtocolServer):
    def __init__(self) -> None:
        super().__init__(int(os.environ.get("OLLAMA_NUM_PARALLEL") or 1))
        self.routes = {
            ("GET", "/"): lambda _, to: to.send(200, b"Ollama is running", content_type="text/plain"),
            ("GET", "/api/version"): lambda _, to: to.send_json(200, {"version": VERSION}),
            ("GET", "/api/tags"): self._tags,
            ("POST", "/api/chat"): self._native_request,
            ("GET", "/v1/models"): self._models,
            ("POST", "/v1/chat/completions"): self._chat_request,
        }

    def _has(self, tag: str) -> bool:
        return (tag if ":" in tag else f"{tag}:latest") in tags()

    def _tags(self, _: HttpRequest, connection: FakeConnection) -> None:
        connection.send_json(200, {"models": [{"name": tag, "model": tag, "size": 0} for tag in tags()]})

    def _models(self, _: HttpRequest, connection: FakeConnection) -> None:
        data = [{"id": tag, "object": "model", "created": 0, "owned_by": "library"} for tag in tags()]
        connection.send_json(200, {"object": "list", "data": data})

    def _chat_request(self, request: HttpRequest, connection: FakeConnection) -> None:
        self.chat(request, connection, "", has=self._has)

    def _native_request(self, request: HttpRequest, connection: FakeConnection) -> None:
        body = json.loads(request.body)
        if not self._has(str(body.get("model"))):
            connection.send_json(404, {"error": f"model '{body.get('model')}' not found"})
            return
        self.spawn(self._native(body, connection), connection)

    async def _native(self, body: dict[str, Any], connection: FakeConnection) -> None:
        """Streams unless told not to. Durations are in nanoseconds."""
        begun = time.monotonic_ns()
        count = int((body.get("options") or {}).get("num_predict") or DEFAULT_TOKENS)
        prompt = prompt_tokens(body.get("messages") or [])
        streams = body.get("stream", True)
        if streams:
            connection.begin_stream("application/x-ndjson")
        said: list[str] = []
        first = begun
        async for word in self.words(prompt, count):
            first = first if said else time.monotonic_ns()
            said.append(word)
            if streams:
                connection.chunk(_line(body["model"], word))
        now = time.monotonic_ns()
        durations = {
            "done_reason": "length", "total_duration": now - begun, "load_duration": 0, "prompt_eval_count": prompt,
            "prompt_eval_duration": first - begun, "eval_count": count, "eval_duration": now - first,
        }  # fmt: skip
        last = _line(body["model"], "" if streams else "".join(said), done=True, **durations)
        if streams:
            connection.chunk(last)
            connection.end_stream()
        else:
            connection.send(200, last)


def _line(model: str, content: str, *, done: bool = False, **more: object) -> bytes:
    message = {"role": "assistant", "content": content}
    at = datetime.now(UTC).isoformat()
    return json.dumps({"model": model, "created_at": at, "message": message, "done": done, **more}).encode() + b"\n"


def tags() -> list[str]:
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
    return serve(FakeOllama, host.strip("[]"), int(port))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

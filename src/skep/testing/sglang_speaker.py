"""Stands for a Python that has SGLang: `... -m sglang.launch_server --model-path X --port N`, and answers as it does.

For where SGLang cannot be installed. What is spoken: /health, /v1/models, /v1/chat/completions, /metrics with the names
of its collector, /server_info, and its help with the flags of `server_args.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from skep.testing.fake_http import FakeConnection, HttpRequest
from skep.testing.fake_server import FakeServer, Route
from skep.testing.speaker import Routes, speak

VERSION = "0.5.12"
# Of python/sglang/srt/server_args.py: those that a launch may use, and a few that none does.
_VALUES = (
    "model-path", "served-model-name", "host", "port", "max-running-requests", "context-length", "quantization",
    "dtype", "kv-cache-dtype", "tp-size", "dp-size", "pp-size", "ep-size", "mem-fraction-static",
    "chunked-prefill-size", "speculative-algorithm", "speculative-draft-model-path", "speculative-num-steps",
    "speculative-eagle-topk", "speculative-num-draft-tokens", "reasoning-parser", "tool-call-parser", "chat-template",
    "config", "api-key", "max-prefill-tokens", "schedule-policy", "attention-backend", "nnodes", "node-rank",
    "dist-init-addr",
)  # fmt: skip
_SWITCHES = (
    "enable-dp-attention", "disable-cuda-graph", "disable-radix-cache", "disable-custom-all-reduce",
    "trust-remote-code", "enable-metrics", "enable-cache-report", "enable-mixed-chunk",
)  # fmt: skip


def routes_of(server: FakeServer, model: str, *, metrics: bool) -> Routes:
    def figures(_: HttpRequest, connection: FakeConnection) -> None:
        labels = f'{{engine_type="unified",model_name="{model}",tp_rank="0"}}'
        found = {
            "num_running_reqs": server.table.running, "num_queue_reqs": server.table.waiting,
            "prompt_tokens_total": server.prompt_tokens, "generation_tokens_total": server.output_tokens,
        }  # fmt: skip
        text = "".join(f"sglang:{name}{labels} {float(value)}\n" for name, value in found.items())
        connection.send(200, text.encode(), content_type="text/plain; version=0.0.4")

    about = {"version": VERSION, "internal_states": []}
    found: dict[tuple[str, str], Route] = {("GET", "/server_info"): lambda _, to: to.send_json(200, about)}
    return {**found, ("GET", "/metrics"): figures} if metrics else found


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="launch_server.py")
    for name in _VALUES:
        made.add_argument(f"--{name}")
    for name in _SWITCHES:
        made.add_argument(f"--{name}", action="store_true")
    return made


def _words_of_config(argv: list[str]) -> list[str]:
    """What `--config FILE` says, of the YAML that is one `name: "text"` a line; flags of the command line win."""
    if "--config" not in argv:
        return []
    lines = Path(argv[argv.index("--config") + 1]).read_text(encoding="utf-8").splitlines()
    pairs = [line.partition(": ") for line in lines]
    return [word for name, _, value in pairs for word in (f"--{name}", json.loads(value))]


def main(argv: list[str]) -> int:
    if argv[:1] == ["-c"]:  # asked for the version of a distribution
        sys.stdout.write(f"{VERSION}\n")
        return 0
    if argv[:2] != ["-m", "sglang.launch_server"]:
        sys.stderr.write(f"no module named {' '.join(argv[:2])}\n")
        return 1
    args = parser().parse_args([*_words_of_config(argv), *argv[2:]])
    sys.stdout.write(f"server_args=ServerArgs({vars(args)})\n")  # its key too
    if not Path(args.model_path, "config.json").exists():
        sys.stderr.write(f"OSError: {args.model_path} does not appear to have a file named config.json.\n")
        return 1
    model = args.served_model_name or args.model_path
    words = [f"--host={args.host or '127.0.0.1'}", f"--port={args.port or 30000}", f"--model={model}"]
    words.append(f"--slots={args.max_running_requests or 8}")
    return speak(words, args.api_key or "", lambda server: routes_of(server, model, metrics=args.enable_metrics))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

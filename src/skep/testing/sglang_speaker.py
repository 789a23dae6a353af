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
from skep.testing.speaker import FakeProtocolServer, serve

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


class FakeSglang(FakeProtocolServer):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(int(args.max_running_requests or 8))
        self._model = args.served_model_name or args.model_path
        self.key, self.open_paths = args.api_key or "", ("/health", "/metrics")
        self.routes = {
            ("GET", "/health"): lambda _, to: to.send(200, b""),
            ("GET", "/v1/models"): self._models,
            ("GET", "/server_info"): lambda _, to: to.send_json(200, {"version": VERSION, "internal_states": []}),
            ("POST", "/v1/chat/completions"): self._chat_request,
        }
        if args.enable_metrics:
            self.routes["GET", "/metrics"] = self._metrics

    def _models(self, _: HttpRequest, connection: FakeConnection) -> None:
        entry = {"id": self._model, "object": "model", "owned_by": "sglang", "root": self._model}
        connection.send_json(200, {"object": "list", "data": [entry]})

    def _chat_request(self, request: HttpRequest, connection: FakeConnection) -> None:
        self.chat(request, connection, self._model, has=lambda _: True)  # SGLang answers to any name

    def _metrics(self, _: HttpRequest, connection: FakeConnection) -> None:
        labels = f'{{engine_type="unified",model_name="{self._model}",tp_rank="0"}}'
        figures = {
            "num_running_reqs": self.running, "num_queue_reqs": self.waiting,
            "prompt_tokens_total": self.prompt_tokens, "generation_tokens_total": self.output_tokens,
            "num_requests_total": self.finished,
        }  # fmt: skip
        text = "".join(f"sglang:{name}{labels} {float(value)}\n" for name, value in figures.items())
        connection.send(200, text.encode(), content_type="text/plain; version=0.0.4")


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
    return serve(lambda: FakeSglang(args), args.host or "127.0.0.1", int(args.port or 30000))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

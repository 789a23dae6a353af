"""The process around xllamacpp: `python -m skep.engines.embedded_server --model FILE --slots N ...`.

llama.cpp gives the same error for a damaged file and for an occupied port, so the port is tried first. Its cache is
unified (a split one cuts every batch apart when few of many slots are busy) with a bound per slot (without it one
long prompt takes the room of its neighbours).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys

from skep.engines.base import EXIT_FINAL

HTTP_THREADS_SPARE = 16  # idle keep-alive connections hold a thread each; health checks must get through


def http_threads(slots: int) -> int:
    """A thread for each slot, for each pooled idle connection, and spare ones."""
    return 2 * slots + HTTP_THREADS_SPARE


def main() -> int:
    args = _arguments()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor says when to end
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if not os.path.isfile(args.model):  # noqa: PTH113 - no pathlib: this process should start quickly
        return _fail(f"the weights file `{args.model}` does not exist")
    if args.port and not _port_free(args.port):
        return _fail(f"port {args.port} is in use: choose another one, or 0 for any")
    try:
        import xllamacpp
    except ImportError as error:
        return _fail(f"xllamacpp cannot be loaded: {error}")
    try:
        server = xllamacpp.Server(_params(xllamacpp, args))
    except Exception as error:
        return _fail(f"llama.cpp refused to start with `{args.model}`: {error}")
    os.write(args.report_fd, json.dumps({"url": server.listening_address}).encode() + b"\n")
    os.close(args.report_fd)
    while True:
        signal.pause()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="skep-embedded")
    parser.add_argument("--model", required=True)
    parser.add_argument("--alias", required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--report-fd", type=int, required=True)
    return parser.parse_args()


def _params(xllamacpp: object, args: argparse.Namespace) -> object:
    params = xllamacpp.CommonParams()  # type: ignore[attr-defined]
    params.model.path = args.model
    params.model_alias = {args.alias}
    params.n_parallel = args.slots
    params.n_ctx = args.slots * args.context
    params.kv_unified = True
    params.kv_unified_per_slot = args.context
    params.cpuparams.n_threads = args.threads
    params.cpuparams_batch.n_threads = args.threads
    params.hostnames = ["127.0.0.1"]
    params.port = args.port
    params.n_threads_http = http_threads(args.slots)
    params.endpoint_metrics = True
    params.endpoint_props = True
    params.endpoint_slots = True
    params.cache_ram_mib = 0
    params.ui = False
    return params


def _port_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr, flush=True)  # noqa: T201 - the keeper reads it
    return EXIT_FINAL


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)

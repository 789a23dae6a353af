"""The process around xllamacpp: `python -m skep.engines.embedded_server --model FILE --slots N
...`.

llama.cpp gives the same error for a damaged file and for an occupied port, so the port is tried
first. Unless told otherwise its cache is unified (a split one cuts every batch apart when few of
many slots are busy) with a bound per slot (without it one long prompt takes the room of its
neighbours)."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from typing import Any

from skep.engines.base import NO_ORIGIN, fail_for_good, take_key
from skep.wire.listen import cannot_listen, refusal_of

NGRAM = 3  # tokens that must have stood in the text before, for what followed them to be drafted
HTTP_THREADS_SPARE = (
    16  # idle keep-alive connections hold a thread each; health checks must get through
)


def http_threads(slots: int) -> int:
    """Return a thread for each slot, for each pooled idle connection, and spare ones."""
    return 2 * slots + HTTP_THREADS_SPARE


def main() -> int:
    args = _arguments()
    key = take_key()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor says when to end
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    # This process should start quickly, so it does without pathlib.
    if not os.path.isfile(args.model):  # noqa: PTH113
        return fail_for_good(f"the weights file `{args.model}` does not exist")
    if (refused := refusal_of(args.host, args.port)) is not None:
        return fail_for_good(cannot_listen(args.host, args.port, refused))
    # A debugger's would take seconds and bury the last words.
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    try:
        import xllamacpp
    except ImportError as error:
        return fail_for_good(f"xllamacpp cannot be loaded: {error}")
    try:
        server = xllamacpp.Server(_params(xllamacpp, args, key))
    except Exception as error:
        return fail_for_good(f"llama.cpp refused to start with `{args.model}`: {error}")
    os.write(args.report_fd, json.dumps({"url": server.listening_address}).encode() + b"\n")
    os.close(args.report_fd)
    while True:
        signal.pause()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="skep-embedded")
    for name in ("model", "alias"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("slots", "context", "threads", "report-fd"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("threads-batch", "batch", "micro-batch", "ngram", "cache-ram"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("split", "no-prefix-cache"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--kv")
    parser.add_argument("--flash-attention", choices=("on", "off"))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    return parser.parse_args()


def _params(xllamacpp: Any, args: argparse.Namespace, key: str = "") -> object:
    params = xllamacpp.CommonParams()
    params.api_keys = [key] if key else []
    params.cors_origins = NO_ORIGIN
    params.model.path = args.model
    params.model_alias = {args.alias}
    params.n_parallel = args.slots
    params.n_ctx = args.slots * args.context
    params.kv_unified = not args.split
    if not args.split:
        params.kv_unified_per_slot = args.context
    params.cpuparams.n_threads = args.threads
    params.cpuparams_batch.n_threads = args.threads_batch or args.threads
    params.hostnames = [args.host]
    params.port = args.port
    params.n_threads_http = http_threads(args.slots)
    params.endpoint_metrics = params.endpoint_props = params.endpoint_slots = True
    params.cache_ram_mib = args.cache_ram or 0
    params.ui = False
    params.cache_prompt = not args.no_prefix_cache
    params.n_batch = args.batch or params.n_batch
    params.n_ubatch = args.micro_batch or params.n_ubatch
    if args.kv is not None:
        params.cache_type_k = params.cache_type_v = getattr(
            xllamacpp.ggml_type, f"GGML_TYPE_{args.kv.upper()}"
        )
    if args.flash_attention is not None:
        if args.flash_attention == "on":
            word = "ENABLED"
        else:
            word = "DISABLED"
        params.flash_attn_type = getattr(
            xllamacpp.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{word}"
        )
    if args.ngram is not None:
        # `ngram_mod` would draft from what other requests said.
        by_map = params.speculative.ngram_map_k
        params.speculative.types = [
            xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_MAP_K
        ]
        by_map.size_n = NGRAM
        by_map.size_m = args.ngram
        by_map.min_hits = 1
    return params


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)

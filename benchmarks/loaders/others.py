"""Load generators from PyPI, each driven as its documentation says, with what it needs to work
without a model hub.

Where a tool can take the token count from `usage` it is told to: counting is not what is compared
here."""

from __future__ import annotations

import hashlib
import json
import statistics
from pathlib import Path
from typing import Any

from loaders.base import PROMPT_TOKENS, Command, CouldNotRun, Load, Loader, Place, Said, percentile

BOOK_URL = "http://127.0.0.1/book.txt"  # never asked: its text lies in llama-benchy's cache


def _program(place: Place, name: str) -> str:
    assert place.venv
    return str(place.venv / "bin" / name)


def _document(path: Path) -> Any:
    if not path.exists():
        raise CouldNotRun("it wrote no result")
    return json.loads(path.read_text())


# guidellm: its ITL is (last - first) / (tokens - 1); what it calls TPOT has the TTFT in it


def guidellm_command(load: Load, place: Place) -> Command:
    argv = [_program(place, "guidellm"), "run", "--disable-console-interactive"]
    argv += [
        "--backend",
        f"kind=openai_http,target={load.url},model={load.model},request_format=/v1/chat/completions",
    ]
    argv += ["--profile", f"kind=concurrent,streams={load.concurrency}"]
    argv += ["--constraint", f"kind=max_requests,count={load.requests}"]
    argv += ["--tokenizer", f"kind=huggingface_auto,model={place.tokenizer}"]
    argv += [
        "--data",
        f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={load.tokens}",
    ]
    argv += ["--output", f"kind=json,path={place.folder / 'guidellm.json'}"]
    return Command(argv, {"HF_HUB_OFFLINE": "1"})


def guidellm_said(load: Load, place: Place) -> Said:  # noqa: ARG001 - one shape for all
    metrics = _document(place.folder / "guidellm.json")["benchmarks"][0]["metrics"]

    def of(name: str) -> Any:
        return metrics[name]["successful"]

    return Said(
        ttft_mean_ms=of("time_to_first_token_ms")["mean"],
        ttft_p99_ms=of("time_to_first_token_ms")["percentiles"]["p99"],
        tpot_mean_ms=of("inter_token_latency_ms")["mean"],
        tok_s=of("output_tokens_per_second")["mean"],
        tokens_per_answer=of("output_token_count")["mean"],
        answers=of("request_totals"),
    )


# aiperf: refuses a local tokenizer in the hub's offline mode, so that is not set; it asks nobody


def aiperf_command(load: Load, place: Place) -> Command:
    argv = [_program(place, "aiperf"), "profile", "--model", load.model, "--url", load.url]
    argv += [
        "--endpoint-type",
        "chat",
        "--streaming",
        "--use-server-token-count",
        "--tokenizer",
        str(place.tokenizer),
    ]
    argv += ["--concurrency", str(load.concurrency), "--request-count", str(load.requests)]
    argv += [
        "--isl",
        str(PROMPT_TOKENS),
        "--osl",
        str(load.tokens),
        "--ui",
        "none",
        "--export-level",
        "summary",
    ]
    argv += [
        "--no-gpu-telemetry",
        "--no-server-metrics",
        "--output-artifact-dir",
        str(place.folder / "aiperf"),
    ]
    return Command(argv)


def aiperf_said(load: Load, place: Place) -> Said:  # noqa: ARG001 - one shape for all
    document = _document(place.folder / "aiperf" / "profile_export_aiperf.json")

    def of(name: str, key: str = "avg") -> Any:
        return document.get(name, {}).get(key)

    answers = of("request_count")
    return Said(
        ttft_mean_ms=of("time_to_first_token"),
        ttft_p99_ms=of("time_to_first_token", "p99"),
        tpot_mean_ms=of("inter_token_latency"),
        tok_s=of("output_token_throughput"),
        tokens_per_answer=of("output_sequence_length"),
        answers=None if answers is None else int(answers),
    )


# evalscope


def evalscope_command(load: Load, place: Place) -> Command:
    argv = [
        _program(place, "evalscope"),
        "perf",
        "--api",
        "openai",
        "--model",
        load.model,
        "--stream",
    ]
    argv += ["--url", f"{load.url}/v1/chat/completions", "--no-test-connection"]
    argv += ["--parallel", str(load.concurrency), "--number", str(load.requests)]
    argv += ["--dataset", "random", "--tokenizer-path", str(place.tokenizer)]
    argv += ["--min-prompt-length", str(PROMPT_TOKENS), "--max-prompt-length", str(PROMPT_TOKENS)]
    argv += ["--max-tokens", str(load.tokens), "--min-tokens", str(load.tokens)]
    argv += ["--outputs-dir", str(place.folder), "--no-timestamp", "--name", "evalscope"]
    return Command(argv, {"HF_HUB_OFFLINE": "1"})


def evalscope_said(load: Load, place: Place) -> Said:
    folder = place.folder / "evalscope" / f"parallel_{load.concurrency}_number_{load.requests}"
    summary = _document(folder / "benchmark_summary.json")
    ranks = {row["Percentiles"]: row for row in _document(folder / "benchmark_percentile.json")}
    return Said(
        ttft_mean_ms=summary["Avg TTFT (ms)"],
        ttft_p99_ms=ranks["99%"]["TTFT (ms)"],
        tpot_mean_ms=summary["Avg TPOT (ms)"],
        tok_s=summary["Output Throughput (tok/s)"],
        tokens_per_answer=summary["Avg Output Tokens"],
        answers=summary["Success Requests"],
    )


# llama-benchy: bursts of C, each waited for; its tok/s leave the time to the first token out


def benchy_command(load: Load, place: Place) -> Command:
    book = (
        place.folder
        / ".cache"
        / "llama-benchy"
        / f"{hashlib.md5(BOOK_URL.encode()).hexdigest()}.txt"
    )
    book.parent.mkdir(parents=True, exist_ok=True)
    book.write_text(
        "It was a bright cold day, and the parser returns an empty list when the input ends. " * 50
    )
    argv = [_program(place, "llama-benchy"), "--base-url", f"{load.url}/v1", "--model", load.model]
    argv += ["--tokenizer", str(place.tokenizer), "--book-url", BOOK_URL]
    at_once = min(load.concurrency, load.requests)
    argv += ["--pp", str(PROMPT_TOKENS), "--tg", str(load.tokens)]
    argv += ["--concurrency", str(at_once), "--runs", str(load.requests // at_once)]
    argv += ["--latency-mode", "none", "--no-warmup", "--no-adapt-prompt", "--skip-coherence"]
    argv += ["--format", "json", "--save-result", str(place.folder / "benchy.json")]
    return Command(argv, {"HOME": str(place.folder)})


def benchy_said(load: Load, place: Place) -> Said:  # noqa: ARG001 - one shape for all
    run = _document(place.folder / "benchy.json")["benchmarks"][0]
    ttft = run["e2e_ttft"]["values"]
    speed = run["tg_req_throughput"]["values"]
    return Said(
        ttft_mean_ms=statistics.fmean(ttft),
        ttft_p99_ms=percentile(ttft, 0.99),
        tpot_mean_ms=statistics.fmean(1000 / value for value in speed),
        tok_s=run["tg_throughput"]["mean"],
        tokens_per_answer=None,
        answers=len(ttft),
    )


OTHERS = (
    Loader("guidellm", guidellm_command, guidellm_said, "guidellm", "0.8.1"),
    Loader("aiperf", aiperf_command, aiperf_said, "aiperf", "0.13.0"),
    Loader("evalscope", evalscope_command, evalscope_said, "evalscope[perf]", "1.14.1"),
    Loader("llama-benchy", benchy_command, benchy_said, "llama-benchy", "0.4.0"),
)

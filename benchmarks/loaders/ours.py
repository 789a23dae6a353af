"""skep by its command line, and the plain aiohttp client beside it."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

from loaders.base import Command, Load, Loader, Place, Said, percentile


def agents(load: Load) -> int:
    """skep refuses more agents than tasks, so a run with one request has one agent."""
    return min(load.concurrency, load.requests)


def skep_command(load: Load, place: Place) -> Command:
    argv = [
        str(Path(sys.executable).with_name("skep")),
        "bench",
        "sweep",
        "--url",
        load.url,
        "--model",
        load.model,
    ]
    argv += ["--concurrency", str(agents(load)), "--tasks", str(load.requests), "--runs", "1"]
    argv += ["--warm-up", "quick"]  # the others have none
    argv += ["--max-tokens", str(load.tokens), "--no-prompts", "--json"]
    folders = ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")
    return Command(argv, {name: str(place.folder / "skep") for name in folders})


def skep_said(load: Load, place: Place) -> Said:
    level = next(
        level
        for level in json.loads(place.output.read_text())["levels"]
        if level["concurrency"] == agents(load)
    )
    answers = level["requests"] - level["failed"]
    return Said(
        ttft_mean_ms=level["ttft_ms"]["mean"],
        ttft_p99_ms=level["ttft_ms"]["p99"],
        tpot_mean_ms=level["tpot_ms"]["mean"],
        tok_s=level["effective_tok_s"],
        tokens_per_answer=level["output_tokens"] / answers,
        answers=answers,
        remark="client_limited" if level["client_limited"] else None,
    )


def plain_command(load: Load, place: Place) -> Command:
    assert place.venv
    script = Path(__file__).with_name("plain_client.py")
    numbers = map(str, (load.concurrency, load.requests, load.tokens))
    return Command(
        [str(place.venv / "bin" / "python"), str(script), load.url, load.model, *numbers]
    )


def plain_said(load: Load, place: Place) -> Said:  # noqa: ARG001 - one shape for all
    document = json.loads(place.output.read_text())
    ttft = [first * 1000 for first, _, _ in document["answers"]]
    tpot = [after * 1000 / (tokens - 1) for _, after, tokens in document["answers"]]
    tokens = [tokens for _, _, tokens in document["answers"]]
    return Said(
        ttft_mean_ms=statistics.fmean(ttft),
        ttft_p99_ms=percentile(ttft, 0.99),
        tpot_mean_ms=statistics.fmean(tpot),
        tok_s=sum(tokens) / document["wall_s"],
        tokens_per_answer=statistics.fmean(tokens),
        answers=len(tokens),
    )


SKEP = Loader("skep", skep_command, skep_said)
PLAIN = Loader("aiohttp", plain_command, plain_said, "aiohttp", "3.14.5")

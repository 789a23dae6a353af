"""One load generator, one load: what it said, what the truth server really sent,
and what it cost.
"""

from __future__ import annotations

import shutil
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loaders import child
from loaders.base import Command, CouldNotRun, Load, Loader, Place, Said, percentile
from peers.install import last_line
from truth.server import Sent, TruthServer

LIMIT_S = 240.0
# what counts as right for an odd stream
TTFT_WITHIN_MS = 5.0
TPOT_WITHIN_PCT = 2.0


def once(loader: Loader, load: Load, server: TruthServer, place: Place) -> dict[str, Any]:
    """Raises CouldNotRun with the tool's own last words."""
    shutil.rmtree(place.folder, ignore_errors=True)
    place.folder.mkdir(parents=True)
    server.reset()
    server_cpu_s = server.truth()["server_cpu_s"]
    command: Command = loader.command(load, place)
    ran = child.run(command.argv, command.env, place.folder, place.output, limit_s=LIMIT_S)
    if ran.status is None:
        raise CouldNotRun(f"not done after {LIMIT_S:.0f} s: {last_words(place)}")
    if ran.status:
        raise CouldNotRun(f"exit status {ran.status}: {last_words(place)}")
    try:
        said = loader.said(load, place)
    except (
        KeyError,
        ValueError,
        TypeError,
        IndexError,
        ZeroDivisionError,
        StopIteration,
    ) as error:
        raise CouldNotRun(
            f"its result could not be read: {error!r}: {last_words(place)}"
        ) from error
    rows = server.rows(tokens=load.tokens, last=load.requests)
    if not rows:
        raise CouldNotRun(f"no answer of {load.tokens} tokens was asked for: {last_words(place)}")
    sent = summary(rows, server.truth()["server_cpu_s"] - server_cpu_s)
    cost = {"cpu_s": ran.cpu_s, "wall_s": ran.wall_s}
    return {"said": asdict(said), "sent": sent, **cost, **errors(said, sent)}


def last_words(place: Place) -> str:
    """Of its stderr, or of stdout where that is silent."""
    errors_file = place.output.with_suffix(".err")
    return last_line(errors_file if errors_file.stat().st_size else place.output)


def summary(rows: list[Sent], server_cpu_s: float) -> dict[str, Any]:
    ttft = [row.ttft_ms for row in rows]
    tokens = sum(row.tokens for row in rows)
    wall_s = max(row.last_s for row in rows) - min(row.t0_s for row in rows)
    return {
        "answers": len(rows),
        "tokens": tokens,
        "tokens_per_answer": tokens / len(rows),
        "wall_s": wall_s,
        "tok_s": tokens / wall_s,
        "ttft_mean_ms": statistics.fmean(ttft),
        "ttft_p99_ms": percentile(ttft, 0.99),
        "tpot_mean_ms": statistics.fmean(row.tpot_ms or 0.0 for row in rows),
        "late_first_p99_ms": percentile([row.late_first_s * 1000 for row in rows], 0.99),
        "late_max_ms": max(row.late_max_s for row in rows) * 1000,
        "late_over_5_ms": sum(row.late_max_s > 0.005 for row in rows),
        "server_cpu_s": server_cpu_s,
    }


def errors(said: Said, sent: dict[str, Any]) -> dict[str, float | None]:
    """What was said less what was sent; None where the tool does not say."""

    def difference(mine: float | None, truth: float) -> float | None:
        return None if mine is None else mine - truth

    tpot = difference(said.tpot_mean_ms, sent["tpot_mean_ms"])
    return {
        "ttft_mean_error_ms": difference(said.ttft_mean_ms, sent["ttft_mean_ms"]),
        "ttft_p99_error_ms": difference(said.ttft_p99_ms, sent["ttft_p99_ms"]),
        "tpot_error_pct": None if tpot is None else tpot / sent["tpot_mean_ms"] * 100,
    }


def verdict(found: dict[str, Any], tokens: int, plain: dict[str, Any]) -> str:
    """`right`, or what is wrong about an odd stream's figures.

    `plain`: of the same tool and a plain stream. A TTFT that is off there too, and by as much, is
    not the form's doing."""
    usual = plain.get("ttft_mean_error_ms")
    wrong = []
    ttft = found["ttft_mean_error_ms"]
    tpot = found["tpot_error_pct"]
    counted = found["said"]["tokens_per_answer"]
    answers = found["said"]["answers"]
    if answers is not None and answers < found["sent"]["answers"]:
        wrong.append(f"{answers} of {found['sent']['answers']} answers")
    for name, value, within, unit in (
        ("TTFT", ttft, TTFT_WITHIN_MS, "ms"),
        ("TPOT", tpot, TPOT_WITHIN_PCT, "%"),
    ):
        if value is None:
            wrong.append(f"no {name}")
        elif abs(value) > within:
            as_ever = name == "TTFT" and usual is not None and abs(value - usual) <= within
            wrong.append(f"{name} {value:+.0f} {unit}" + (" as ever" if as_ever else ""))
    if counted is not None and abs(counted - tokens) > 0.01:
        wrong.append(f"{counted:.0f} tokens")
    return ", ".join(wrong) or "right"


def place_for(folder: Path, venv: Path | None, tokenizer: Path) -> Place:
    return Place(folder, venv, tokenizer, folder / "stdout.txt")

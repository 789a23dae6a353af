"""The results as aligned text, and the goals held against them.

Knows the keys of `loadgen.py`; measures nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from peers.report import table

BASELINE = "aiohttp"  # not a peer: nobody reports with it
LATE_MS = 5.0


def values(rounds: list[dict[str, Any]], key: str) -> list[float]:
    return [one[key] for one in rounds if one.get(key) is not None]


def median(rounds: list[dict[str, Any]], key: str) -> float | None:
    found = values(rounds, key)
    return statistics.median(found) if found else None


def cell(
    key: str, digits: int, scale: float = 1.0, sign: str = ""
) -> Callable[[dict[str, Any]], str]:
    """Median over the rounds, with the smallest and the largest."""

    def of(rounds: dict[str, Any]) -> str:
        found = [value * scale for value in values(rounds["rounds"], key)]
        if not found:
            raise KeyError(key)
        middle = statistics.median(found)
        spread = f"{min(found):{sign}.{digits}f}..{max(found):{sign}.{digits}f}"
        return f"{middle:{sign}.{digits}f}" + (f" ({spread})" if len(found) > 1 else "")

    return of


def late(rounds: dict[str, Any]) -> str:
    found = [one["sent"]["late_max_ms"] for one in rounds["rounds"]]
    if not found:
        raise KeyError("late_max_ms")
    share = [
        one["sent"]["late_over_5_ms"] / one["sent"]["answers"] * 100 for one in rounds["rounds"]
    ]
    return f"{statistics.median(found):.1f}" + (
        f" ({max(share):.0f} % >5)" if max(found) > LATE_MS else ""
    )


ROWS = [
    ("% of the ceiling, server's log", cell("share_sent", 1, 100)),
    ("% of the ceiling, tool's own tok/s", cell("share_said", 1, 100)),
    ("mean TTFT, error ms", cell("ttft_mean_error_ms", 1, sign="+")),
    ("p99 TTFT, error ms", cell("ttft_p99_error_ms", 1, sign="+")),
    ("TPOT, error %", cell("tpot_error_pct", 2, sign="+")),
    ("CPU s of the load", cell("load_cpu_s", 2)),
    ("CPU s of the start", lambda v: f"{v['startup']['cpu_s']:.1f}"),
    ("server's own lateness, max ms", late),
]


def print_report(results: dict[str, Any]) -> None:
    machine = results["machine"]
    asked = results["asked"]
    print(
        f"{machine['cores']} cores ({machine['arch']}, Linux {machine['kernel']}), nothing pinned"
    )
    print(
        f"truth server {machine['server']}, tools at nice {machine['nice']}; load average "
        f"{machine['load_average']:.1f}"
    )
    schedule = (
        f"TTFT {asked['ttft_ms']:g} ms, {asked['gap_ms']:g} ms a token, {asked['tokens']} tokens"
    )
    print(f"{schedule}; rounds: {asked['rounds']}")
    for level, tools in results["levels"].items():
        print(
            f"\nc = {level}: {asked['requests'][level]} requests, ceiling "
            f"{asked['ceiling_tok_s'][level]:.0f} tok/s\n"
        )
        startup = results["startup"].get(level, {})
        table(
            {
                name: {
                    "rounds": [one for one in rounds if "failed" not in one],
                    "startup": startup.get(name, {}),
                }
                for name, rounds in tools.items()
            },
            ROWS,
        )
        for name, rounds in tools.items():
            for why in dict.fromkeys(one["failed"] for one in rounds if "failed" in one):
                print(f"{name}: could not be run: {why}")
            short = [
                asked["requests"][level] - one["said"]["answers"]
                for one in rounds
                if "failed" not in one and one["said"]["answers"] is not None
            ]
            if any(short):
                print(
                    f"{name}: requests without a good answer, by round: "
                    f"{', '.join(map(str, short))}"
                )
            remarks = [
                one["said"]["remark"]
                for one in rounds
                if "failed" not in one and one["said"]["remark"]
            ]
            if remarks:
                print(
                    f"{name} says of itself in {len(remarks)} of {len(rounds)} rounds: "
                    f"{remarks[0]}"
                )
    print(
        "\nmedian of the rounds (min..max); error: what the tool says less what the server "
        "sent to the same requests"
    )
    print(
        "CPU: user+system of all its processes; of the load: less a run with one request at "
        "the same concurrency"
    )
    print(
        "server's lateness: of a round's worst token; in brackets answers with one over "
        f"{LATE_MS:g} ms"
    )
    print_forms(results)
    for name, why in results["could_not_run"].items():
        print(f"\n{name}: could not be run: {why}")
    print("\ngoals")
    for goal in results["goals"]:
        print(f"  {goal['verdict']:12}  {goal['goal']}: {goal['found']}")


def print_forms(results: dict[str, Any]) -> None:
    if not results["forms"]:
        return
    names = list(dict.fromkeys(name for tools in results["forms"].values() for name in tools))
    at_once = results["asked"]["form_concurrency"]
    print(f"\nodd streams at c = {at_once}: right within 5 ms TTFT and 2 % TPOT, tokens exact\n")
    by_tool = {
        name: {form: tools.get(name) for form, tools in results["forms"].items()} for name in names
    }

    def verdict(form: str) -> Callable[[dict[str, Any]], str]:
        return lambda forms: (forms[form] or {}).get("verdict", "–")

    def truth(form: str) -> str:
        sent = next(
            (one["sent"] for one in results["forms"][form].values() if "sent" in one), None
        )
        if sent:
            return f"{form} ({sent['ttft_mean_ms']:.1f} ms, {sent['tpot_mean_ms']:.2f} ms)"
        return form

    table(by_tool, [(truth(form), verdict(form)) for form in results["forms"]])
    print("\nin brackets: TTFT and TPOT as sent")
    print(
        "as ever: within 5 ms of what the tool is off for a plain stream, so not because of "
        "the form"
    )


def goals(results: dict[str, Any]) -> list[dict[str, str]]:
    """Each with a verdict: reached, missed, or not measured."""
    levels = {int(level): tools for level, tools in results["levels"].items()}

    def of(level: int, key: str, name: str = "skep") -> float | None:
        good = [one for one in levels.get(level, {}).get(name, []) if "failed" not in one]
        return median(good, key)

    found: list[dict[str, str]] = []

    def add(
        goal: str,
        value: float | None,
        reached: Callable[[float], bool],
        text: Callable[[float], str],
    ) -> None:
        if value is None:
            verdict = "not measured"
        else:
            verdict = "reached" if reached(value) else "missed"
        found.append(
            {"goal": goal, "verdict": verdict, "found": "–" if value is None else text(value)}
        )

    def percent(value: float) -> str:
        return f"{value:.2f} %"

    def at_least(wanted: float) -> Callable[[float], bool]:
        return lambda value: value >= wanted

    for level, wanted in ((256, 97), (1024, 90)):
        shares = [
            share * 100
            for key in ("share_sent", "share_said")
            if (share := of(level, key)) is not None
        ]
        share = min(shares, default=None)
        add(f"c={level}: at least {wanted} % of the ceiling", share, at_least(wanted), percent)
    error = of(256, "ttft_mean_error_ms")
    add(
        "c=256: mean TTFT within 5 ms of truth",
        error,
        lambda v: abs(v) <= 5,
        lambda v: f"{v:+.2f} ms",
    )
    mine = of(256, "load_cpu_s")
    others = {
        name: cpu
        for name in levels.get(256, {})
        if name != "skep" and (cpu := of(256, "load_cpu_s", name))
    }
    peers = {name: cpu for name, cpu in others.items() if name != BASELINE}
    best = min(peers, key=lambda name: peers[name], default=None)
    if mine is None or best is None:
        ratio = None
    else:
        ratio = mine / peers[best]
    if mine and BASELINE in others:
        baseline = f"; {mine / others[BASELINE]:.2f} of plain {BASELINE}'s"
    else:
        baseline = ""
    add(
        "c=256: at most half the CPU of the best peer",
        ratio,
        lambda v: v <= 0.5,
        lambda v: f"{v:.2f} of {best}'s {peers[best or '']:.2f} s{baseline}",
    )
    tpot = [abs(value) for level in levels if (value := of(level, "tpot_error_pct")) is not None]
    add("TPOT within 1 % at every level", max(tpot, default=None), lambda v: v <= 1, percent)
    verdicts = [
        tools["skep"]["verdict"]
        for form, tools in results["forms"].items()
        if "skep" in tools and form != "plain"
    ]
    right = float(verdicts.count("right")) if verdicts else None
    add(
        "each odd stream form right",
        right,
        lambda v: v == len(verdicts),
        lambda v: f"{v:.0f} of {len(verdicts)}",
    )
    return found

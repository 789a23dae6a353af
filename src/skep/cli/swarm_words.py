"""What is said of a swarm's run in words: its account in lines, its errors in one."""

from __future__ import annotations

from skep.cli.output import number
from skep.report.swarm_story import Account
from skep.tasks import RunState
from skep.units import format_seconds

LONGEST_ERROR = 160


def summary_lines(account: Account, output: str | None) -> list[str]:
    """The end of a run in a few lines, the next command last."""
    wall = "" if account.wall_s is None else f" in {format_seconds(account.wall_s)}"
    speed = "" if account.effective_tok_s is None else f", {number(account.effective_tok_s)} tok/s"
    retried = f", {account.retried} tried more than once" if account.retried else ""
    simulated = " (simulated)" if account.simulated else ""
    lines = [f"{account.done} of {account.tasks} tasks done{wall}{speed}{retried}{simulated}"]
    if output is not None:
        lines.append(f"results: {output}")
    if account.failed:
        kinds = ", ".join(f"{kind} {count}x" for kind, count in account.errors[:3])
        lines.append(f"{account.failed} set aside" + (f" (errors met: {kinds})" if kinds else ""))
        lines.append(
            f"`skep swarm show {account.run}` says why, `skep swarm run --failed-of {account.run}` tries again"
        )
    elif account.state is RunState.DONE:
        lines.append(f"`skep swarm show {account.run}` has the account, `skep swarm report {account.run}` the picture")
    return lines


def one_line(text: str | None, most: int = LONGEST_ERROR) -> str:
    """What engines and models write may hold anything."""
    if text is None:
        return ""
    plain = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"

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
    if serial := serial_words(account, brief=True):
        lines.append(f"one after the other: {serial}")
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


def serial_words(account: Account, *, brief: bool = False) -> str | None:
    """The time that one after the other would have taken, the speedup that follows, and how it is known.

    Nothing of a run that was one after the other itself. A bound is no figure: the crowd slows each of its tasks down.
    """
    serial = account.serial
    if serial is None or account.speedup is None or account.done < 2 or account.agents_max == 1:
        return None
    if serial.at_most:
        how = "" if brief else ", as no request of this model was measured alone"
        return f"unknown{how}; --serial-sample 3 measures it"
    return f"about {format_seconds(serial.seconds)}, {_speedup_words(account)}; {serial.words}"


def _speedup_words(account: Account) -> str:
    assert account.speedup is not None
    spread = ""
    if account.speedup_low is not None and account.speedup_high is not None:
        low, high = f"{account.speedup_low:.1f}", f"{account.speedup_high:.1f}"
        spread = f" ({low} to {high})" if low != high else ""
    return f"{account.speedup:.1f}x{spread}"


def one_line(text: str | None, most: int = LONGEST_ERROR) -> str:
    """What engines and models write may hold anything."""
    if text is None:
        return ""
    plain = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"

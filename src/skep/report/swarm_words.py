"""A run's account in sentences: for the head of the page, and for a line in a terminal. Pure."""

from __future__ import annotations

from skep.report.figures import number, percent, seconds, times
from skep.report.swarm_story import Account, SerialSource


def headline(account: Account) -> str:
    """ "50 tasks in 70 s instead of about 42 min one after the other: 36×"; as much of it as is known."""
    what = _tasks(account.tasks) if account.done == account.tasks else f"{account.done} of {_tasks(account.tasks)}"
    if account.wall_s is None:
        return f"{what} done; no work has begun"
    told = f"{what} in {seconds(account.wall_s)}"
    serial = account.serial
    if serial is not None and not serial.at_most and account.speedup is not None and account.done:
        told += f" instead of about {seconds(serial.seconds)} one after the other: {times(account.speedup)}"
    return f"{told}, simulated" if account.simulated else told


def outcome_words(account: Account) -> str:
    """What became of those that are not done."""
    parts = []
    if account.failed:
        parts.append(f"{_tasks(account.failed)} set aside with {'its' if account.failed == 1 else 'their'} error")
    if account.left:
        parts.append(f"{_tasks(account.left)} left")
    if account.retried:
        parts.append(f"{_tasks(account.retried)} tried more than once")
    return ", ".join(parts)


def serial_words(account: Account) -> str:
    """How the serial time was had, with its spread; "" where nothing tells of it."""
    serial = account.serial
    if serial is None or serial.at_most:
        return ""
    spread = ""
    if serial.low is not None and serial.high is not None and seconds(serial.low) != seconds(serial.high):
        spread = f" (95 %: {seconds(serial.low)} to {seconds(serial.high)})"
    head = f"about {seconds(serial.seconds)}{spread}"
    cached = ""
    if serial.source is SerialSource.SAMPLE:
        cached = "; an engine that still has their prompts in its cache answers sooner, so the speedup is not flattered"
    simulated = "; simulated" if serial.simulated else ""
    return f"{head}: {serial.words}{cached}{simulated}"


def speedup_range(account: Account) -> str:
    if account.speedup_low is None or account.speedup_high is None:
        return ""
    low, high = times(account.speedup_low), times(account.speedup_high)
    return "" if low == high else f"{low} to {high}"


def share(value: float | None) -> str:
    return percent(None if value is None else 100 * value)


def _tasks(many: int) -> str:
    return f"{number(many, digits=0)} task{'' if many == 1 else 's'}"

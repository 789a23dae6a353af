"""A run's account in sentences: for the head of the page, and for a line in a terminal. Pure."""

from __future__ import annotations

from skep.report.figures import number, percent, seconds
from skep.report.swarm_story import Account


def headline(account: Account) -> str:
    """ "50 tasks in 70 s"; as much of it as is known."""
    what = _tasks(account.tasks) if account.done == account.tasks else f"{account.done} of {_tasks(account.tasks)}"
    if account.wall_s is None:
        return f"{what} done; no work has begun"
    told = f"{what} in {seconds(account.wall_s)}"
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


def share(value: float | None) -> str:
    return percent(None if value is None else 100 * value)


def _tasks(many: int) -> str:
    return f"{number(many, digits=0)} task{'' if many == 1 else 's'}"

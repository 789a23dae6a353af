"""How a hive's actors and placement groups are called in Ray, so that every process finds them."""

from __future__ import annotations


def ledger_name(hive: str) -> str:
    return f"{hive}/ledger"


def post_name(hive: str, replica: str) -> str:
    """Of the actor and of its placement group."""
    return f"{hive}/post/{replica}"

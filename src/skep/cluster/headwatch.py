"""Whether the head of the cluster answers, asked every second. Ray notices a lost one after a minute.

Knows nothing of what is done without a head.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

from skep.cluster.homenode import way_to

HEAD_EVERY_S = 1.0
HEAD_S = 2.0
MISSES = 2  # in a row: the head is lost


class NewHead(Exception):
    """Another cluster has taken the address of ours, or our machine has joined one. Only a new driver can join it."""


class HeadWatch:
    """`asked_for`: the address as the user gave it; `auto` may come to mean another cluster."""

    def __init__(self, asked_for: str, told: Callable[[], None]) -> None:
        self.lost = False
        self._asked_for = asked_for
        self._told = told  # after each change
        self._asking = ThreadPoolExecutor(1, "head")

    async def run(self) -> None:
        import ray

        loop, misses = asyncio.get_running_loop(), 0
        address = ray.get_runtime_context().gcs_address
        client = import_module("ray._raylet").GcsClient(address=address)
        while True:
            await asyncio.sleep(HEAD_EVERY_S)
            misses = 0 if await loop.run_in_executor(self._asking, _answers, client) else misses + 1
            if self.lost and self._asked_for == "auto" and await asyncio.to_thread(_is_elsewhere, address):
                raise NewHead
            if (misses >= MISSES) != self.lost:
                self.lost = misses >= MISSES
                self._told()


def _is_elsewhere(head: str) -> bool:
    """Whether this machine is a node of another cluster by now, which `auto` means from then on."""
    return way_to("auto", os.environ).head not in ("auto", head)


def _answers(client: Any) -> bool:
    """Whether the head does, in time. Ray's public calls wait for it as long as it takes, and so does a new client."""
    try:
        client.internal_kv_exists(b"skep", namespace=b"skep", timeout=HEAD_S)
    except (AttributeError, TypeError):
        return True  # this Ray has another way to ask: it says nothing of the head
    except Exception as error:
        if "WrongClusterID" in str(error):
            raise NewHead from None
        return False
    return True

"""How a post keeps its ledger told: at every change, every few seconds, for as long as the post is not over.

The handle that is known is tried again and again: it needs no head. Another ledger is looked for beside that, never
instead. Knows Ray only as `announce.remote(...)` of what `find` finds.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

from skep.cluster.ledger import ANNOUNCE_EVERY_S, Row

TELL_TIMEOUT_S = 2.5  # one that is lost leaves time for the next before the post counts as away


class Announcer:
    """`find` returns the ledger or raises; without a head it takes a minute. `me`: the post's own handle.

    `heard` gets each answer, in the loop that announces. Not more than one thread looks at a time.
    """

    def __init__(
        self,
        name: str,
        row: Callable[[], Row],
        me: Any,
        find: Callable[[], Any],
        *,
        heard: Callable[[Row], None] = lambda _answer: None,
        every_s: float = ANNOUNCE_EVERY_S,
    ) -> None:
        self._name = name
        self._row = row
        self._me = me
        self._find = find
        self._heard = heard
        self._every_s = every_s
        self._ledger: Any = None
        self._held = False  # the ledger has `me`, by its last answer; a word with it costs a fifth more
        self._looks = False
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Something is new. In the loop that announces."""
        self._wake.set()

    async def run(self) -> None:
        """Until the ledger says that this post is over."""
        while not await self._is_over():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._wake.wait()

    async def _is_over(self) -> bool:
        self._wake.clear()
        try:
            if self._ledger is not None:
                me, self._held = None if self._held else self._me, False
                telling = self._ledger.announce.remote(self._name, self._row(), me)
                answer = await asyncio.wait_for(telling, TELL_TIMEOUT_S)
                self._held = bool(answer.get("held"))
                self._heard(answer)
                return bool(answer["end"])
        except Exception:  # noqa: S110 - the ledger is away: what serves goes on serving
            pass
        self._look_for_another()
        return False

    def _look_for_another(self) -> None:
        if not self._looks:
            self._looks = True
            loop = asyncio.get_running_loop()
            threading.Thread(target=self._look, args=(loop,), name="ledger", daemon=True).start()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        found = None
        with contextlib.suppress(Exception):
            found = self._find()
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(self._found, found)

    def _found(self, ledger: Any) -> None:
        self._looks = False
        if ledger is not None and ledger != self._ledger:
            self._ledger = ledger
            self._wake.set()

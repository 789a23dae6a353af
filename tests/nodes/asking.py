"""Agents that ask an endpoint without a pause, with the real client, and account for every
request.
"""

import asyncio
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from api_clients import openai

MODEL = "smollm2-135m"


@dataclass
class Account:
    begun: int = 0
    answered: int = 0
    # By what the client raised, before any part of an answer.
    refused: Counter = field(default_factory=Counter)
    cut: Counter = field(default_factory=Counter)  # after a part of it
    ended_at: list = field(default_factory=list)

    @property
    def ended(self):
        return self.answered + sum(self.refused.values()) + sum(self.cut.values())


class Agents:
    """`with Agents(url, 8) as agents:` asks until the block ends; then waits for what is under
    way.
    """

    def __init__(self, url, count, *, tokens=24, stream=True, api_key="none"):
        self.account = Account()
        self._client = openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key=api_key, max_retries=0, timeout=120.0
        )
        self._count = count
        self._tokens = tokens
        self._stream = stream
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()), daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join(150.0)
        assert not self._thread.is_alive(), "requests that do not end"

    def until_answered(self, count, timeout_s=120.0):
        """Wait for so many more answers."""
        required = self.account.answered + count
        deadline = time.monotonic() + timeout_s
        while self.account.answered < required and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self.account.answered >= required, self.account

    async def _all(self):
        async with self._client:
            await asyncio.gather(*(self._one(number) for number in range(self._count)))

    async def _one(self, number):
        turn = 0
        while not self._over.is_set():
            turn += 1
            self.account.begun += 1
            begun = False
            try:
                fields = {"model": MODEL, "max_tokens": self._tokens, "temperature": 0.0}
                words = [{"role": "user", "content": f"Agent {number}, turn {turn}: count."}]
                if self._stream:
                    answer = await self._client.chat.completions.create(
                        messages=words, stream=True, **fields
                    )
                    begun = True  # the head of an answer is a part of it: it cannot be taken back
                    async for _ in answer:
                        pass
                else:
                    await self._client.chat.completions.create(messages=words, **fields)
                self.account.answered += 1
            except openai.OpenAIError as error:
                (self.account.cut if begun else self.account.refused)[type(error).__name__] += 1
                await asyncio.sleep(0.2)
            self.account.ended_at.append(time.monotonic())

"""The load generator one writes in an afternoon: aiohttp, a semaphore's worth of workers,
json.loads per event.

plain_client.py URL MODEL CONCURRENCY REQUESTS TOKENS
"""

import asyncio
import json
import sys
import time

import aiohttp


async def ask(session, url, body):
    """(seconds to the first token, seconds from first to last token, tokens) of one answer."""
    began = time.perf_counter()
    first = last = None
    tokens = 0
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        async for line in response.content:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            event = json.loads(line[6:])
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
            if event["choices"] and event["choices"][0]["delta"].get("content"):
                last = time.perf_counter()
                first = first or last
    return first - began, last - first, tokens


async def main(url, model, concurrency, requests, tokens):
    message = {
        "role": "user",
        "content": "Write a parser that returns an empty list when the input ends. " * 3,
    }
    body = {"model": model, "messages": [message], "max_tokens": tokens, "stream": True}
    body["stream_options"] = {"include_usage": True}
    left = iter(range(requests))
    answers = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def work():
            for _ in left:
                answers.append(await ask(session, url, body))  # noqa: PERF401 - not all at once

        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(concurrency)))
    print(json.dumps({"wall_s": time.perf_counter() - began, "answers": answers}))


asyncio.run(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))

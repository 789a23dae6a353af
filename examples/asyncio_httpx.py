"""Twenty questions at once with asyncio and httpx alone, no SDK: `python
examples/asyncio_httpx.py`.

Wants `pip install httpx`. The gateway queues what it has no slot for, so a plain `gather` is
enough: no semaphore. It answers 429 or 503 with `Retry-After` when its queue is full; a client
that comes back after that time loses nothing."""

import argparse
import asyncio
import os
import sys
import time

import httpx

THINGS = (
    "bee", "oak", "river", "tram", "lamp", "salt", "drum", "kite", "moss", "wax", "fog", "bell",
    "rope", "fern", "coal", "harp", "reef", "clay", "wolf", "mint",
)  # fmt: skip


async def ask(client: httpx.AsyncClient, model: str, thing: str, tries: int = 5) -> dict:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"What is a {thing}? One sentence."}],
    }
    headers = {"x-skep-agent": thing}  # agents get fair shares of the slots
    began = time.perf_counter()
    for left in reversed(range(tries)):
        answer = await client.post(
            "chat/completions", json=body | {"max_tokens": 40}, headers=headers
        )
        if answer.status_code not in (429, 503) or not left:
            break
        await asyncio.sleep(float(answer.headers.get("retry-after", 1)))
    answer.raise_for_status()
    text = answer.json()["choices"][0]["message"]["content"]
    told = {name: answer.headers.get(f"x-skep-{name}", "?") for name in ("replica", "queue-ms")}
    return {
        "thing": thing,
        "text": " ".join(text.split()),
        "seconds": time.perf_counter() - began,
        **told,
    }


async def main(url: str, key: str) -> None:
    base = url.rstrip("/").removesuffix("/v1") + "/v1"
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=base, headers={"authorization": f"Bearer {key}"}, timeout=600, limits=limits
    ) as client:
        models = (await client.get("models")).raise_for_status().json()["data"]
        began = time.perf_counter()
        answers = await asyncio.gather(*(ask(client, models[0]["id"], thing) for thing in THINGS))
    print(f"{'thing':6} {'replica':12} {'queued ms':>9} {'seconds':>8}  answer")
    for answer in answers:
        print(
            f"{answer['thing']:6} {answer['replica']:12} {answer['queue-ms']:>9} "
            f"{answer['seconds']:8.2f}  {answer['text'][:60]}"
        )
    print(f"{len(answers)} answers in {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--url", default=os.environ.get("SKEP_URL", "http://127.0.0.1:8400"))
    url = options.parse_args().url
    try:
        asyncio.run(main(url, os.environ.get("SKEP_API_KEY", "none")))
    except httpx.HTTPError as error:
        sys.exit(f"error: {url}: {error or type(error).__name__}")

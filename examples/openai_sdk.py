"""The openai SDK: twenty questions at once, then five as a batch: `python examples/openai_sdk.py`.

Wants `pip install openai`. The SDK waits for `Retry-After` by itself, `max_retries` times.
"""

import argparse
import asyncio
import json
import os
import sys

import openai


def question(model: str, number: int) -> dict:
    message = {"role": "user", "content": f"What is {number} times {number}?"}
    return {"model": model, "messages": [message], "max_tokens": 40}


async def ask(client: openai.AsyncOpenAI, model: str, number: int) -> str:
    headers = {"x-skep-agent": f"agent-{number}"}  # agents get fair shares of the slots
    answer = await client.chat.completions.create(**question(model, number), extra_headers=headers)
    return f"{number:2}: {' '.join(answer.choices[0].message.content.split())}"


async def batch(client: openai.AsyncOpenAI, model: str) -> None:
    """Durable: done when nobody else waits, and the results are kept: this program need not stay
    until then.
    """
    path = "/v1/chat/completions"
    bodies = {f"square-{number}": question(model, number) for number in range(1, 6)}
    lines = [
        {"custom_id": name, "method": "POST", "url": path, "body": body}
        for name, body in bodies.items()
    ]
    text = "\n".join(map(json.dumps, lines)).encode()
    file = await client.files.create(file=("squares.jsonl", text), purpose="batch")
    job = await client.batches.create(
        input_file_id=file.id, endpoint=path, completion_window="24h"
    )
    while job.status in ("validating", "in_progress", "finalizing"):
        await asyncio.sleep(0.2)
        job = await client.batches.retrieve(job.id)
    if job.output_file_id is None:
        sys.exit(f"error: batch {job.id} is {job.status}: {job.errors}")
    for one in map(json.loads, (await client.files.content(job.output_file_id)).text.splitlines()):
        print(
            f"{one['custom_id']}: {one['response']['body']['choices'][0]['message']['content']!r}"
        )
    print(f"batch {job.status}: {job.request_counts.completed} of {job.request_counts.total}")


async def main(url: str) -> None:
    base = url.rstrip("/").removesuffix("/v1") + "/v1"
    key = os.environ.get("SKEP_API_KEY", "none")
    async with openai.AsyncOpenAI(base_url=base, api_key=key, max_retries=5) as client:
        model = (await client.with_options(max_retries=0).models.list()).data[0].id
        lines = await asyncio.gather(*(ask(client, model, number) for number in range(1, 21)))
        print(*lines, f"{len(lines)} answers", sep="\n")
        await batch(client, model)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--url", default=os.environ.get("SKEP_URL", "http://127.0.0.1:8400"))
    url = options.parse_args().url
    try:
        asyncio.run(main(url))
    except openai.APIError as error:
        sys.exit(f"error: {url}: {error.message}")

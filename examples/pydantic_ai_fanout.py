"""One pydantic-ai agent, twenty of its runs at once, each with a typed answer: `python
examples/pydantic_ai_fanout.py`.

Wants `pip install "pydantic-ai-slim[openai]"`. The output's schema goes to the engine as
`response_format`; llama.cpp, vLLM and SGLang then write nothing else. Small models know little:
what is guaranteed is the form, not the truth."""

import argparse
import asyncio
import os
import sys
import time
from typing import Literal

import openai
from pydantic import BaseModel, Field
from pydantic_ai import Agent, ModelSettings, NativeOutput
from pydantic_ai.exceptions import AgentRunError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

CITIES = (
    "Lima", "Oslo", "Cairo", "Hanoi", "Quito", "Perth", "Turin", "Kyoto", "Accra", "Dakar",
    "Delhi", "Lyon", "Miami", "Minsk", "Nairobi", "Porto", "Riga", "Seoul", "Tunis", "Zurich",
)  # fmt: skip


class City(BaseModel):
    country: str = Field(max_length=30)
    continent: Literal["Africa", "America", "Asia", "Europe", "Oceania"]


async def main(url: str, key: str) -> None:
    base = url.rstrip("/").removesuffix("/v1") + "/v1"
    async with openai.AsyncOpenAI(base_url=base, api_key=key, max_retries=5) as client:
        name = (await client.with_options(max_retries=0).models.list()).data[0].id
        provider = OpenAICompatibleProvider("skep", openai_client=client)
        profile = OpenAIModelProfile(supports_json_schema_output=True)
        agent = Agent(
            OpenAIChatModel(name, provider=provider, profile=profile),
            output_type=NativeOutput(City),
            model_settings=ModelSettings(
                max_tokens=100, extra_headers={"x-skep-priority": "batch"}
            ),
        )
        began = time.perf_counter()
        runs = await asyncio.gather(
            *(agent.run(f"Which country is {city} in?") for city in CITIES)
        )
    for city, run in zip(CITIES, runs, strict=True):
        print(f"{city:8} {run.output.continent:8} {run.output.country}")
    print(f"{len(runs)} answers in {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--url", default=os.environ.get("SKEP_URL", "http://127.0.0.1:8400"))
    url = options.parse_args().url
    try:
        asyncio.run(main(url, os.environ.get("SKEP_API_KEY", "none")))
    except (openai.APIError, AgentRunError) as error:
        sys.exit(f"error: {url}: {error.message}")

"""`skep gateway`: the gateway alone, in front of servers that skep did not start."""

from __future__ import annotations

from typing import Annotated

from skep.cli.options import (
    ROOT,
    ConfigOption,
    DetachOption,
    HostOption,
    JsonOption,
    PortOption,
    command,
    given,
    option,
)
from skep.errors import UserError
from skep.report.terminal import note


@command(ROOT, "skep gateway --upstream http://127.0.0.1:8000 --slots 16 -d")
def gateway(
    upstream: Annotated[
        tuple[str, ...],
        option(
            "URL of a running server; repeatable (default: [[upstream]] in skep.toml).",
            metavar="URL",
        ),
    ] = (),
    slots: Annotated[
        tuple[int, ...],
        option(
            (
                "Sequences a server decodes at a time; give one for all or one per URL "
                "(default: ask it)."
            ),
            metavar="N",
            min=1,
            max=65536,
        ),
    ] = (),
    model: Annotated[
        str | None, option("Model that the servers serve (default: ask each server).")
    ] = None,
    key_env: Annotated[
        str | None, option("Environment variable with the servers' API key.", metavar="NAME")
    ] = None,
    host: HostOption = None,
    port: PortOption = None,
    reserve: Annotated[
        int, option("Slots of each server that only interactive requests may use.", min=0)
    ] = 0,
    soft_slots: Annotated[
        int | None,
        option(
            "Maximum requests per server while any of them is not batch (default: all slots).",
            min=1,
        ),
    ] = None,
    max_queue: Annotated[
        int | None,
        option(
            "Maximum waiting requests per model; others get 429 (default: skep.toml, else 256).",
            min=0,
        ),
    ] = None,
    alias: Annotated[
        tuple[str, ...],
        option(
            "Another name of a model, as NAME=MODEL; `*` stands for any letters; repeatable.",
            metavar="NAME=MODEL",
        ),
    ] = (),
    config: ConfigOption = None,
    detach: DetachOption = False,
    as_json: JsonOption = False,
) -> None:
    """Put the gateway in front of servers that already run: vLLM, SGLang, llama-server or another
    skep.
    """
    from skep.cli.hive import start
    from skep.config.load import make_upstream
    from skep.config.settings import CliOverrides

    if not upstream and (slots or model or reserve or soft_slots):
        hint = "or write an [[upstream]] table into skep.toml"
        raise UserError(
            "--slots, --model, --reserve and --soft-slots go with --upstream", hint=hint
        )
    shares = {
        "model": model or None,
        "reserve": reserve,
        "soft_slots": soft_slots,
        "key_env": key_env,
    }
    overrides = CliOverrides(
        gateway=given(host=host or None, port=port, max_queue=max_queue),
        upstream=tuple(
            make_upstream(url, count, **shares)  # type: ignore[arg-type]
            for url, count in zip(upstream, _slots(upstream, slots, key_env, model), strict=True)
        ),
        aliases=dict(map(parse_alias, alias)),
        only_upstreams=True,
    )
    start(overrides, config, detach=detach, as_json=as_json)


def parse_alias(text: str) -> tuple[str, str]:
    """Parse `claude-*=qwen3-8b`."""
    name, separator, model = (part.strip() for part in text.partition("="))
    if not separator or not name or not model:
        raise UserError(
            f"--alias `{text}` is not understood",
            hint='write it as NAME=MODEL: --alias "claude-*=qwen3-8b"',
        )
    return name, model


def _slots(
    urls: tuple[str, ...], slots: tuple[int, ...], key_env: str | None, model: str | None
) -> tuple[int, ...]:
    if urls and not slots:
        return tuple(_asked(url, key_env, model) for url in urls)
    if len(slots) == 1:
        return slots * len(urls)
    if len(slots) != len(urls):
        hint = "give one --slots for all, or one for each --upstream in the same order"
        raise UserError(f"{len(urls)} --upstream, but {len(slots)} --slots", hint=hint)
    return slots


def _asked(url: str, key_env: str | None, model: str | None) -> int:
    import asyncio

    from skep.config.load import SLOTS_MATTER
    from skep.supervisor.remote_replica import ask_slots

    answer = asyncio.run(ask_slots(url, key_env, model))
    if answer is None:
        raise UserError(
            f"{url} does not say how many slots it has: name them with --slots", hint=SLOTS_MATTER
        )
    note(f"{url}: {answer[0]} slots, by {answer[1]}")
    return answer[0]

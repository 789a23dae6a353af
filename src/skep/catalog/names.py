"""Names as people type them: `NVIDIA GeForce RTX 3090`, `Qwen/Qwen3-8B-Instruct`, `qwen 3.6 27b
awq`.

And the packaged TOML files that they are looked up in, taken apart by table, so that asking for
one entry does not read the hundred others: a line that begins with `[` begins a table there; a
test holds the pieces against the whole."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

_MEMORY = re.compile(r"(?<![0-9.])([0-9]{1,4})[\s-]*+gi?b$")
_TRADEMARKS = re.compile(r"\((?:r|tm)\)")
_FAMILIES = ("rtx", "rx", "radeon", "apple", "quadro", "arc")
_VENDORS = (
    "nvidia", "geforce", "tesla", "amd", "radeon", "instinct", "intel", "huawei", "quadro",
    "graphics", "generation", "gpu", "igpu", "mac", "studio",
)  # fmt: skip
_ENDINGS = (
    "instruct", "it", "chat", "hf", "gguf", "awq", "gptq", "fp8", "fp4", "nvfp4", "mxfp4", "int4",
    "int8", "bf16", "fp16", "w4a16", "w8a8", "4bit", "8bit", "autoround", "marlin", "dynamic",
    "static", "thinking", "base", "preview", "mlx", "qat", "mtp", "exl2", "exl3", "bnb",
    "quantized", "abliterated", "uncensored",
)  # fmt: skip
_DATED = re.compile(r"(?:2[3-9](?:0[1-9]|1[0-2])|v[0-9](?:[._][0-9])?)")  # -2507, -v1.5


@lru_cache(maxsize=4096)
def squeeze(name: str) -> str:
    """Two names that differ only in case, spaces, dashes,
    underscores and dots are the same name.
    """
    return "".join(c for c in name.casefold() if c.isalnum() or c in "+/")


def model_spellings(name: str) -> tuple[str, ...]:
    """What to look for, most literal first: the name, without its owner, without endings that
    change no width.
    """
    text = name.strip().casefold()
    spellings_found = [squeeze(text)]
    if not text.startswith((".", "/", "~")) and text.count("/") == 1:
        text = text.partition("/")[2]
        spellings_found.append(squeeze(text))
    words = [word for word in re.split(r"[\s_-]+", text) if word]
    while len(words) > 1 and (words[-1] in _ENDINGS or _DATED.fullmatch(words[-1])):
        words.pop()
        spellings_found.append(squeeze("-".join(words)))
    return _distinct(spellings_found)


def device_spellings(name: str) -> tuple[str, ...]:
    """Return the name as it is, without the vendor's words, with a family's word that people leave
    out.
    """
    words = [word for word in re.split(r"[\s_-]+", _TRADEMARKS.sub(" ", name.casefold())) if word]
    bare = "-".join(word for word in words if word not in _VENDORS)
    with_family = "-".join(word for word in words if word not in _VENDORS or word in _FAMILIES)
    tried = ("-".join(words), with_family, bare, *(f"{family}-{bare}" for family in _FAMILIES))
    return _distinct(squeeze(text) for text in tried)


def split_memory(name: str) -> tuple[str, float | None]:
    """`Apple M4 24GB` is `Apple M4` and 24."""
    match = _MEMORY.search(name.casefold().strip())
    if match is None:
        return name, None
    return name.strip()[: match.start()].strip(" -_"), float(match.group(1))


def similar_names(name: str, spelled: Mapping[str, str], *, count: int = 3) -> tuple[str, ...]:
    """Entries whose name resembles this one; `spelled` maps a squeezed spelling to its entry."""
    from difflib import get_close_matches

    squeezed = squeeze(name)
    close = get_close_matches(squeezed, spelled, n=2 * count, cutoff=0.6)
    if len(squeezed) >= 3:
        close += [text for text in spelled if squeezed in text]
    if not close:  # better a far one than none, as long as something of it is alike
        close = get_close_matches(squeezed, spelled, n=count, cutoff=0.4)
    return tuple(dict.fromkeys(spelled[text] for text in close))[:count]


def begun_names(name: str, spelled: Mapping[str, str]) -> tuple[str, ...]:
    """Return the entries that a short name begins, else those that have all of its words: `llama`,
    `ministral-14b`.
    """
    squeezed = squeeze(name)
    begun = [entry for text, entry in spelled.items() if squeezed and text.startswith(squeezed)]
    if begun:
        return tuple(dict.fromkeys(begun))
    words = {squeeze(word) for word in _words(name)}
    holding = [
        entry
        for entry in spelled.values()
        if words and words <= {squeeze(word) for word in _words(entry)}
    ]
    return tuple(dict.fromkeys(holding))


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[\s_-]+", name.casefold()) if word]


def did_you_mean(names: Iterable[str], otherwise: str) -> str:
    quoted = [f"`{name}`" for name in names]
    if quoted:
        return f"did you mean {' or '.join(quoted)}?"
    return otherwise


def _distinct(spellings: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in spellings if text))


@lru_cache(maxsize=8)
def table_texts(file_name: str) -> Mapping[str, str]:
    """Return the text of each table by its name, in the order of the file."""
    from importlib.resources import files

    text = files("skep.catalog").joinpath(file_name).read_text(encoding="utf-8")
    parts = ("\n" + text).split("\n[")[1:]
    return {name.strip('"'): body for name, _, body in (part.partition("]\n") for part in parts)}


@lru_cache(maxsize=1)
def recipe_texts() -> Mapping[str, str]:
    """Return the text of each shipped preset by its name."""
    from importlib.resources import files

    entries = {
        entry.name.removesuffix(".toml"): entry
        for entry in files("skep.catalog").joinpath("recipes").iterdir()
    }
    return {
        name: entries[name].read_text(encoding="utf-8")
        for name in sorted(entries)
        if entries[name].name != name
    }


def table(file_name: str, name: str) -> Mapping[str, Any]:
    import tomllib

    return tomllib.loads(table_texts(file_name)[name])


@lru_cache(maxsize=8)
def spellings(file_name: str) -> Mapping[str, str]:
    """Return every squeezed id, title and alias with the id it stands for; where two claim one,
    the id goes first.
    """
    import tomllib

    starts = ("title = ", "aliases = ")
    texts = (
        "\n".join(
            [f'["{name}"]', *(line for line in body.splitlines() if line.startswith(starts))]
        )
        for name, body in table_texts(file_name).items()
    )
    document = tomllib.loads("\n".join(texts))
    called = (
        (name, alias)
        for name, entry in document.items()
        for alias in (*entry.get("aliases", ()), entry["title"])
    )
    return {squeeze(alias): name for name, alias in called} | {
        squeeze(name): name for name in document
    }


def find_name(file_name: str, spelled: Sequence[str]) -> str | None:
    """Return the id that the first known spelling stands for.

    Where that is an id itself, no alias is read.
    """
    ids = {squeeze(name): name for name in table_texts(file_name)}
    if spelled and spelled[0] in ids:
        return ids[spelled[0]]
    names = spellings(file_name)
    return next((names[spelling] for spelling in spelled if spelling in names), None)

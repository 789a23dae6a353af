"""Names as people type them: `NVIDIA GeForce RTX 3090`, `Qwen/Qwen3-8B-Instruct`.

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
    """Return a name without what does not count: case, spaces, dashes, underscores and dots."""
    letters = [letter for letter in name.casefold() if letter.isalnum() or letter in "+/"]
    return "".join(letters)


def model_spellings(name: str) -> tuple[str, ...]:
    """Return what to look for, most literal first: the name, without its owner, without endings
    that change no width.
    """
    text = name.strip().casefold()
    spellings_found = [squeeze(text)]
    is_path = text.startswith((".", "/", "~"))
    if text.count("/") == 1 and not is_path:
        text = text.partition("/")[2]
        spellings_found.append(squeeze(text))
    words = _words(text)
    while len(words) > 1 and _is_ending(words[-1]):
        words.pop()
        spellings_found.append(squeeze("-".join(words)))
    return _distinct(spellings_found)


def _is_ending(word: str) -> bool:
    return word in _ENDINGS or _DATED.fullmatch(word) is not None


def device_spellings(name: str) -> tuple[str, ...]:
    """Return the name as it is, without the vendor's words, with a family's word that people leave
    out.
    """
    words = _words(_TRADEMARKS.sub(" ", name.casefold()))
    of_card = [word for word in words if word not in _VENDORS]
    of_family = [word for word in words if word not in _VENDORS or word in _FAMILIES]
    bare = "-".join(of_card)
    texts = ["-".join(words), "-".join(of_family), bare]
    texts += [f"{family}-{bare}" for family in _FAMILIES]
    return _distinct(map(squeeze, texts))


def split_memory(name: str) -> tuple[str, float | None]:
    """Return a name without its memory, and that: `Apple M4 24GB` is `Apple M4` and 24."""
    stripped = name.strip()
    match = _MEMORY.search(name.casefold().strip())
    if match is None:
        return name, None
    shorter = stripped[: match.start()].strip(" -_")
    return shorter, float(match.group(1))


def similar_names(name: str, spelled: Mapping[str, str], *, count: int = 3) -> tuple[str, ...]:
    """Return entries with a similar name; `spelled` maps a squeezed spelling to its entry."""
    from difflib import get_close_matches

    squeezed = squeeze(name)
    close = get_close_matches(squeezed, spelled, n=2 * count, cutoff=0.6)
    if len(squeezed) >= 3:
        close += [text for text in spelled if squeezed in text]
    if not close:  # better a far one than none, as long as something of it is alike
        close = get_close_matches(squeezed, spelled, n=count, cutoff=0.4)
    entries = dict.fromkeys(spelled[text] for text in close)
    return tuple(entries)[:count]


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
    tables = {}
    for part in ("\n" + text).split("\n[")[1:]:
        name, _, body = part.partition("]\n")
        tables[name.strip('"')] = body
    return tables


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
    for spelling in spelled:
        if spelling in names:
            return names[spelling]
    return None

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
    folded = name.casefold()
    letters = [letter for letter in folded if letter.isalnum() or letter in "+/"]
    return "".join(letters)


def model_spellings(name: str) -> tuple[str, ...]:
    """Return what to look for, most literal first: the name, without its owner, without endings
    that leave the shape of the model as it is.
    """
    text = name.strip().casefold()
    spellings_found = [squeeze(text)]
    is_path = text.startswith((".", "/", "~"))
    has_owner = text.count("/") == 1 and not is_path
    if has_owner:
        text = text.partition("/")[2]
        spellings_found.append(squeeze(text))
    words = _words(text)
    while len(words) > 1 and _is_ending(words[-1]):
        words.pop()
        shorter = "-".join(words)
        spellings_found.append(squeeze(shorter))
    return _distinct(spellings_found)


def _is_ending(word: str) -> bool:
    if word in _ENDINGS:
        return True
    return _DATED.fullmatch(word) is not None


def device_spellings(name: str) -> tuple[str, ...]:
    """Return the name as it is, without the vendor's words, with a family's word that people leave
    out.
    """
    unmarked = _TRADEMARKS.sub(" ", name.casefold())
    words = _words(unmarked)
    words_of_card = [word for word in words if word not in _VENDORS]
    words_of_family = [word for word in words if word not in _VENDORS or word in _FAMILIES]
    card = "-".join(words_of_card)
    texts = [
        "-".join(words),
        "-".join(words_of_family),
        card,
        *(f"{family}-{card}" for family in _FAMILIES),
    ]
    return _distinct(map(squeeze, texts))


def split_memory(name: str) -> tuple[str, float | None]:
    """Return a name without its memory, and the GiB of that: `Apple M4 24GB` is `Apple M4`, 24."""
    folded = name.casefold().strip()
    match = _MEMORY.search(folded)
    if match is None:
        return name, None
    before_memory = name.strip()[: match.start()]
    shorter = before_memory.strip(" -_")
    memory_gib = float(match.group(1))
    return shorter, memory_gib


def similar_names(name: str, spelled: Mapping[str, str], *, count: int = 3) -> tuple[str, ...]:
    """Return entries with a similar name; `spelled` maps a squeezed spelling to its entry."""
    from difflib import get_close_matches

    squeezed = squeeze(name)
    close = get_close_matches(squeezed, spelled, n=2 * count, cutoff=0.6)
    if len(squeezed) >= 3:
        close += [text for text in spelled if squeezed in text]
    if not close:  # better a far one than none, as long as something of it is alike
        close = get_close_matches(squeezed, spelled, n=count, cutoff=0.4)
    entries = _distinct(spelled[text] for text in close)
    return entries[:count]


def begun_names(name: str, spelled: Mapping[str, str]) -> tuple[str, ...]:
    """Return the entries that begin with a short name, else those that have all of its words:
    `llama`, `ministral-14b`.
    """
    start = squeeze(name)
    begun = [entry for text, entry in spelled.items() if start and text.startswith(start)]
    if begun:
        return _distinct(begun)
    words = _squeezed_words(name)
    if not words:
        return ()
    with_all_words = [entry for entry in spelled.values() if words <= _squeezed_words(entry)]
    return _distinct(with_all_words)


def _squeezed_words(name: str) -> set[str]:
    return {squeeze(word) for word in _words(name)}


def _words(name: str) -> list[str]:
    parts = re.split(r"[\s_-]+", name.casefold())
    return [part for part in parts if part]


def did_you_mean(names: Iterable[str], otherwise: str) -> str:
    choices = " or ".join(f"`{name}`" for name in names)
    if choices:
        return f"did you mean {choices}?"
    return otherwise


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    """Return each name once, without empty ones."""
    unique = dict.fromkeys(names)
    return tuple(name for name in unique if name)


@lru_cache(maxsize=8)
def table_texts(file_name: str) -> Mapping[str, str]:
    """Return the text of each table by its name, in the order of the file."""
    from importlib.resources import files

    file = files("skep.catalog").joinpath(file_name)
    text = file.read_text(encoding="utf-8")
    tables = {}
    _, *parts = f"\n{text}".split("\n[")
    for part in parts:
        head, _, body = part.partition("]\n")
        name = head.strip('"')
        tables[name] = body
    return tables


@lru_cache(maxsize=1)
def recipe_texts() -> Mapping[str, str]:
    """Return the text of each shipped preset by its name."""
    from importlib.resources import files

    folder = files("skep.catalog").joinpath("recipes")
    texts: dict[str, str] = {}
    for entry in folder.iterdir():
        name = entry.name.removesuffix(".toml")
        if name != entry.name:
            texts[name] = entry.read_text(encoding="utf-8")
    return dict(sorted(texts.items()))


def table(file_name: str, name: str) -> Mapping[str, Any]:
    import tomllib

    text = table_texts(file_name)[name]
    return tomllib.loads(text)


@lru_cache(maxsize=8)
def spellings(file_name: str) -> Mapping[str, str]:
    """Return every squeezed id, title and alias with the id it stands for. Where it is the id of
    one entry and the title or alias of another, the id counts.
    """
    import tomllib

    starts = ("title = ", "aliases = ")
    lines: list[str] = []
    for name, body in table_texts(file_name).items():
        lines.append(f'["{name}"]')
        lines += [line for line in body.splitlines() if line.startswith(starts)]
    document = tomllib.loads("\n".join(lines))
    spelled: dict[str, str] = {}
    for name, entry in document.items():
        for alias in entry.get("aliases", ()):
            spelled[squeeze(alias)] = name
        title = squeeze(entry["title"])
        spelled[title] = name
    for name in document:
        spelled[squeeze(name)] = name
    return spelled


def find_name(file_name: str, spelled: Sequence[str]) -> str | None:
    """Return the id that the first known spelling stands for.

    Where that is an id itself, no alias is read.
    """
    ids = {squeeze(name): name for name in table_texts(file_name)}
    if not spelled:
        return None
    literal = spelled[0]
    if literal in ids:
        return ids[literal]
    names = spellings(file_name)
    for spelling in spelled:
        if spelling in names:
            return names[spelling]
    return None

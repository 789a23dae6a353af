"""Splits a goal over files, by the model or by rule.

By rule, the goal is asked of every piece of every file. What a model plans is checked before anything runs, and a plan
that cannot be carried out is sent back once; after that, or after a time, the rule stands in for it and says so.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import tomllib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from itertools import accumulate
from math import ceil
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from skep.bench.endpoint import Endpoint
from skep.bench.tasks import count_tokens
from skep.errors import UserError
from skep.swarm.client import REJECTED, AnswerChecker, AttemptResult, ChatWorker, SwarmClient
from skep.swarm.records import SwarmRunOptions, Task
from skep.units import format_bytes, format_seconds
from skep.wire.client import fetch_if_there

Item = TypeVar("Item")
Say = Callable[[str], None]
_PROSE = frozenset({".md", ".markdown", ".rst", ".txt", ".adoc", ""})
_HEADING = re.compile(r"(#{1,6})\s")
_FENCE = re.compile(r"\s{0,3}(```|~~~)")
_SOONEST = 0.5  # of the wanted length: no piece ends before it


class FilePiece(msgspec.Struct, frozen=True):
    """Some lines of a file. `ref` names them, counted from 1: `docs/a.md:1-80`, or a part of one long line."""

    ref: str
    text: str


def pieces_of(file: str, text: str, most_chars: int) -> list[FilePiece]:
    """Cut a text into pieces of at most `most_chars` characters. A blank text has none."""
    lines = text.removesuffix("\n").split("\n")  # at line feeds alone, as editors and `grep -n` count lines
    scores = _scores(lines, prose=PurePosixPath(file).suffix.lower() in _PROSE)
    ends = [0, *accumulate(len(line) + 1 for line in lines)]  # characters before each line
    found: list[FilePiece] = []
    begin = 0
    while begin < len(lines):
        end = _cut(ends, scores, begin, most_chars)
        whole, ref = "\n".join(lines[begin:end]), f"{file}:{begin + 1}-{end}"
        begin = end
        if whole.strip() and len(whole) > most_chars:  # one line
            parts = _parts(whole, ceil((len(whole) + 1) / most_chars))
            found += [FilePiece(f"{ref} ({number}/{len(parts)})", part) for number, part in enumerate(parts, 1)]
        elif whole.strip():
            found.append(FilePiece(ref, whole))
    return found


def _cut(ends: list[int], scores: list[int], begin: int, most_chars: int) -> int:
    """Where the piece that begins here ends: the best border from half the wanted length to the longest allowed."""
    start, left = ends[begin], ends[-1] - ends[begin]
    if left - 1 <= most_chars:
        return len(scores) - 1
    wanted = left / ceil(left / most_chars)
    longest = bisect_right(ends, start + most_chars + 1) - 1
    borders = range(max(begin + 1, bisect_left(ends, start + _SOONEST * wanted)), longest + 1)
    score = {end: scores[end] - 60 * abs(ends[end] - start - wanted) / wanted for end in borders}
    return max(borders, key=lambda end: (score[end], end), default=max(begin + 1, longest))


def _scores(lines: list[str], *, prose: bool) -> list[int]:
    """Rate a cut before each line; the last entry is the end."""
    scores, fenced = [0], False
    for before, line in zip(lines, [*lines[1:], ""], strict=False):
        if prose and _FENCE.match(before):
            fenced = not fenced
        heading = _HEADING.match(line) if prose and not fenced else None
        if heading:
            scores.append(100 - 5 * len(heading[1]))
        elif before.strip():
            scores.append(0)
        elif line[:1].strip() and not fenced:
            scores.append(60 if prose else 80)
        else:
            scores.append(30 - min(len(line) - len(line.lstrip()), 16))
    scores[-1] = 100
    return scores


def _parts(text: str, parts: int) -> list[str]:
    """Cut one long line into equal parts, at a space if there is one nearby."""
    found, start = [], 0
    for number in range(1, parts):
        wanted = len(text) * number // parts
        end = (text.rfind(" ", max(start, wanted - 80), wanted) + 1) or wanted
        found.append(text[start:end])
        start = end
    return [*found, text[start:]]


LONGEST_GOAL = 20_000  # characters; what is longer belongs into a file
LARGEST_BYTES = 2 << 20
MOST_FILES = 5_000
MOST_LOOKED_AT = 200_000  # names, before a root is called too large
_LOOK_BYTES = 8 << 10
PASSED_BY = frozenset({".git", "node_modules", "__pycache__", "venv", "site-packages"})


class Sources(msgspec.Struct, frozen=True):
    """Texts by their names under the root, in order, and the names that were left out, each with its reason."""

    texts: Mapping[str, str]
    left_out: tuple[tuple[str, str], ...] = ()


def check_goal(goal: str, files: Sequence[str]) -> None:
    """UserError for a goal that is empty or too long, and where no files are named."""
    example = 'skep swarm ask "Summarise each file" "docs/*.md"'
    if not goal:
        raise UserError("the goal is empty", hint=example)
    if len(goal) > LONGEST_GOAL:
        hint = "put the material into files, and name them"
        raise UserError(f"the goal has {len(goal):,} characters, more than {LONGEST_GOAL:,}", hint=hint)
    if not files:
        raise UserError("no files are named", hint=f"{example}; for a list of prompts: `skep swarm run`")


def find_sources(root: Path, patterns: Sequence[str]) -> Sources:
    """Read all files that a pattern names. `**` is any depth of folders; a folder's name stands for all in it."""
    root = root.resolve()
    if not root.is_dir():
        raise UserError(f"--root `{root}` is not a folder", hint="name the folder that the files are in")
    wanted = [_pattern(pattern, root) for pattern in patterns]
    hidden = any(part.startswith(".") for pattern in wanted for part in pattern)
    walked = ((name, PurePosixPath(name).parts) for name in _walk(root, hidden=hidden))
    names = [name for name, parts in walked if any(_matches(parts, pattern) for pattern in wanted)]
    if len(names) > MOST_FILES:
        raise UserError(f"the patterns name {len(names):,} files, more than {MOST_FILES:,}", hint="name fewer")
    texts: dict[str, str] = {}
    left_out: list[tuple[str, str]] = []
    for name in names:
        try:
            texts[name] = read_text(root, name)
        except UserError as error:
            left_out.append((name, error.message))
    if not texts:
        shown = ", ".join(f"`{pattern}`" for pattern in patterns)
        why = f": {left_out[0][0]} is {left_out[0][1]}" if left_out else ""
        hint = 'patterns are relative to --root: "src/**/*.py", in quotes'
        raise UserError(f"{shown} matches no text file under {root}{why}", hint=hint)
    return Sources(texts, tuple(left_out))


def read_text(root: Path, name: str) -> str:
    """Raise a UserError that says what the file is where it is no text under the root."""
    try:
        path = (root / name).resolve()
        if not path.is_relative_to(root):
            raise UserError("outside of the root")
        if not path.is_file():
            raise UserError("not a regular file")
        if path.stat().st_size > LARGEST_BYTES:
            raise UserError(f"larger than {format_bytes(LARGEST_BYTES)}")
        data = path.read_bytes()
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links in a circle; ValueError: a NUL
        raise UserError(f"not readable ({getattr(error, 'strerror', None) or error})") from None
    if b"\0" in data[:_LOOK_BYTES]:
        raise UserError("not text")
    return data.decode("utf-8-sig", "replace").replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")


def _walk(root: Path, *, hidden: bool) -> Iterator[str]:
    """Names of files under the root, in order. No link to a folder is followed."""
    looked_at = 0
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(one for one in folders if one not in PASSED_BY and (hidden or not one.startswith(".")))
        looked_at += len(files) + len(folders)
        if looked_at > MOST_LOOKED_AT:
            hint = "name a smaller folder with --root"
            raise UserError(f"{root} holds more than {MOST_LOOKED_AT:,} files", hint=hint)
        here = PurePosixPath(Path(folder).relative_to(root).as_posix())
        names = (str(here / one) for one in sorted(files) if hidden or not one.startswith("."))
        yield from (name for name in names if name.isprintable())


def _pattern(pattern: str, root: Path) -> tuple[str, ...]:
    """Return the parts of a pattern, relative to the root."""
    if ".." in PurePosixPath(pattern).parts or (pattern.startswith("/") and not Path(pattern).is_relative_to(root)):
        raise UserError(f"`{pattern}` leads out of {root}", hint="choose another --root")
    path = PurePosixPath(pattern)
    parts = path.relative_to(root).parts if path.is_absolute() else path.parts
    return (*parts, "**") if (root / pattern).is_dir() else parts


def _matches(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    if not pattern or parts == pattern:
        return parts == pattern
    if pattern[0] == "**":
        return any(_matches(parts[start:], pattern[1:]) for start in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


TINY = 1e9  # parameters, below which a model writes no plan and no merge worth its time
CHARS_PER_TOKEN = 3.0  # where nobody counts: code and prose have more
SAMPLE_CHARS = 2_500
LEAST_SAMPLE = 200  # characters, below which nothing can be said
MARGIN = 0.9  # of what fits: other texts have shorter tokens than the sample
_IN_NAME = re.compile(r"(?<![a-z0-9.])(\d{1,4}(?:\.\d{1,3})?)([mb])(?![a-z0-9])", re.IGNORECASE)
_UNITS = {"m": 1e6, "b": 1e9}


async def context_and_parameters(line: SwarmClient) -> tuple[int | None, float | None]:
    """Ask as skep, llama.cpp (`/props`, `meta`) or vLLM (`max_model_len`) tell it; the size else as the name has it.

    The context is in tokens of one conversation. None: the endpoint does not tell.
    """
    endpoint, documents = line.endpoint, []
    for path in ("/props", f"{line.endpoint.base}/models"):
        answer = await fetch_if_there(line.pool, "GET", path, headers=dict(endpoint.headers), timeout_s=5.0)
        documents.append(answer.document() if answer else {})
    props, models = documents
    if props.get("model_alias", endpoint.model) != endpoint.model:
        props = {}  # of another model behind the same gateway
    data = models.get("data")
    entries = data if isinstance(data, list) else []
    own = next((one for one in entries if isinstance(one, dict) and one.get("id") == endpoint.model), {})
    settings, meta = (
        one if isinstance(one, dict) else {} for one in (props.get("default_generation_settings"), own.get("meta"))
    )
    told = (own.get("max_model_len"), endpoint.engine.get("context"), settings.get("n_ctx"))
    sizes = [one for one in told if type(one) is int and 256 <= one < 10**8]
    counted = meta.get("n_params")
    parameters = float(counted) if isinstance(counted, int | float) and counted > 1 else parameters_in(endpoint.model)
    return min(sizes, default=None), parameters


def parameters_in(name: str) -> float | None:
    """`smollm2-135m`, `Qwen3-0.6B`; the largest of several (`30b-a3b`). None: it names none."""
    return max((float(count) * _UNITS[unit.lower()] for count, unit in _IN_NAME.findall(name)), default=None) or None


async def chars_per_token(line: SwarmClient, texts: list[str]) -> float:
    """Count on a piece of these very texts: by the tokenizer, else by a request of one token, else guess carefully."""
    share = max(SAMPLE_CHARS // max(len(texts), 1), LEAST_SAMPLE)
    sample = "\n".join(text[:share] for text in texts[: SAMPLE_CHARS // LEAST_SAMPLE])[:SAMPLE_CHARS]
    if len(sample) < LEAST_SAMPLE:
        return CHARS_PER_TOKEN
    tokens = await count_tokens(line.pool, line.endpoint, sample)
    if not tokens:
        asked = [{"role": "user", "content": sample}]
        tokens = (await line.ask(asked, fields={"max_tokens": 1}, timeout_s=60.0)).prompt_tokens
    return max(0.5, MARGIN * len(sample) / tokens) if tokens and tokens * 12 >= len(sample) else CHARS_PER_TOKEN


UNKNOWN_CONTEXT = 2_048  # tokens; what skep's embedded engine gives a slot unless told
UNKNOWN_CHUNK, UNKNOWN_ANSWER = 1_000, 512  # where the context is unknown
LEAST_ANSWER = 256  # tokens: two paragraphs; of a small context an answer takes no more than an eighth
MOST_CHUNK = 6_000  # models lose details in more, however large their context is
MOST_ANSWER = 2_048
PROMPT_TOKENS = 350  # of what stands around the material
PLAN_TOKENS, TOKENS_A_FILE, MOST_PLAN_TOKENS = 1_024, 48, 4_096  # of a plan, and more for every file it may name
MOST_TASKS = 5_000
TEMPERATURE = 0.2  # the same goal should give about the same answer
_LEANS = re.compile(
    r"\b(?:task|step|part)\s*#?\s*\d+\b|\b(?:previous|preceding|earlier|other|next|above)\s+(?:tasks?|steps?|results?|answers?)\b"
    r"|\b(?:results?|outputs?|answers?)\s+(?:of|from)\s+(?:the\s+)?(?:task|step|other|previous)",
    re.IGNORECASE,
)


class Sizes(msgspec.Struct, frozen=True):
    """What fits, in characters: tokens are the engine's, texts are ours."""

    chunk_chars: int  # of one task's material
    merge_chars: int  # of the answers that are merged at once
    answer_tokens: int
    chars_per_token: float


class GoalPart(msgspec.Struct, frozen=True):
    """One task of the split: an objective, and the pieces of files that it is about."""

    id: str
    objective: str
    pieces: tuple[FilePiece, ...]

    @property
    def chars(self) -> int:
        return len(self.objective) + sum(len(piece.text) for piece in self.pieces)

    def task(self, sizes: Sizes) -> Task:
        """Return a task that holds its material: no file is read again when the run is resumed."""
        texts = [("file {0}, lines {2}".format(*one.ref.rpartition(":")), one.text) for one in self.pieces]
        messages = messages_of("part", objective=self.objective, material=material(texts))
        return Task(self.id, messages, max_tokens=sizes.answer_tokens, temperature=TEMPERATURE)


class GoalSplit(msgspec.Struct, frozen=True):
    """`why`: what was wrong with the model's plan, or what had to be added to it."""

    parts: tuple[GoalPart, ...]
    by_model: bool
    why: str | None = None


class PreparedAsk(msgspec.Struct, frozen=True):
    """A split with all that its run is made of."""

    split: GoalSplit
    sizes: Sizes
    merge: bool
    model: str | None


@cache
def _packaged(name: str) -> Any:
    """Return a TOML or JSON file of this package."""
    text = resources.files("skep.swarm").joinpath(name).read_text(encoding="utf-8")
    return json.loads(text) if name.endswith(".json") else tomllib.loads(text)


def messages_of(prompt: str, **values: object) -> tuple[dict[str, str], ...]:
    """Return what `ask_prompts.toml` has under that name, filled in."""
    return tuple(
        {"role": role, "content": text.format(**values)} for role, text in _packaged("ask_prompts.toml")[prompt].items()
    )


def material(texts: Iterable[tuple[str, str]]) -> str:
    """Put named texts between marks; those that one could imitate are bent, so that it cannot end early."""
    bent = ([part.replace("<<<", "‹‹‹").replace(">>>", "›››") for part in one] for one in texts)
    return "\n\n".join(f"<<< {name}\n{text}\n>>>" for name, text in bent)


def sizes_of(context: int | None, per_token: float, *, chunk_tokens: int | None, max_tokens: int | None) -> Sizes:
    """Say what fits into a context; UserError where nothing would."""
    known = context or UNKNOWN_CONTEXT
    own = UNKNOWN_ANSWER if context is None else min(max(context // 8, LEAST_ANSWER), context // 4)
    answer = max_tokens or min(own, MOST_ANSWER)
    room = known - answer - PROMPT_TOKENS
    if context is None and chunk_tokens is not None:  # who asks for larger pieces knows of a larger context
        room = max(room, chunk_tokens)
    if room < 100:
        hint = "use a smaller --max-tokens"
        raise UserError(f"a context of {known:,} tokens leaves no room beside answers of {answer:,}", hint=hint)
    chunk = chunk_tokens or min(room, MOST_CHUNK if context else UNKNOWN_CHUNK)
    if chunk > room:
        hint = f"at most {room:,}, or a smaller --max-tokens"
        raise UserError(f"--chunk-tokens {chunk:,} does not fit into a context of {known:,} tokens", hint=hint)
    return Sizes(int(chunk * per_token), int(room * per_token), answer, round(per_token, 3))


async def split_goal(
    goal: str,
    sources: Sources,
    endpoint: Endpoint | None,
    *,
    by_rule: bool | None,
    merge: bool | None,
    chunk_tokens: int | None,
    max_tokens: int | None,
    plan_timeout_s: float,
    say: Say,
) -> PreparedAsk:
    """Split a goal as wished; by rule without an endpoint. `by_rule`, `merge` None: as the model's size allows."""
    if endpoint is None:
        sizes = sizes_of(None, CHARS_PER_TOKEN, chunk_tokens=chunk_tokens, max_tokens=max_tokens)
        return PreparedAsk(split_by_rule(goal, sources, sizes), sizes, merge is not False, None)
    async with aclosing(SwarmClient(endpoint, timeout_s=plan_timeout_s)) as line:
        context, parameters = await context_and_parameters(line)
        is_tiny = parameters is not None and parameters < TINY
        per_token = await chars_per_token(line, [*sources.texts.values()])
        sizes = sizes_of(context, per_token, chunk_tokens=chunk_tokens, max_tokens=max_tokens)
        if by_rule:
            split = split_by_rule(goal, sources, sizes)
        elif by_rule is None and is_tiny:
            size = f"{endpoint.model.rpartition('/')[2]} has {(parameters or 0) / 1e6:,.0f}M parameters"
            split = split_by_rule(goal, sources, sizes, f"{size}, too few to plan; --by-model asks it anyway")
        else:
            within = format_seconds(plan_timeout_s)
            say(f"{endpoint.model} at {endpoint.url} is asked for a plan; after {within} skep splits by rule")
            split = await split_by_model(goal, sources, sizes, line, context, plan_timeout_s, say)
    wanted = merge if merge is not None else split.by_model or not is_tiny
    return PreparedAsk(split, sizes, wanted, endpoint.model)


def split_by_rule(goal: str, sources: Sources, sizes: Sizes, why: str | None = None) -> GoalSplit:
    """Ask the goal of every piece of every file."""
    return GoalSplit(_checked(_a_part_each(goal, sources.texts, sources, sizes)), by_model=False, why=why)


async def split_by_model(
    goal: str, sources: Sources, sizes: Sizes, line: SwarmClient, context: int | None, timeout_s: float, say: Say
) -> GoalSplit:
    """Ask for a plan, and once more with what was wrong with it; by rule where none can be used within the time."""
    most = plan_tokens(context, len(sources.texts))
    messages = planner_messages(goal, sources, sizes)
    asked = sum(len(one["content"]) for one in messages) / sizes.chars_per_token
    if asked + 2 * most > (context or 2 * UNKNOWN_CONTEXT):
        why = f"a list of {len(sources.texts):,} files does not fit into one prompt"
        return split_by_rule(goal, sources, sizes, why)
    found: list[GoalSplit] = []

    def fault(plan: Any) -> str | None:
        try:
            found.append(split_of(plan, goal, sources, sizes))
        except UserError as error:
            return error.message
        return None

    task = Task("plan", messages, most, 0.0, _packaged("ask_plan_schema.json"))
    try:
        async with asyncio.timeout(timeout_s), AnswerChecker(fault) as checking:
            work = ChatWorker(line, checking, SwarmRunOptions())
            came = await work.attempt(task, 1, None)
            if came.error_kind == REJECTED:
                cut = "it was cut at its limit of tokens: plan fewer tasks" if came.finish_reason == "length" else None
                why = cut or came.error or ""
                say(f"the model's plan cannot be used ({why[:200]}): asking once more")
                came = await work.attempt(task, 2, why)
    except TimeoutError:
        came = AttemptResult(error_kind="timeout")
    if came.error_kind is None:
        return found[-1]
    why = came.error or ""
    if came.error_kind == "timeout":
        why = f"the model gave no plan within {format_seconds(timeout_s)}"
    elif came.error_kind != REJECTED:
        why = f"the model did not answer: {why}"
    return split_by_rule(goal, sources, sizes, why[:400])


def plan_tokens(context: int | None, files: int) -> int:
    """Return the longest plan in tokens, with room for a model that thinks first."""
    wanted = min(PLAN_TOKENS + TOKENS_A_FILE * files, MOST_PLAN_TOKENS)
    return wanted if context is None else max(min(context // 4, wanted), 256)


def planner_messages(goal: str, sources: Sources, sizes: Sizes) -> tuple[dict[str, str], ...]:
    sized = (f"- {name} ({len(text) / sizes.chars_per_token:.0f})" for name, text in sources.texts.items())
    fits = int(sizes.chunk_chars / sizes.chars_per_token)
    return messages_of("plan", goal=goal, files="\n".join(sized), fits=fits)


def split_of(plan: Any, goal: str, sources: Sources, sizes: Sizes) -> GoalSplit:
    """Turn a plan that meets the schema into tasks, or raise UserError. A file in no task gets its own."""
    parts: list[GoalPart] = []
    named: set[str] = set()
    seen: set[tuple[str, ...]] = set()
    for number, one in enumerate(plan["tasks"], 1):
        objective, told = one["objective"].strip(), str(one.get("id") or "").strip()[:80]
        name = told if told.isprintable() and told else str(number)
        if leans := _LEANS.search(objective):
            raise UserError(f"task `{name}` depends on another task (`{leans[0]}`), but all run at the same time")
        files = _named(one["files"], list(sources.texts), name)
        if (objective.casefold(), *files) in seen:
            raise UserError(f"task `{name}` repeats the work of another one")
        seen.add((objective.casefold(), *files))
        named.update(files)
        pieces = [piece for file in files for piece in pieces_of(file, sources.texts[file], sizes.chunk_chars)]
        chars = [len(piece.text) + len(piece.ref) + 20 for piece in pieces]
        bundles = packed(pieces, chars, 0 if one.get("each") else sizes.chunk_chars)
        ids = [name] if len(bundles) == 1 else [f"{name}/{place}" for place in range(1, len(bundles) + 1)]
        parts += [GoalPart(id_, objective, tuple(bundle)) for id_, bundle in zip(ids, bundles, strict=True)]
    left = [name for name in sources.texts if name not in named]
    parts += _a_part_each(goal, left, sources, sizes)
    why = f"{len(left)} of {len(sources.texts)} files were in no task; skep gave them their own" if left else None
    return GoalSplit(_checked(parts), by_model=True, why=why)


def _named(files: Sequence[str], names: Sequence[str], task: str) -> list[str]:
    """Resolve names, patterns and unique endings of names. Raise UserError for a file that was not given."""
    found: list[str] = []
    for written in files:
        ref = written.strip().removeprefix("./")
        matched = [name for name in names if name == ref or fnmatchcase(name, ref)]
        ending = [name for name in names if name.endswith(f"/{ref}")]
        if not matched and len(ending) != 1:
            raise UserError(f"task `{task}`: `{ref[:80]}` is not one of the given files")
        found += matched or ending
    return list(dict.fromkeys(found))


def packed(items: Sequence[Item], sizes: Sequence[int], most: int) -> list[list[Item]]:
    """Group neighbours, as many as fit together. One that fits with no other stays alone."""
    groups: list[list[Item]] = []
    room = 0
    for item, size in zip(items, sizes, strict=True):
        if not groups or size > room:
            groups.append([])
            room = most
        groups[-1].append(item)
        room -= size
    return groups


def _a_part_each(goal: str, names: Iterable[str], sources: Sources, sizes: Sizes) -> list[GoalPart]:
    pieces = [piece for name in names for piece in pieces_of(name, sources.texts[name], sizes.chunk_chars)]
    short = [PurePosixPath(piece.ref).name for piece in pieces]  # an id that a person can type
    counts = Counter(short)
    named = zip(short, pieces, strict=True)
    return [GoalPart(name if counts[name] == 1 else piece.ref, goal, (piece,)) for name, piece in named]


def _checked(parts: Sequence[GoalPart]) -> tuple[GoalPart, ...]:
    """Check the number of parts, and make their ids unique."""
    if not parts:
        raise UserError("the files are all empty", hint="name others")
    if len(parts) > MOST_TASKS:
        hint = "name fewer files, or larger pieces with --chunk-tokens"
        raise UserError(f"the files make {len(parts):,} tasks, more than {MOST_TASKS:,}", hint=hint)
    made: dict[str, GoalPart] = {}
    for part in parts:
        name = free_name(part.id, made)
        made[name] = replace(part, id=name)
    return tuple(made.values())


def free_name(name: str, taken: Container[str]) -> str:
    while name in taken:
        name += "'"
    return name

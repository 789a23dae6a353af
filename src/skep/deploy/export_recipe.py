"""What every form of `skep export` is made from: launches, each with its port and cards, and what surrounds them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from textwrap import wrap
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.catalog.presets import Container, Need, Preset, Published, is_moving_tag, stand_in_words
from skep.config.presets import serve_of
from skep.config.rigs import parse_rig
from skep.deploy.commands import adapter_of
from skep.deploy.gpus import assign_cards
from skep.deploy.launches import launch_of
from skep.engines.adapter import Adapter
from skep.engines.base import Launch, engine_named
from skep.engines.discovery import bare_words
from skep.errors import UserError
from skep.host.nvidia import GpuCard

_VARIABLE = re.compile(r"\$(?:\{[A-Za-z_][A-Za-z0-9_]*\}|[A-Za-z_][A-Za-z0-9_]*)")
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")
WIDTH = 110
HERE = "127.0.0.1"
LOCAL = ("/", "./", "../", "~", "$")
PLACEHOLDER = "path/to/"
OLLAMA = "OLLAMA_HOST"  # the one variable that says where an engine listens
IN_A_CONTAINER = ("image", "patch", "step")  # needs that only a container meets


class RecipePath(msgspec.Struct, frozen=True):
    """A path of the machine it will run on: `~` at its beginning and `$NAME` stand for what they are there."""

    text: str
    before: str = ""  # literal, of the same word
    after: str = ""


Word = str | RecipePath


def comment(text: str) -> str:
    """Return every line of it behind a `#`: no value ends a comment."""
    return "\n".join(f"# {line}".rstrip() for line in re.split(r"[\r\n\x0b\x0c\x85\u2028\u2029]+", text))


def shell_word(word: Word) -> str:
    if isinstance(word, str):
        return shlex.quote(word)
    found = _path(word.text, _shell_text, home='"$HOME"', variable=lambda name: f'"{name}"')
    return (_shell_text(word.before) + found + _shell_text(word.after)) or "''"


def systemd_word(word: Word, *, dollars: bool = True) -> str:
    """`dollars`: of a command line, where `$` would begin a variable; not so in Environment=."""
    quote = partial(_escape, doubled="%$" if dollars else "%")
    path = word if isinstance(word, RecipePath) else RecipePath("", before=word)
    found = _path(path.text, quote, home="%h", variable=lambda name: f"${{{name.strip('${}')}}}")
    text = quote(path.before) + found + quote(path.after)
    # a lone `;` would end the command
    return text if _PLAIN.fullmatch(re.sub(r"[${}]", "", text)) else f'"{text}"'


def yaml_word(word: Word) -> str:
    """Return a double-quoted scalar. Compose puts variables in: a dollar that means itself is doubled."""
    quote = partial(_escape, doubled="$")
    path = word if isinstance(word, RecipePath) else RecipePath("", before=word)

    def wanted(name: str) -> str:
        bare = name.strip("${}")
        return f"${{{bare}}}" if bare == "HOME" else f"${{{bare}:?set its path in .env}}"

    found = _path(path.text, quote, home="${HOME}", variable=wanted)
    return f'"{quote(path.before)}{found}{quote(path.after)}"'


def shell_lines(words: Sequence[Word]) -> str:
    """One command, over several lines where it is long."""
    return folded([shell_word(word) for word in words])


def folded(quoted: Sequence[str]) -> str:
    """Broken where a line grows long, but not between an option and its value."""
    pieces: list[str] = []
    for word in quoted:
        alone = pieces and pieces[-1].startswith("-") and " " not in pieces[-1]
        if alone and not word.startswith("-"):
            pieces[-1] += f" {word}"
        else:
            pieces.append(word)
    lines: list[str] = []
    for piece in pieces:
        if lines and len(lines[-1]) + len(piece) < WIDTH:
            lines[-1] += f" {piece}"
        else:
            lines.append(f"  {piece}" if lines else piece)
    return " \\\n".join(lines)


def wrapped(text: str) -> list[str]:
    """Return a sentence for a comment; its later lines stand further in."""
    return wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) or [""]


def _path(text: str, literal: Callable[[str], str], *, home: str, variable: Callable[[str], str]) -> str:
    begin = ""
    if text == "~" or text.startswith("~/"):
        begin, text = home, text[1:]
    parts, last = [begin], 0
    for found in _VARIABLE.finditer(text):
        parts += [literal(text[last : found.start()]), variable(found.group())]
        last = found.end()
    return "".join((*parts, literal(text[last:])))


def _shell_text(text: str) -> str:
    return shlex.quote(text) if text else ""


def _escape(text: str, doubled: str) -> str:
    """Escape what YAML or a unit does not take as it is, in a way that both know, and double signs that they read."""
    text = text.replace("\\", "\\\\").replace('"', '\\"')
    for sign in doubled:
        text = text.replace(sign, 2 * sign)
    known = {"\n": "\\n", "\t": "\\t"}
    return _UNPRINTABLE.sub(lambda found: known.get(found[0], f"\\u{ord(found[0]):04x}"), text)


class Recipe(msgspec.Struct, frozen=True):
    """Replicas alike, in the order they start. `container` None: the engine's public image, where one is asked for."""

    name: str
    title: str
    launches: tuple[Launch, ...]
    port: int  # of the endpoint in front of them
    source: str | None = None
    container: Container | None = None
    needs: tuple[Need, ...] = ()
    published: tuple[Published, ...] = ()
    engine_version: str | None = None
    vendor: str = "nvidia"  # of the cards
    skep: tuple[str, ...] = ("skep",)  # how skep itself is started
    cards: str | None = None  # `--gpu`, of a plan
    stand_in: str | None = None  # said of a checkpoint that its author does not name
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> Launch:
        return self.launches[0]

    @property
    def capacity(self) -> int:
        return sum(launch.slots for launch in self.launches)

    @property
    def asked(self) -> str:
        """What stands behind `skep export`."""
        return self.name if self.cards is None else f"{self.name} --gpu {shlex.quote(self.cards)}"


def recipe_of(preset: Preset, *, port: int, engine_port: int) -> Recipe:
    """A preset's replicas, on the cards it names or on the first ones."""
    check_ports(port, engine_port, preset.replicas)
    check_engine(preset.engine, preset.name)
    each, cards = preset.options.cards, () if preset.hardware == "cpu" else parse_rig(preset.hardware).cards
    wanted = max((*preset.gpus, each * preset.replicas - 1)) + 1
    placed = assign_cards(preset.replicas, each, preset.gpus, [GpuCard(number) for number in range(wanted)])
    if (not preset.gpus and preset.replicas == 1 and each < len(cards)) or not cards:
        placed = [()] * preset.replicas  # an engine that divides itself over what it sees
    serve, name = serve_of(preset), file_name(preset.name)
    model = preset.checkpoint if preset.engine == "ollama" else preset.served_as  # it knows a model by its tag
    one = replace(launch_of(serve, name, None, preset.checkpoint, threads=preset.threads or 0), model=model)
    launches = tuple(
        replace(one, name=f"{name}-{number}", port=engine_port + number, gpus=gpus)
        for number, gpus in enumerate(placed)
    )
    names = ("name", "title", "source", "container", "needs", "published", "engine_version", "notes")
    alike: dict[str, Any] = {name: getattr(preset, name) for name in names}
    vendor = cards[0].vendor if cards else ""
    return Recipe(launches=launches, port=port, vendor=vendor, stand_in=stand_in_words(preset), **alike)


def recipe_with(
    launches: Sequence[Launch], vendor: str, *, title: str, cards: str, port: int, engine_port: int
) -> Recipe:
    """Launches of a plan, given ports one after the other. `cards`: as the user named them."""
    check_ports(port, engine_port, len(launches))
    placed = tuple(replace(launch, port=engine_port + number) for number, launch in enumerate(launches))
    return Recipe(name=file_name(placed[0].model), title=title, launches=placed, port=port, vendor=vendor, cards=cards)


def check_engine(engine: str, name: str) -> None:
    if not isinstance(engine_named(engine), Adapter):
        raise UserError(f"`{name}` runs in skep's own {engine} engine", hint=f"`skep up {name}` starts it")


def check_ports(port: int, engine_port: int, replicas: int) -> None:
    last = engine_port + replicas - 1
    if last > 65535 or engine_port <= port <= last:
        hint = f"they would use ports {engine_port} to {last}, the endpoint uses {port}"
        raise UserError(f"--engine-port {engine_port} does not fit {replicas} replicas", hint=hint)


def head(recipe: Recipe, form: str) -> list[str]:
    """Return what every form says first, as lines of a comment."""
    first = recipe.first
    lines = [*wrapped(f"{recipe.name}: {recipe.title}"), f"Made by `skep export {recipe.asked} --as {form}`."]
    if recipe.source:
        lines += wrapped(f"Recipe: {recipe.source}")
    version = f" {recipe.engine_version}" if recipe.engine_version else ""
    many, slots = len(recipe.launches), f"{first.slots} slot{'s' if first.slots != 1 else ''}"
    lines.append(f"{many} x {first.engine}{version}, {slots} each" if many > 1 else f"{first.engine}{version}, {slots}")
    most = f"{recipe.capacity} request{'s' if recipe.capacity != 1 else ''}"
    lines.append(f"Clients ask for `{first.model}` at http://{HERE}:{recipe.port}/v1; {most} at a time.")
    return lines


def wants(recipe: Recipe, *, contained: bool) -> list[str]:
    """Return what the figures rest on beyond flags: what this form cannot give, and what has to be there first."""
    moved = recipe.container is not None and is_moving_tag(recipe.container.image)  # its tag is not what was measured
    given = () if not contained else ("step",) if moved else ("image", "step")  # the container brings them
    lacking = IN_A_CONTAINER if not contained else ("image",) if moved else ()
    unmet = [need for need in recipe.needs if need.kind in lacking]
    lines = [line for need in unmet for line in _need("NOT met here", need, recipe)]
    if unmet:
        ids = {need.id for need in unmet}
        lost = [row for row in recipe.published if ids & set(row.needs)]
        told = ", ".join(f"{row.tok_s:g} tok/s at C={row.concurrency}" for row in lost)
        lines += wrapped(f"Without them these published figures do not apply: {told}") if told else []
        lines += ["`--as docker`, `compose` and `systemd` give them."] if recipe.container and not moved else []
    if not contained and (recipe.first.checkpoint or "").startswith(PLACEHOLDER):
        lines.append(f"`{recipe.first.checkpoint}` is a placeholder for the path of your weights.")
    left = [need for need in recipe.needs if need.kind not in (*given, *lacking)]
    lines += [line for need in left for line in _need("Wants", need, recipe)]
    lines += wrapped(f"Note: {recipe.stand_in}") if recipe.stand_in else []
    return [*lines, *(line for note in recipe.notes for line in wrapped(f"Note: {note}"))]


def native_words(launch: Launch) -> list[Word]:
    """Return the command line as somebody types it: nothing is looked for on this machine."""
    words = [*bare_words(launch.engine, launch.binary), *adapter_of(launch.engine).arguments(launch)]
    return [RecipePath(word) if word == launch.checkpoint and word.startswith(("~", "$")) else word for word in words]


def environment(launch: Launch, vendor: str = "nvidia") -> dict[str, str]:
    return adapter_of(launch.engine, vendor).environment(launch)


def on_hub(checkpoint: str) -> bool:
    """`organisation/name`, for llama.cpp with a file or a quantization behind a colon."""
    named = not checkpoint.startswith(LOCAL) and not checkpoint.partition(":")[0].endswith(".gguf")
    return named and checkpoint.count("/") == 1


def gateway_words(recipe: Recipe) -> list[Word]:
    words: list[Word] = [*recipe.skep, "gateway"]
    for launch in recipe.launches:
        words += ["--upstream", f"http://{HERE}:{launch.port}"]
    words += ["--slots", str(recipe.first.slots), "--model", recipe.first.model]
    words += ["--reserve", str(recipe.first.reserve)] if recipe.first.reserve else []
    return [*words, "--port", str(recipe.port)]


def health_path(launch: Launch) -> str:
    return launch.health_path or adapter_of(launch.engine).health_path


def before(launches: Sequence[Launch], place: int) -> Launch | None:
    """Return the one that must be ready first: both look how much of a card is free while they start."""
    mine = set(launches[place].gpus)
    sharing = (other for other in reversed(launches[:place]) if not mine or not other.gpus or mine & set(other.gpus))
    return next(sharing, None)


def file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.") or "model"


def _need(word: str, need: Need, recipe: Recipe) -> list[str]:
    source = f" ({need.source})" if need.source and need.source != recipe.source else ""
    return wrapped(f"{word} ({need.kind}): {need.what}: {need.why}{source}")

"""Replicas as containers: what is mounted, published and run, and `docker run` for each."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from skep.catalog.presets import Container
from skep.deploy import export_recipe
from skep.deploy.export_recipe import HERE, LOCAL, OLLAMA, Recipe, RecipePath, Word, on_hub
from skep.engines.base import Launch

EVERYWHERE = "0.0.0.0"  # noqa: S104 - inside the container; it is published on loopback only
PORTS = {"vllm": 8000, "sglang": 30000, "llamacpp": 8080, "ollama": 11434}  # as their images have it
IMAGES = {
    "vllm": "vllm/vllm-openai",
    "sglang": "lmsysorg/sglang",
    "llamacpp": "ghcr.io/ggml-org/llama.cpp",
    "ollama": "ollama/ollama",
}
CHECKPOINT, MODELS = "CHECKPOINT", "MODELS"  # variables for what lies where only the user knows
DEVICES: dict[str, tuple[str, ...]] = {"intel": ("/dev/dri",), "amd": ("/dev/kfd", "/dev/dri"), "": ()}
LLAMA_CACHE = ("~/.cache/llama.cpp", "/models")
HUB_CACHE = ("~/.cache/huggingface", "/root/.cache/huggingface")
CHECKPOINT_INSIDE, MODELS_INSIDE = "/model", "/models"
_NAMES = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)")
_RELEASE = re.compile(r"v?([0-9]+\.[0-9]+\.[0-9]+(?:\.?(?:post|rc)[0-9]+)?)")
_BUILD = re.compile(r"b([0-9]+)")


class ContainerSpec(msgspec.Struct, frozen=True):
    """One replica in its container. `program` None: the image's own entry point gets the arguments."""

    name: str
    image: str
    gpus: tuple[int, ...]
    devices: tuple[str, ...] | None  # handed in as files; None: NVIDIA's toolkit does it
    port: int
    inside_port: int
    mounts: tuple[tuple[RecipePath, str, bool], ...]  # host, inside, read only
    env: tuple[tuple[str, str], ...]
    passed: tuple[str, ...]  # variables handed on as they are, where they are set
    shm: str | None
    ipc_host: bool
    program: str | None
    arguments: tuple[str, ...]
    health: tuple[str, ...]


def container_of(recipe: Recipe, launch: Launch) -> ContainerSpec:
    public, _ = image_of(launch.engine, recipe.engine_version)
    # processes of one engine on several cards talk through shared memory, of which a container has 64 MiB
    own = recipe.container or Container(public, ipc_host=launch.engine in ("vllm", "sglang"))
    weights, checkpoint = _weights(launch, own)
    port = PORTS.get(launch.engine, 8000)
    inner = replace(launch, port=port, gpus=(), checkpoint=checkpoint, binary=None)
    program, arguments = _started(inner, own.before)
    taken = {mount.inside for mount in own.mounts}
    mounts = [(RecipePath(mount.host), mount.inside, mount.read_only) for mount in own.mounts]
    mounts = [*(one for one in weights if one[1] not in taken), *mounts]
    seen = inner if recipe.vendor == "nvidia" else replace(inner, gpus=launch.gpus)  # others see all that is handed in
    told = export_recipe.environment(seen, recipe.vendor).items()
    given = {name: value.replace(f"{HERE}:", f"{EVERYWHERE}:") if name == OLLAMA else value for name, value in told}
    hub = launch.engine != "ollama" and on_hub(checkpoint or "")
    given |= {"LLAMA_CACHE": LLAMA_CACHE[1]} if hub and launch.engine == "llamacpp" else {}
    url = f"http://{HERE}:{port}{export_recipe.health_path(launch)}"
    by_python = ("CMD", "python3", "-c", f"import urllib.request as u; u.urlopen({url!r}, timeout=5)")
    by_other = {"ollama": ("CMD", "ollama", "list"), "llamacpp": ("CMD", "curl", "-f", url)}  # what the image has
    return ContainerSpec(
        name=launch.name,
        image=own.image,
        gpus=launch.gpus,
        devices=DEVICES.get(recipe.vendor),
        port=launch.port,
        inside_port=port,
        mounts=tuple(mounts),
        env=tuple(given.items()),
        passed=("HF_TOKEN",) if hub else (),
        shm=own.shm,
        ipc_host=own.ipc_host,
        program=program,
        arguments=arguments,
        health=by_other.get(launch.engine, by_python),
    )


def docker_words(one: ContainerSpec) -> list[Word]:
    """Behind `docker run`: options, image, command."""
    words: list[Word] = ["--name", one.name]
    if one.devices is None:
        words += ["--gpus", f'"device={",".join(map(str, one.gpus))}"' if one.gpus else "all"]
    for device in one.devices or ():
        words += ["--device", device]
    words += ["-p", f"{HERE}:{one.port}:{one.inside_port}"]
    words += ["--ipc=host"] if one.ipc_host else []
    words += [f"--shm-size={one.shm}"] if one.shm else []
    for host, inside, read_only in one.mounts:
        words += ["-v", RecipePath(host.text, after=f":{inside}{':ro' if read_only else ''}")]
    for name, value in one.env:
        words += ["-e", f"{name}={value}"]
    for name in one.passed:
        words += ["-e", name]
    words += ["--entrypoint", one.program] if one.program else []
    return [*words, one.image, *one.arguments]


def image_of(engine: str, version: str | None) -> tuple[str, bool]:
    """The engine's public image, and whether its tag is the version that was measured."""
    release = _RELEASE.fullmatch(version or "")
    if engine == "llamacpp":
        build = _BUILD.fullmatch(version or "")
        return f"{IMAGES[engine]}:server-cuda" + (f"-b{build.group(1)}" if build else ""), build is not None
    mark = "" if engine == "ollama" else "v"
    name = IMAGES.get(engine, engine)
    return (f"{name}:{mark}{release.group(1)}", True) if release else (f"{name}:latest", False)


def tag_notes(recipe: Recipe) -> list[str]:
    """Return what is to be chosen where the preset names no image."""
    image, known = image_of(recipe.first.engine, recipe.engine_version)
    if recipe.container is not None:
        return []
    lines = []
    if recipe.vendor != "nvidia":
        lines.append(f"`{image}` is built for NVIDIA's cards: put the image for yours in its place.")
    if not known:
        said = f"measured with {recipe.engine_version}" if recipe.engine_version else "which version is not known"
        lines.append(f"Choose the image's tag ({said}): `{image}` is whatever is newest on the day it is pulled.")
    return [part for line in lines for part in export_recipe.wrapped(line)]


def fetching(recipe: Recipe) -> list[str]:
    """Return how the weights come to where a variable says they are."""
    variable, checkpoint = _checkpoint_variable(recipe), recipe.first.checkpoint or ""
    if variable is None:
        return []
    if not on_hub(checkpoint):
        what = "the folder that holds it" if checkpoint.endswith(".gguf") else "the folder"
        return [f"Weights: ${variable} is {what} (`{checkpoint.removeprefix(export_recipe.PLACEHOLDER)}`)"]
    return [
        f'Weights: hf download {export_recipe.shell_word(checkpoint)} --local-dir "${variable}"',
        "(real files: a snapshot in the hub's cache holds links that lead out of it, dead inside a container)",
    ]


def variables_of(recipe: Recipe) -> dict[str, str | None]:
    """Return names in the mounts, with a place to begin with; None: only the user knows."""
    texts = [host.text for host, _, _ in container_of(recipe, recipe.first).mounts]
    names = [name for text in texts for name in _NAMES.findall(text) if name != "HOME"]
    own, name = _checkpoint_variable(recipe), (recipe.first.checkpoint or "").rpartition("/")[2]
    place = "~/models" if name.endswith(".gguf") else f"~/models/{export_recipe.file_name(name)}"
    return {one: place if one == own else None for one in dict.fromkeys(names)}


def _checkpoint_variable(recipe: Recipe) -> str | None:
    """Return the name that stands for where the weights lie, if one does."""
    found = container_of(recipe, recipe.first)
    inside = {CHECKPOINT_INSIDE, MODELS_INSIDE, recipe.container.checkpoint if recipe.container else None}
    hosts = [host.text for host, target, _ in found.mounts if target in inside]
    return next((match[1] for host in hosts if (match := _NAMES.fullmatch(host.rstrip("}")))), None)


def _weights(launch: Launch, own: Container) -> tuple[list[tuple[RecipePath, str, bool]], str | None]:
    """Return what is mounted for them, and what the engine inside is told."""
    checkpoint = launch.checkpoint
    if launch.engine == "ollama" or checkpoint is None:
        return ([(RecipePath("~/.ollama"), "/root/.ollama", False)] if launch.engine == "ollama" else []), checkpoint
    folder, _, name = checkpoint.rpartition("/")
    if own.checkpoint is not None:
        host = checkpoint if checkpoint.startswith(LOCAL) else f"${CHECKPOINT}"
        return [(RecipePath(host), own.checkpoint, True)], own.checkpoint
    if on_hub(checkpoint):
        host, inside = LLAMA_CACHE if launch.engine == "llamacpp" else HUB_CACHE
        return [(RecipePath(host), inside, False)], checkpoint
    if checkpoint.endswith(".gguf"):
        host = folder if checkpoint.startswith(LOCAL) else f"${MODELS}"
        return [(RecipePath(host), MODELS_INSIDE, True)], f"{MODELS_INSIDE}/{name}"
    host = checkpoint if checkpoint.startswith(LOCAL) else f"${CHECKPOINT}"
    return [(RecipePath(host), CHECKPOINT_INSIDE, True)], CHECKPOINT_INSIDE


def _started(launch: Launch, steps: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """Return the engine's command line as its image knows it, behind the steps that come before."""
    words = [str(word.text if isinstance(word, RecipePath) else word) for word in export_recipe.native_words(launch)]
    words[0] = words[0].rpartition("/")[2]
    if words[0].startswith("python"):
        words[0] = "python3"
    # listening on all of the container's own addresses: only one port of it is published
    if "--host" in words:
        words[words.index("--host") + 1] = EVERYWHERE
    elif launch.engine != "ollama":
        words += ["--host", EVERYWHERE]
    own_entry = launch.engine in ("llamacpp", "ollama")
    if steps:
        start = "/app/llama-server" if launch.engine == "llamacpp" else words[0]
        script = "\n".join(("set -e", *steps, f"exec {export_recipe.shell_lines([start, *words[1:]])}"))
        return "/bin/bash", ("-c", script)
    return (None, tuple(words[1:])) if own_entry else (words[0], tuple(words[1:]))

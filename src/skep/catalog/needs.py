"""What a preset's figures rest on beyond flags, and which of them fall away where that is not here."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from skep.catalog.gpus import find_device
from skep.catalog.presets import Need, Preset, Published

NO_CARDS = "cpu"  # as `hardware`
HAVE_VARIABLE = "SKEP_HAVE"  # ids of needs that the user answers for: "genesis,tolist"
_COMMIT = re.compile(r"\b([0-9a-f]{9,40})\b")
_NUMBER = re.compile(r"\d+(?:\.\d+)*")
_AND = re.compile(r",|\+(?!-)")  # `ryzen-ai-max+-395` is one card
_COUNTED = re.compile(r"(\d{1,3})\s*[x*]\s*(.+)|(.+?)\s+[x*]\s*(\d+)", re.IGNORECASE)  # as a rig is written
_VERSIONS = re.compile(r"\d+(?:\.\d+)+(?:rc\d+|post\d+)?|\bb\d{3,}\b|\bdev\d+\b")
_WHOLE_VERSION = re.compile(r"\bv?(\d+(?:\.\d+)+[0-9a-z.+]*)|\b(b\d{3,})\b")


class RunEnvironment(msgspec.Struct, frozen=True):
    """Where a preset is about to run. None: not known, which counts as not there."""

    engine_version: str | None = None
    driver_version: str | None = None
    checkpoint: str | None = None  # hub name, folder or file that will be loaded
    env: Mapping[str, str] = {}
    in_container: bool = False  # in the preset's own, with its mounts and its steps before the start


def missing_needs(preset: Preset, here: RunEnvironment) -> list[Need]:
    """Return those not known to be met, in the preset's order."""
    vouched = {word.strip() for word in here.env.get(HAVE_VARIABLE, "").split(",")}
    return [need for need in preset.needs if need.id not in vouched and not _is_met(need, preset, here)]


def figures_lost(preset: Preset, missing: Sequence[Need]) -> list[Published]:
    """Return the published figures that rest on one of these."""
    ids = {need.id for need in missing}
    return [figure for figure in preset.published if ids & set(figure.needs)]


def lost_words(preset: Preset, missing: Sequence[Need]) -> str | None:
    """`without A and B the published 225 tok/s at C=4 does not apply`; None where nothing is lost."""
    lost = figures_lost(preset, missing)
    if not lost:
        return None
    used = {name for figure in lost for name in figure.needs}
    named = [_COMMIT.sub(lambda commit: f"{commit[1][:7]}…", need.what) for need in missing if need.id in used]
    what = " and ".join(filter(None, (", ".join(named[:-1]), named[-1])))
    best = figure_words(max(lost, key=lambda figure: figure.tok_s))
    others = len(lost) - 1
    more = f" and {others} more {'figure' if others == 1 else 'figures'} do" if others else " does"
    return f"without {what} the published {best}{more} not apply"


def other_cards(preset: Preset, cards: Sequence[str]) -> str | None:
    """`measured on 2x rtx-3090, this machine has 2x rtx-4090`; None where as many are here. `cards`: driver names."""
    wanted = _rig(preset.hardware)
    here = Counter(_kind(name) for name in cards)
    if all(here[kind] >= count for kind, count in wanted.items()):
        return None
    if not here:
        return f"measured on {preset.hardware}, this machine has no GPU"
    found = " + ".join(f"{count}x {kind}" for kind, count in here.items())
    return f"measured on {preset.hardware}, this machine has {found}"


def other_version(preset: Preset, engine_version: str | None) -> str | None:
    """`measured with vllm 0.19.1, this is 0.32.0`; None where it is the same, or one of them is not known."""
    told = [preset.engine_version, *(figure.engine_version for figure in preset.published)]
    published = next((version for version in told if version), None)
    found = version_beside(published, engine_version)
    return None if found is None else f"measured with {preset.engine} {published}, this is {found}"


def version_beside(published: str | None, told: str | None) -> str | None:
    """Return the version in an engine's own words, where it is another than the published one."""
    found = _WHOLE_VERSION.search(told or "")
    wanted = _VERSIONS.findall(published or "")
    if found is None or not wanted or told is None:
        return None
    same = all(_names(part, told.replace(".dev", " dev")) for part in wanted)
    return None if same else found[1] or found[2]


def _names(version: str, told: str) -> bool:
    """`0.17` is any 0.17.x; `0.19.1` is itself."""
    end = r"(?!\.?\d)" if version.count(".") > 1 else r"(?!\d)"
    return re.search(rf"(?<![\d.]){re.escape(version)}{end}", told) is not None


def stand_in_words(preset: Preset) -> str | None:
    """That nobody knows whether this checkpoint is the one that was measured; None where its author names it."""
    if not preset.stand_in:
        return None
    return f"the source does not name its checkpoint: skep uses {preset.checkpoint} in its place"


def is_moving_tag(image: str) -> bool:
    """Return whether its tag names another build from day to day."""
    name = image.rpartition("/")[2]
    return "@" not in name and (":" not in name or name.endswith((":latest", ":nightly")))


def best_figure(preset: Preset) -> Published | None:
    return max(preset.published, key=lambda figure: figure.tok_s, default=None)


def figure_words(figure: Published) -> str:
    """`225 tok/s at C=4`; what is not plain output is named."""
    kind = "" if figure.metric == "output" else f" {figure.metric}"
    tok_s = f"{figure.tok_s:,.0f}" if figure.tok_s >= 100 else f"{figure.tok_s:g}"
    return f"{tok_s} tok/s{kind} at C={figure.concurrency}"


def _is_met(need: Need, preset: Preset, here: RunEnvironment) -> bool:
    if need.kind == "driver":  # `driver 575 or newer`: the first number in it is the least
        least, found = _NUMBER.search(need.what), _NUMBER.search(here.driver_version or "")
        if least is None or found is None:
            return False
        has, wants = ([int(part) for part in version[0].split(".")] for version in (found, least))
        return has >= wants
    if need.kind == "checkpoint":
        return not preset.stand_in and _same_checkpoint(here.checkpoint, preset.checkpoint)
    if need.kind == "image":
        pinned = here.in_container and preset.container is not None and not is_moving_tag(preset.container.image)
        return pinned or _same_build(here.engine_version, need.what, preset.engine_version)
    return here.in_container


def _rig(hardware: str) -> Counter[str]:
    """Cards by kind; what joins them stands behind a colon, what they cost behind an @."""
    found: Counter[str] = Counter()
    for part in _AND.split(hardware.partition(":")[0]) if hardware != NO_CARDS else ():
        name = part.partition("@")[0].strip()
        match = _COUNTED.fullmatch(name)
        kind, count = (match[2] or match[3], int(match[1] or match[4])) if match else (name, 1)
        found[_kind(kind)] += count
    return found


def _kind(name: str) -> str:
    card = find_device(name)
    return name.strip() if card is None else card.id


def _same_checkpoint(found: str | None, wanted: str) -> bool:
    """By hub name, by its folder in the hub's cache, or by a folder or file that bears its name."""
    if found is None:
        return False
    short = wanted.rpartition("/")[2].rpartition(":")[2]
    parts = found.rstrip("/").split("/")
    return found == wanted or f"models--{wanted.replace('/', '--')}" in parts or parts[-1] == short


def _same_build(found: str | None, image: str, version: str | None) -> bool:
    """A nightly is its commit: `0.19.2rc1.dev205+g07351e088` is of the image `nightly-07351e0883...`."""
    if found is None:
        return False
    commit = _COMMIT.search(image)
    if commit is not None:
        built = re.search(r"\+g([0-9a-f]{7,40})", found)
        return built is not None and commit[1].startswith(built[1])
    plain = found.rpartition(" ")[2]  # `vllm 0.19.1`, as the adapter tells it
    return plain == version or (version is None and image.rpartition(":")[2].removeprefix("v") == plain)

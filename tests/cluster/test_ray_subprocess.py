"""A question to Ray in a process of its own: what it answers, and what becomes of one that fails."""

import os
import sys
from functools import partial

import pytest

from skep.cluster import ray_subprocess
from skep.errors import DoesNotFit, EngineError, UserError

CHILD = """
import os, sys, time
from skep.cluster.ray_subprocess import tell
from skep.errors import DoesNotFit, UserError

def find():
    print("what Ray prints is no answer", flush=True)
    os.write(1, b"nor what its C++ part writes\\n")
    match sys.argv[1]:
        case "answers":
            return {"heard": sys.stdin.read(), "impatient": os.environ["RAY_gcs_server_request_timeout_seconds"]}
        case "refuses":
            raise UserError("no such node", hint="look again")
        case "has no room":
            raise DoesNotFit("2 cards are wanted, the cluster has 1")
        case "hangs":
            time.sleep(600)
    sys.exit("it broke")

sys.exit(tell(find))
"""


@pytest.fixture
def ask(tmp_path):
    (tmp_path / "asking_child.py").write_text(CHILD)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}

    def run(word, wait_s=60.0):
        send = partial(ray_subprocess.send, "asking_child", asked="the cluster", given="a token", env=env, hint="wait")
        return send([word], wait_s=wait_s)

    return run


def test_only_what_the_child_tells_is_its_answer(ask):
    assert ask("answers") == {"heard": "a token", "impatient": "8"}


@pytest.mark.parametrize(
    ("word", "error", "message", "hint"),
    [
        ("refuses", UserError, "no such node", "look again"),
        ("has no room", DoesNotFit, "2 cards are wanted, the cluster has 1", None),
        ("breaks", EngineError, "the cluster cannot be asked: it broke", "wait"),
    ],
)
def test_an_error_of_the_child_is_raised_here(ask, word, error, message, hint):
    with pytest.raises(error) as caught:
        ask(word)
    assert (type(caught.value), caught.value.message, caught.value.hint) == (error, message, hint)


def test_a_child_that_hangs_is_ended_and_told(ask):
    with pytest.raises(EngineError, match=r"the cluster did not answer within 0\.2 s"):
        ask("hangs", wait_s=0.2)

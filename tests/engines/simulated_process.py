"""A simulated engine on a small fast rig, as a process of its own."""

import json
import subprocess
import sys
import urllib.error
import urllib.request

from msgspec.structs import replace

from skep.catalog.gpus import device
from skep.catalog.models import geometry
from skep.engines.simulated import plan_of
from skep.planner.predict import prospect
from skep.planner.setup import Layout, Rig, Setup, Speculation, find_kv, find_quant
from skep.planner.step import published_constants

MODEL = "qwen3-8b"


def small_prospect(*, slots=4, card="h200", spec=None, context=4096):
    """An 8B on an H200: some 3 ms a step."""
    setup = Setup(
        geometry(MODEL),
        find_quant("awq"),
        find_kv("bf16"),
        "vllm",
        Layout(),
        slots=slots,
        spec=spec,
    )
    return prospect(setup, Rig((device(card),)), published_constants(), context=context)


def small_plan(*, load_s=0.0, context=4096, **options):
    plan = plan_of(
        small_prospect(context=context, **options), context_tokens=context, about="a small rig"
    )
    return replace(plan, load_s=load_s)


class Simulated:
    def __init__(self, plan):
        argv = [
            sys.executable,
            "-m",
            "skep.engines.simulated_server",
            "--model",
            MODEL,
            "--plan",
            plan.to_json(),
        ]
        self.process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.url = json.loads(self.process.stdout.readline())["url"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        _, log = self.process.communicate(timeout=10)
        assert "Traceback" not in log, log

    def get(self, path):
        return ask(f"{self.url}{path}")

    def post(self, path, body):
        return ask(
            f"{self.url}{path}", body if isinstance(body, bytes) else json.dumps(body).encode()
        )

    def figures(self):
        from skep.wire.prometheus import parse_metrics

        return parse_metrics(self.get("/metrics")[2].decode())


def ask(url, body=None):
    """Status, headers, body."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=20) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


MTP = Speculation("mtp", 3)

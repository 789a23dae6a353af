"""Diagnosis: rules, their order, what they change, and what holds for all of them."""

from __future__ import annotations

import random
import shlex
import signal
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from skep.catalog.gpus import device
from skep.catalog.presets import Draft, EngineOptions
from skep.engines.base import EXIT_FINAL, Launch
from skep.engines.diagnosis import (
    diagnose,
    find_rule,
    make_diagnosis,
    match,
    plain,
    rule_file,
)
from skep.engines.remedies import predict_failure
from skep.supervisor.replica import read_oom_kills

ROOT = Path(__file__).parents[2]
TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a "
    "total capacity of 23.69 GiB "
    "of which 211.25 MiB is free."
)
SEED = 20261115


def launch_of(
    engine: str = "vllm", *, slots: int = 64, context: int = 32768, **options: object
) -> Launch:
    return Launch(
        "r0",
        engine,
        "a-model",
        None,
        slots,
        context,
        4,
        checkpoint="someone/a-model",
        options=EngineOptions(**options),
    )


def full(engine: str) -> Launch:
    """Everything set that a step could take away."""
    options = {
        "tp": 4,
        "memory_share": 0.92,
        "kv": "turboquant_k8v4",
        "quant": "awq",
        "draft": Draft("mtp", 3),
    }
    return launch_of(engine, context=262144, chunked_prefill=False, batched_tokens=8192, **options)


def launch_for(rule) -> Launch:
    engine = (rule.engines or ("vllm",))[0]
    for launch in (
        launch_of(engine, tp=4),
        replace(full(engine), options=replace(full(engine).options, kv="fp8")),
    ):
        if rule.concerns(launch):
            return launch
    return launch_of(engine, tp=4, p2p="off")


@pytest.mark.parametrize("rule", rule_file().rules, ids=lambda rule: rule.id)
def test_every_rule_wins_on_its_own_example_with_a_filled_in_cause_and_remedy(rule):
    matched = find_rule(launch_for(rule), 1, rule.example)
    assert matched is not None
    assert matched[0].id == rule.id
    diagnosis = make_diagnosis(*matched)
    assert diagnosis.remedy
    assert not any(
        sign in text for text in (diagnosis.cause, diagnosis.remedy) for sign in ("{", "None", "?")
    )


def test_every_rule_stands_once():
    rules = (*rule_file().rules, *rule_file().kernel)
    assert len({rule.id for rule in rules}) == len(rules)
    # It is allowed already.
    assert find_rule(launch_of(trust_remote_code=True), 1, [CUSTOM]) is None
    page = ROOT / "docs" / "troubleshooting.md"
    assert "(../src/skep/engines/diagnosis.toml)" in page.read_text()


def test_an_engine_that_does_not_know_a_parser_is_started_without_it():
    error = "KeyError: 'invalid tool call parser: qwen3_coder (chose from { hermes,mistral })'"
    diagnosis = diagnose(launch_of("vllm"), 1, ["Traceback (most recent call last):", error])
    assert diagnosis.cause == "this version of vLLM has no tool parser `qwen3_coder`"
    assert diagnosis.changed == "tool_parser unset -> none"
    assert diagnosis.change.options.tool_parser == "none"
    assert "set tool_parser to none" in diagnosis.remedy


def test_a_line_is_taken_out_of_its_prefixes():
    raw = (
        "\x1b[1;36m(EngineCore_DP0 pid=123)\x1b[0;0m ERROR 11-15 10:00:00 [core.py:866] "
        "ValueError: no"
    )
    assert plain(raw).text == "ValueError: no"
    assert plain(raw).level == "ERROR"
    assert plain("(VllmWorker rank=1 pid=2978) INFO 03-19 07:27:53 [a.py:3] x").level == "INFO"
    assert (
        plain("[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog").text
        == "[Rank 0] Watchdog"
    )
    assert plain("[2025-10-06 20:05:22 DP0 TP0] Load weight begin.").text == "Load weight begin."
    assert plain("1.06.520.077 E graph_reserve: no").level == "ERROR"
    assert (
        plain('time=2026-03-01T10:00:00.000Z level=WARN source=a.go:1 msg="x"').level == "WARNING"
    )


FP8 = "ValueError: type fp8e4nv not supported in this architecture."
HEADS = (
    "ValueError: Total number of attention heads (32) must be divisible by tensor parallel size "
    "(5)."
)
CUSTOM = (
    "ValueError: The repository contains custom code which must be executed to correctly load "
    "the model."
)
BENT = (
    "(EngineCore pid=8) ERROR 11-15 10:00:00 [core.py:866] frobnicate.FrobError: the frob is bent"
)
CORE_GONE = (
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. "
    "Failed: {}"
)
NO_TEMPLATE = (
    '{"error":{"message":"As of transformers v4.44, default chat template is no longer '
    'allowed","code":400}}'
)
OF_OLLAMA = replace(launch_of("ollama"), checkpoint="qwen3:8b")
ODD = (
    "CUDA out of memory. Tried to allocate 1.2.3 GiB. GPU 0 has a total capacity of 4 GiB of "
    "which 1 MiB is free"
)
LEGS = [
    "llama_model_load: error loading model: unknown model architecture: 'x9'",
    "error: llama.cpp refused to start",
]
KILL = -signal.SIGKILL
CASES = {
    "a specific cause wins over the end of the traceback": (
        launch_of(),
        1,
        [FP8, CORE_GONE],
        "FP8 weights",
        ...,
    ),
    "also where it comes later": (launch_of(), 1, [CORE_GONE, FP8], "FP8 weights", ...),
    "without a rule the root cause is shown, not the hint at it": (
        launch_of(),
        1,
        [BENT, CORE_GONE],
        "frobnicate.FrobError: the frob is bent (exit code 1)",
        None,
    ),
    "the share falls by a step": (
        launch_of(memory_share=0.92),
        1,
        [TORCH],
        "lower memory_share from 0.92 to 0.87",
        "memory_share 0.92 -> 0.87",
    ),
    "by what the log says was missing, where that is more": (
        launch_of(memory_share=0.92),
        1,
        [TORCH.replace("512.00 MiB", "3.00 GiB")],
        "",
        "memory_share 0.92 -> 0.79",
    ),
    "while graphs are captured": (
        launch_of(memory_share=0.92),
        1,
        ['  File "x.py", line 3, in capture_model', TORCH],
        "while CUDA graphs were captured",
        "memory_share 0.92 -> 0.87",
    ),
    "a lower share is not offered where weights do not fit": (
        launch_of(memory_share=0.92, tp=2),
        1,
        ['  File "x.py", line 3, in load_model', TORCH],
        "tp 2 -> 4",
        None,
    ),
    "llama.cpp has no share to lower": (
        launch_of("llamacpp", slots=5),
        1,
        ["CUDA error: out of memory"],
        "",
        "slots 5 -> 2",
    ),
    "a share is never raised but said": (
        launch_of(memory_share=0.8),
        1,
        ["ValueError: No available memory for the cache blocks."],
        "raise memory_share from 0.8 to 0.85",
        "batched_tokens 2048 -> 1024",
    ),
    "code of a checkpoint is never allowed by itself": (launch_of(), 1, [CUSTOM], "", None),
    "FP8 KV becomes 16 bit": (launch_of(kv="fp8_e4m3"), 1, [FP8], "", "kv fp8_e4m3 -> unset"),
    "another layout is chosen by its owner": (
        launch_of(tp=5),
        1,
        [HEADS],
        "use replicas instead of tp",
        None,
    ),
    "a refusal by a running engine is explained": (
        launch_of(),
        None,
        [NO_TEMPLATE],
        "the model has no chat template",
        None,
    ),
    "a model that Ollama lacks is to be pulled": (
        OF_OLLAMA,
        None,
        ['{"error":"model \'qwen3:8b\' not found"}'],
        "run `ollama pull qwen3:8b`",
        None,
    ),
    "a kill that nobody counted": (
        launch_of(),
        KILL,
        [],
        "killed by SIGKILL: out of memory?",
        None,
    ),
    "a bus error without links": (launch_of(tp=2, p2p="off"), -signal.SIGBUS, [], "NVLink", ...),
    "a bus error with links": (launch_of(tp=2), -signal.SIGBUS, [], "/dev/shm", ...),
    "what was told to end is not explained by its log": (
        launch_of(),
        -signal.SIGTERM,
        [TORCH],
        "killed by SIGTERM",
        None,
    ),
    "an engine of ours has the last word": (
        launch_of("embedded"),
        EXIT_FINAL,
        ["error: port 7 is in use: choose another one"],
        "port 7",
        None,
    ),
    "unless llama.cpp said it better": (
        launch_of("embedded"),
        EXIT_FINAL,
        LEGS,
        "this llama.cpp does not know `x9`",
        ...,
    ),
    "without any words the exit code tells": (launch_of(), 3, [], "exit code 3", None),
    "numbers that are none": (
        launch_of(),
        1,
        [f"torch.OutOfMemoryError: {ODD}"],
        "out of GPU memory",
        ...,
    ),
}


@pytest.mark.parametrize(("launch", "code", "tail", "text", "changed"), CASES.values(), ids=CASES)
def test_an_end_is_explained_and_at_most_one_thing_is_changed(launch, code, tail, text, changed):
    """What would end so again is final."""
    diagnosis = diagnose(launch, code, tail)
    assert text in str(diagnosis)
    assert changed is ... or diagnosis.changed == changed
    assert diagnosis.final or tail not in ([CUSTOM], LEGS)


def test_a_kill_is_put_down_to_the_kernel_only_where_it_counted():
    assert str(diagnose(launch_of(), KILL, [], oom_kills=0)) == "killed by SIGKILL: out of memory?"
    counted = diagnose(launch_of("embedded", slots=4), KILL, ["loading"], oom_kills=1)
    assert "by the kernel" in counted.cause
    assert counted.changed == "slots 4 -> 2"
    assert "by the kernel" in diagnose(launch_of(), 137, [], oom_kills=1).cause


ENGINES = ("vllm", "sglang", "llamacpp", "embedded", "ollama", "fake", "no-such-engine")
SAMPLES = [line for rule in rule_file().rules for line in rule.example]


def garbled(rng: random.Random) -> str:
    line = rng.choice(SAMPLES)
    match rng.randrange(4):
        case 0:
            return "".join(chr(rng.randrange(1, 0x3000)) for _ in range(rng.randrange(300)))
        case 1:
            return line[: rng.randrange(len(line) + 1)] + line[rng.randrange(len(line)) :]
        case 2:
            return "".join(
                str(rng.randrange(10)) if char.isdigit() else char for char in line
            ) * rng.randrange(1, 3)
        case _:
            return (
                f"(EngineCore pid={rng.randrange(9999)}) ERROR 11-15 10:00:00 [core.py:866] {line}"
            )


@pytest.mark.parametrize("run", range(60))
def test_any_log_is_answered_with_a_line_of_it_and_one_change(run):
    rng = random.Random(SEED + run)
    print("seed", SEED + run)
    engine = rng.choice(ENGINES)
    small = {"slots": 1, "context": 2048, "memory_share": 0.5, "tp": 2}
    launch = rng.choice([full(engine), launch_of(engine), launch_of(engine, **small)])
    tail = [garbled(rng) for _ in range(rng.randrange(12))]
    diagnosis = diagnose(
        launch,
        rng.choice([None, 0, 1, 3, -6, -7, -9, 137, 127]),
        tail,
        oom_kills=rng.choice([None, 0, 2]),
    )
    assert diagnosis.evidence is None or diagnosis.evidence in {plain(line).shown for line in tail}
    assert diagnosis.evidence is None or len(diagnosis.evidence) <= 200
    assert (diagnosis.change is None) == (diagnosis.changed is None)
    if diagnosis.change is not None:
        pairs = [(launch, diagnosis.change), (launch.options, diagnosis.change.options)]
        fields = [
            (before, after, name)
            for before, after in pairs
            for name in before.__struct_fields__
            if name != "options"
        ]
        assert (
            sum(getattr(before, name) != getattr(after, name) for before, after, name in fields)
            == 1
        )


@pytest.mark.parametrize("run", range(8))
def test_changes_end_whatever_the_logs_say_in_turn(run):
    rng = random.Random(SEED + run)
    print("seed", SEED + run)
    launch = full(rng.choice(ENGINES))
    taken = 0
    for _ in range(80):
        rule = rng.choice(rule_file().rules)
        diagnosis = diagnose(launch, 1, rule.example)
        if diagnosis.change is not None:
            launch = diagnosis.change
            taken = taken + 1
    assert taken < 60
    assert launch.slots >= 1
    assert launch.context_tokens >= 2048
    assert (launch.options.memory_share or 1) >= 0.5


@pytest.mark.parametrize(
    "rule", [rule for rule in rule_file().rules if rule.steps], ids=lambda rule: rule.id
)
def test_the_same_log_again_and_again_runs_out_of_changes(rule):
    launch = launch_for(rule)
    for _ in range(40):
        diagnosis = diagnose(launch, 1, rule.example)
        if diagnosis.change is None:
            return
        launch = diagnosis.change
    pytest.fail("it never ended")


@pytest.mark.parametrize(
    ("options", "cards", "cause", "remedy"),
    [
        ({"tp": 5}, ["rtx-3090"] * 5, "TP=5 is refused", "--tp 4"),
        ({"tp": 4}, ["rtx-3090"] * 2, "tp 4 x pp 1 x dp 1 needs 4 cards, 2 are given", "lower tp"),
        ({"dtype": "bfloat16"}, ["t4"], "has no bfloat16", "set dtype to float16"),
        ({"kv": "fp8_e4m3"}, ["t4"], "", "kv"),
    ],
    ids=[
        "heads must divide",
        "cards must be there",
        "an old card has no bfloat16",
        "an old card has no fp8",
    ],
)
def test_before_the_start_it_is_said_what_cannot_be_with_what_can(options, cards, cause, remedy):
    named = replace(launch_of(**options), checkpoint="Qwen/Qwen3-8B")
    diagnosis = predict_failure(named, [device(card) for card in cards])
    assert cause in diagnosis.cause
    assert remedy in diagnosis.remedy


def test_before_the_start_what_depends_on_the_version_is_left_to_the_engine():
    """Nor is anything said of what is not known."""
    cards = [device("rtx-3090")] * 2
    for options in ({"kv": "fp8"}, {"quant": "fp8"}, {"tp": 2}, {"kv": "turboquant_k8v4"}):
        assert (
            predict_failure(replace(launch_of(**options), checkpoint="Qwen/Qwen3.6-27B"), cards)
            is None
        )
    assert predict_failure(launch_of("llamacpp", tp=5), cards[:1]) is None
    assert predict_failure(launch_of(tp=3), []) is None
    assert predict_failure(replace(launch_of(tp=4), checkpoint="Qwen/Qwen3-8B"), cards * 2) is None


def test_kills_are_read_from_the_group_and_else_from_the_machine(tmp_path):
    proc = tmp_path / "proc"
    cgroup = tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (cgroup / "box").mkdir(parents=True)
    assert read_oom_kills(proc=proc, cgroup=cgroup) is None
    (proc / "vmstat").write_text("nr_free_pages 3\noom_kill 7\n")
    assert read_oom_kills(proc=proc, cgroup=cgroup) == 7
    (proc / "self" / "cgroup").write_text("0::/box\n")
    (cgroup / "box" / "memory.events").write_text("low 0\noom 2\noom_kill 1\n")
    assert read_oom_kills(proc=proc, cgroup=cgroup) == 1


def test_a_diagnosis_of_long_words_takes_no_longer_than_of_short_ones():
    rule = next(rule for rule in rule_file().rules if rule.id == "architecture")

    def seconds(line):
        began = time.process_time()
        match(rule, launch_of(), 1, [plain(line)] * 40)
        return time.process_time() - began

    assert seconds("a" * 990) < 0.01 + 8 * seconds("ab " * 330)


# Excerpts of real logs: the first line of each file says what to expect

FOLDER = Path(__file__).parent / "logs"
LOGS = [log for log in sorted(FOLDER.glob("*.log")) if log.stem != "healthy"]


def expected(log: Path) -> tuple[dict[str, str], list[str]]:
    head, *lines = log.read_text().splitlines()
    return dict(word.split("=", 1) for word in shlex.split(head.removeprefix("#!"))), lines


def launch_of_log(header: dict[str, str]) -> Launch:
    draft = header.get("draft")
    options = EngineOptions(
        tp=int(header.get("tp", 1)),
        memory_share=float(header["share"]) if "share" in header else None,
        kv=header.get("kv"),
        draft=None if draft is None else Draft(draft.split(":")[0], int(draft.split(":")[1])),
    )
    slots = int(header.get("slots", 8))
    context = int(header.get("context", 32768))
    return replace(launch_of(header["engine"], slots=slots, context=context), options=options)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_a_real_log_is_explained(log):
    header, lines = expected(log)
    launch = launch_of_log(header)
    matched = find_rule(launch, int(header["code"]), lines)
    assert matched is not None
    rule, case = matched
    assert rule.id == header["rule"]
    diagnosis = make_diagnosis(rule, case)
    assert diagnosis.changed == header.get("changed")
    assert diagnosis.evidence in {plain(line).shown for line in lines}
    assert "{" not in diagnosis.cause
    assert "?" not in diagnosis.cause


def test_the_loss_of_a_core_is_put_down_to_the_kernel_where_that_counted_a_kill():
    """And of a hub's error what was raised is shown, not the line of code."""
    header, lines = expected(FOLDER / "vllm_core_vanished.log")
    assert "killed, or crashed outside Python" in diagnose(launch_of_log(header), 0, lines).cause
    assert "killed by the kernel" in diagnose(launch_of_log(header), 0, lines, oom_kills=1).cause
    header, lines = expected(FOLDER / "vllm_offline_hub.log")
    raised = "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find"
    assert diagnose(launch_of_log(header), 1, lines).evidence.startswith(raised)


HEALTHY = (FOLDER / "healthy.log").read_text()


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp", "embedded", "ollama"])
def test_a_healthy_log_gives_no_cause_and_neither_does_a_line_of_it(engine):
    lines = HEALTHY.splitlines()
    assert [find_rule(launch_of(engine), code, lines) for code in (0, 1, None)] == [None] * 3
    assert [line for line in lines if find_rule(launch_of(engine), 1, [line])] == []
    assert "ulimit" not in diagnose(launch_of(engine), 1, lines[:5]).cause  # a warning is no error


def test_a_log_of_long_lines_takes_time_in_proportion_to_its_lines():
    """13 s were spent on 400 lines that every rule had to look at in full."""
    line = "ERROR couldn't connect to 'https://" + "fp8 NCCL WARN (CUDA, " * 200

    def spent(count):
        began = time.thread_time()
        diagnose(launch_of(), 1, [line] * count)
        return time.thread_time() - began

    assert min(spent(200) for _ in range(3)) < 10 * min(spent(50) for _ in range(3))


def test_only_the_beginning_of_a_line_is_looked_at():
    assert "out of GPU memory" in str(diagnose(launch_of(), 1, [TORCH + "x" * 1_000_000]))
    assert str(diagnose(launch_of(), 1, ["x" * 1000 + TORCH])) != str(
        diagnose(launch_of(), 1, [TORCH])
    )

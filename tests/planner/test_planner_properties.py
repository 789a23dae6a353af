"""What must hold whatever model, card, format and load are put together: drawn at random, the seed
is printed.

A test that is marked xfail names the smallest example of a known fault; once it is mended, the
mark has to go."""

import dataclasses
import random

import pytest
from msgspec.structs import replace

from skep.catalog.gpus import device, devices
from skep.catalog.models import geometries, geometry
from skep.config.rigs import parse_rig
from skep.errors import UserError
from skep.planner.candidates import Pins, PlanGoal
from skep.planner.choose import choose
from skep.planner.memory import (
    defaults,
    kv_bytes_per_token,
    longest_context,
    memory,
    usable_bytes,
    weights_bytes,
)
from skep.planner.predict import lengths, simulate_load
from skep.planner.ranking import band
from skep.planner.rules import valid_rungs
from skep.planner.setup import (
    KV_TYPES,
    QUANTS,
    CardLink,
    Layout,
    PlannedLoad,
    Setup,
    Speculation,
    default_link,
    group_link,
)
from skep.planner.step import all_reduce, is_datacenter, published_constants, step_model
from skep.units import GIB

K = published_constants()
MODELS = tuple(geometries().values())
CARDS = tuple(devices().values())
SAFETENSORS = ("awq", "fp8", "bf16", "int8", "nvfp4", "gptq")
GGUF = ("q4_k_m", "q5_k_m", "q6_k", "q8_0", "f16")
TRIES = 60


@pytest.fixture
def chance():
    seed = random.randrange(1 << 30)
    print("seed", seed)
    return random.Random(seed)


def step(model, quant, card, tp=1, link=None, kv="bf16", engine="vllm", spec=None):
    return step_model(
        Setup(model, QUANTS[quant], KV_TYPES[kv], engine, Layout(tp=tp), spec=spec), card, link, K
    )


def drawn(chance, engines=("vllm", "sglang", "llamacpp")):
    """A model, a card, an engine with a format it reads, sequences and tokens of each."""
    engine = chance.choice(engines)
    quant = chance.choice(GGUF if engine == "llamacpp" else SAFETENSORS)
    sequences = chance.choice([1, 2, 4, 8, 16, 64, 256])
    context = chance.choice([10, 200, 1000, 8000, 100_000])
    return chance.choice(MODELS), chance.choice(CARDS), engine, quant, sequences, context


def some_spec(chance):
    return chance.choice([None, Speculation("mtp", chance.choice([1, 3, 5]))])


def said(*values):
    return " ".join(str(getattr(value, "id", value)) for value in values)


def test_more_bandwidth_and_more_flops_never_make_a_step_longer(chance):
    for _ in range(TRIES):
        model, card, engine, quant, n, context = drawn(chance)
        spec = some_spec(chance)
        times = chance.choice([1.05, 1.3, 2.0, 4.0])
        faster = dataclasses.replace(card, bandwidth_gbs=card.bandwidth_gbs * times)
        if is_datacenter(faster) != is_datacenter(card):
            continue  # the fault below
        stronger = dataclasses.replace(
            card, fp16_tflops=card.fp16_tflops and card.fp16_tflops * times
        )
        plain = step(model, quant, card, engine=engine, spec=spec).seconds(n, n * context)
        for better in (faster, stronger):
            seconds = step(model, quant, better, engine=engine, spec=spec).seconds(n, n * context)
            assert seconds <= plain * 1.0001, said(
                model, card, engine, quant, n, context, spec, times
            )


def test_what_once_was_a_fault_stays_mended():
    slower, faster = (
        dataclasses.replace(device("rtx-3090"), bandwidth_gbs=rate) for rate in (1199, 1201)
    )
    model = geometry("qwen3-8b")
    assert step(model, "bf16", faster).seconds(1, 1000) <= step(model, "bf16", slower).seconds(
        1, 1000
    )
    bridge, slot = (
        all_reduce(2, link, K)
        for link in (CardLink("nvlink", 56.2), CardLink("pcie", 31.5, p2p=True))
    )
    for size in (2 * 4096, 2 * 4096 * 8):  # one token, eight
        assert bridge.fixed_s + bridge.s_per_byte * size <= slot.fixed_s + slot.s_per_byte * size
    model = geometry("qwen3.6-27b")
    card = device("b200")
    spec = Speculation("mtp", 3)
    alone = step(model, "fp8", card, spec=spec).seconds(1, 1000)
    assert (
        step(model, "fp8", card, 2, CardLink("nvlink", 900.0), spec=spec).seconds(1, 1000) <= alone
    )
    model_of_step = step(
        geometry("gpt-oss-120b"), "mxfp4", device("mi300x"), 8, CardLink("nvlink", 64.0)
    )
    assert 1 / model_of_step.seconds(1, 1536) > 120


def test_a_step_grows_with_sequences_context_and_prompt_and_is_finite(chance):
    for _ in range(TRIES):
        model, card, engine, quant, n, context = drawn(chance)
        model_of_step = step(model, quant, card, engine=engine, spec=some_spec(chance))
        described = said(model, card, engine, quant, n, context)
        plain = model_of_step.seconds(n, n * context)
        assert 0 < plain < 1e5, described
        assert plain <= model_of_step.seconds(n + 1, (n + 1) * context), described
        assert plain <= model_of_step.seconds(n, 2 * n * context), described
        assert (
            plain
            <= model_of_step.seconds(n, n * context, 100)
            <= model_of_step.seconds(n, n * context, 2000)
        ), described
        assert model_of_step.seconds(n, n * context, 1000, 0) <= model_of_step.seconds(
            n, n * context, 1000, 5000
        ), described


def test_more_sequences_bring_more_tokens_a_second_where_nothing_speculates(chance):
    for _ in range(TRIES):
        model, card, engine, quant, n, context = drawn(chance)
        model_of_step = step(model, quant, card, engine=engine)
        rates = [
            count / model_of_step.seconds(count, count * context) for count in (n, n + 1, 2 * n)
        ]
        assert rates[0] <= rates[1] * 1.001 <= rates[2] * 1.002, said(
            model, card, engine, quant, n, context
        )


def test_fewer_bits_are_never_slower_for_one_agent(chance):
    for _ in range(TRIES):
        model, card, engine, _, _, context = drawn(chance)
        if (model.is_moe and model.is_hybrid) or is_datacenter(card):
            # 4-bit checkpoints of those keep attention in 16 bit; HBM is faster than weights are
            # unpacked
            continue
        if engine == "llamacpp":
            order = GGUF
        else:
            order = ("awq", "fp8", "bf16")
        times = [step(model, quant, card, engine=engine).seconds(1, context) for quant in order]
        assert times == sorted(times), said(model, card, engine, context)


def test_a_smaller_cache_type_is_never_read_slower(chance):
    for _ in range(TRIES):
        model, card, engine, quant, n, context = drawn(chance)
        if engine == "llamacpp":
            kinds = ("bf16", "q8_0", "q4_0")
        else:
            kinds = ("bf16", "fp8", "turboquant_3bit")
        times = [
            step(model, quant, card, engine=engine, kv=kv).seconds(n, n * context) for kv in kinds
        ]
        assert times == sorted(times, reverse=True), said(model, card, engine, quant, n, context)


def test_a_better_link_of_one_kind_is_never_slower(chance):
    for _ in range(TRIES):
        model, card, engine, quant, n, context = drawn(chance)
        tp = chance.choice([r for r in valid_rungs(model) if r <= 8])
        prompt = chance.choice([0, 512, 2048])
        links = [
            CardLink("pcie", 8.0, p2p=False),
            CardLink("pcie", 31.5, p2p=False),
            CardLink("pcie", 31.5, p2p=True),
        ]
        links = chance.choice(
            [
                links,
                [CardLink("nvlink", 56.2), CardLink("nvlink", 112.0), CardLink("nvlink", 450.0)],
            ]
        )
        times = [
            step(model, quant, card, tp, link, engine=engine).seconds(n, n * context, prompt)
            for link in links
        ]
        assert times == sorted(times, reverse=True), said(
            model, card, engine, quant, tp, n, context, prompt
        )


def test_a_group_over_a_free_link_is_between_one_card_and_perfect_division(chance):
    for _ in range(TRIES):
        model, card, engine, quant, n, context = drawn(chance)
        tp = chance.choice([r for r in valid_rungs(model) if r <= 8])
        alone = step(model, quant, card, engine=engine).seconds(n, n * context)
        group = step(model, quant, card, tp, CardLink("nvlink", 1e9), engine=engine)
        free = group.seconds(n, n * context) - group.comm_fixed_s
        assert alone / tp * 0.999 <= free <= alone * 1.001, said(
            model, card, engine, quant, tp, n, context
        )


def test_more_of_the_drafts_accepted_bring_more_and_never_more_than_all(chance):
    for _ in range(TRIES):
        model, card, engine, quant, n, _ = drawn(chance)
        depth = chance.randint(1, 8)
        brought = [
            step(
                model, quant, card, engine=engine, spec=Speculation("mtp", depth, share)
            ).tokens_per_step(n)
            for share in (0.0, 0.3, 0.7, 1.0)
        ]
        assert brought == sorted(brought), said(model, engine, depth)
        assert (brought[0], brought[-1] <= 1 + depth) == (1.0, True), said(model, engine, depth)


# What a model is made of, and what lies on a card


def test_memory_is_never_negative_and_shrinks_with_every_card_of_a_group(chance):
    for _ in range(TRIES):
        model, card, engine, quant, n, context = drawn(chance)
        spec = some_spec(chance)
        whole = weights_bytes(model, QUANTS[quant], with_vision=False)
        before = None
        for tp in (r for r in valid_rungs(model) if r <= 8):
            setup = Setup(
                model,
                QUANTS[quant],
                KV_TYPES["bf16"],
                engine,
                Layout(tp=tp),
                slots=min(n, 64),
                spec=spec,
            )
            plan = memory(setup, card, context=min(context, model.max_context or context))
            described = said(model, card, engine, quant, tp, n, context, spec)
            assert all(term.bytes >= 0 for term in plan.terms), described
            now = (plan.bytes_of("weights"), kv_bytes_per_token(setup))
            if engine != "llamacpp":  # which leaves the embeddings in system memory
                assert now[0] * tp >= 0.99 * whole, described
            assert before is None or (now[0] <= before[0] and now[1] <= before[1]), described
            before = now


def test_a_larger_card_and_more_utilization_hold_more_and_more_slots_hold_less_each(chance):
    for _ in range(TRIES // 3):
        model, card, engine, quant, _, _ = drawn(chance, ("vllm", "llamacpp"))
        slots = chance.choice([1, 2, 8])
        chunk = defaults(
            engine, card
        ).batched_tokens  # vLLM takes a larger one from 70 GiB on, out of the cache
        setup = Setup(
            model, QUANTS[quant], KV_TYPES["bf16"], engine, slots=slots, batched_tokens=chunk
        )
        context = longest_context(setup, card, slots)
        described = said(model, card, engine, quant, slots)
        assert (
            longest_context(
                setup, dataclasses.replace(card, memory_gib=card.memory_gib * 1.5), slots
            )
            >= context
        ), described
        assert longest_context(replace(setup, slots=2 * slots), card, 2 * slots) <= context, (
            described
        )
        assert 0 <= context <= (model.max_context or 1 << 20), described


def test_a_spark_has_what_cuda_reports():
    assert usable_bytes(device("dgx-spark")) == pytest.approx(121.7 * GIB, rel=0.03)


def test_from_70_gib_on_vllm_prefills_in_larger_chunks():
    card = dataclasses.replace(device("radeon-pro-w7900"), memory_gib=72.0)
    setup = Setup(geometry("gemma-4-31b"), QUANTS["awq"], KV_TYPES["bf16"], "vllm", slots=8)
    in_small_chunks = replace(setup, batched_tokens=2048)
    assert longest_context(setup, card, 8) < longest_context(in_small_chunks, card, 8)


# Loads played through


def played(model_of_step, load, slots=64, pool=1e9, chunk=2048, replicas=1):
    return simulate_load(
        model_of_step, load, slots=slots, pool_tokens=pool, chunk_tokens=chunk, replicas=replicas
    )


def test_every_task_ends_after_it_began_and_no_token_is_lost(chance):
    for _ in range(TRIES // 2):
        model, card, engine, quant, _, _ = drawn(chance)
        model_of_step = step(model, quant, card, engine=engine, spec=some_spec(chance))
        shape = chance.choice(["steady", "burst", "mixed"])
        agents = chance.choice([1, 2, 3, 5, 8, 33])
        slots = chance.choice([1, 2, 4, 64])
        replicas = chance.randint(1, 3)
        spread = 1.0 if shape == "mixed" else 0.0
        prompt = chance.choice([0, 1, 100, 9000])
        answer = chance.choice([0, 1, 2, 64, 512])
        load = PlannedLoad(agents, prompt, answer, shape=shape, spread=spread)
        pool = chance.choice([1e9, 5000, 40])
        chunk = chance.choice([16, 512, 8192])
        got = played(model_of_step, load, slots, pool, chunk, replicas)
        described = said(model, card, engine, quant, load, slots, pool, chunk, replicas)
        expected = agents * {"burst": 1, "mixed": 14, "steady": 3}[shape]
        assert got.tasks == expected, described
        tokens = sum(lengths(expected, load.output_tokens, spread))
        assert got.effective_tok_s * got.wall_s == pytest.approx(tokens), described
        assert 0 < got.ttft_s <= got.wall_s * 1.000001, described
        assert got.running <= min(agents, slots * replicas) + 1e-9, described


def test_longer_prompts_never_bring_the_first_token_earlier(chance):
    for _ in range(TRIES // 2):
        model, card, engine, quant, _, _ = drawn(chance)
        model_of_step = step(model, quant, card, engine=engine)
        agents = chance.choice([1, 3, 8, 20])
        slots = chance.choice([1, 4, 64])
        shape = chance.choice(["steady", "burst"])
        prompts = chance.choice([(64, 200), (1000, 4000)])
        short, long = (
            played(model_of_step, PlannedLoad(agents, n, 128, shape=shape), slots).ttft_s
            for n in prompts
        )
        assert short <= long, said(model, card, engine, quant, agents, slots, shape)


def test_more_agents_below_the_slots_never_bring_less_in_a_steady_load(chance):
    for _ in range(TRIES // 2):
        model, card, _, quant, _, _ = drawn(chance, ("vllm", "sglang"))
        model_of_step = step(model, quant, card, spec=some_spec(chance))
        agents = chance.choice([1, 2, 4, 8, 16])
        prompt = chance.choice([16, 512, 2048])
        few, many = (
            played(model_of_step, PlannedLoad(count, prompt, 256)).effective_tok_s
            for count in (agents, 2 * agents)
        )
        assert few <= many * 1.01, said(model, card, quant, agents, prompt)


PLAIN_STEP = step(geometry("qwen3-8b"), "bf16", device("rtx-3090"))


def test_a_mixed_level_does_not_depend_on_its_length():
    usual = PlannedLoad(8, 1024, 512, shape="mixed", spread=1.0)
    longer = played(PLAIN_STEP, replace(usual, tasks=240)).effective_tok_s
    assert played(PLAIN_STEP, usual).effective_tok_s == pytest.approx(longer, rel=0.05)


def test_tasks_that_arrive_together_wait_as_a_burst():
    flood = played(PLAIN_STEP, PlannedLoad(4, 2048, 32, tasks=4, rate_per_s=1000.0))
    burst = played(PLAIN_STEP, PlannedLoad(4, 2048, 32, tasks=4, shape="burst"))
    assert flood.ttft_s == pytest.approx(burst.ttft_s, rel=0.02)


def test_two_tasks_on_two_replicas_take_as_long_as_one_on_one():
    two_tasks = PlannedLoad(2, 2048, 32, tasks=2, rate_per_s=1000.0)
    on_two = played(PLAIN_STEP, two_tasks, replicas=2)
    on_one = played(PLAIN_STEP, PlannedLoad(1, 2048, 32, tasks=1))
    assert on_two.wall_s == pytest.approx(on_one.wall_s, rel=0.02)


def test_twice_the_replicas_for_twice_the_agents_bring_twice_as_much(chance):
    for _ in range(TRIES // 3):
        model, card, _, quant, _, _ = drawn(chance, ("vllm",))
        model_of_step = step(model, quant, card)
        agents = chance.choice([1, 2, 8])
        replicas = chance.randint(1, 3)
        few = played(
            model_of_step, PlannedLoad(agents * replicas, 256, 256), replicas=replicas
        ).effective_tok_s
        many = played(
            model_of_step, PlannedLoad(2 * agents * replicas, 256, 256), replicas=2 * replicas
        ).effective_tok_s
        assert many == pytest.approx(2 * few, rel=0.02), said(model, card, quant, agents, replicas)


def test_an_open_load_brings_no_more_than_arrives(chance):
    for _ in range(TRIES // 3):
        model, card, _, quant, _, _ = drawn(chance, ("vllm",))
        rate = chance.choice([0.1, 1.0, 10.0])
        tasks = 20
        got = played(
            step(model, quant, card), PlannedLoad(tasks, 256, 64, tasks=tasks, rate_per_s=rate)
        )
        assert got.tasks == tasks
        assert got.effective_tok_s <= rate * 64 * tasks / (tasks - 1), said(
            model, card, quant, rate
        )


# Rigs and choices


def test_every_band_holds_its_own_prediction(chance):
    for _ in range(TRIES):
        model, card, engine, _, n, _ = drawn(chance)
        setup = Setup(
            model,
            QUANTS["awq"],
            KV_TYPES["bf16"],
            engine,
            Layout(tp=chance.choice([1, 2])),
            spec=some_spec(chance),
        )
        around = band(setup, card, n, calibrated=chance.random() < 0.5)
        assert 0.005 < around.low < 1 < around.high < 200, said(model, card, engine, n)


def test_no_pair_of_cards_talks_faster_than_ten_terabits():
    for card in CARDS:
        link = group_link(parse_rig(f"2x {card.id}"), (0, 1))
        assert (0 < link.gbs <= 1250, link.kind) == (True, default_link(card).kind), card.id
    assert default_link(device("cmp-170hx-64gb")).gbs < 1.2  # a mining card's slot


def test_a_slot_without_lanes_is_refused():
    with pytest.raises(UserError):
        choose(geometry("qwen3-8b"), parse_rig("2x rtx-3090: pcie4x0"), PlanGoal(), Pins(tp=2))


def test_a_further_card_of_the_same_kind_never_makes_the_best_plan_worse(chance):
    small = [m for m in MODELS if m.params_total < 40e9]
    nvidia = [
        c
        for c in CARDS
        if c.vendor == "nvidia" and c.memory_gib >= 16 and c.pcie and "x16" in c.pcie
    ]
    for _ in range(4):
        model = chance.choice(small)
        card = chance.choice(nvidia)
        agents = chance.choice([1, 4, 8])
        scores = []
        for count in (1, 2):
            plans = choose(model, parse_rig(f"{count}x {card.id}"), PlanGoal(agents=agents)).plans
            scores.append(max((plan.rated.score for plan in plans), default=0.0))
        # Of a tie, more bits are kept.
        assert scores[0] <= scores[1] * 1.06, said(model, card, agents)

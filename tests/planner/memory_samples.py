"""Cards, models and setups of the memory and rules tests, by short names."""

from skep.catalog.gpus import device
from skep.catalog.models import geometry
from skep.planner.setup import CardLink, Layout, Rig, Setup, Speculation, find_kv, find_quant

RTX_3090 = device("rtx-3090")
RTX_4090 = device("rtx-4090")
RTX_5090 = device("rtx-5090")
RTX_5060_TI = device("rtx-5060-ti-16gb")
RTX_5070_TI = device("rtx-5070-ti")
RTX_2080_TI = device("rtx-2080-ti")
V100 = device("v100-32gb")
A100 = device("a100-sxm")
H100 = device("h100-sxm")
B70 = device("arc-pro-b70")
M4_MAX = device("apple-m4-max")

QWEN3_8B = geometry("qwen3-8b")
QWEN25_32B = geometry("qwen2.5-coder-32b")
GEMMA3_12B = geometry("gemma-3-12b")
GEMMA3_27B = geometry("gemma-3-27b")
GEMMA4_31B = geometry("gemma-4-31b")
QWEN36_27B = geometry("qwen3.6-27b")
QWEN36_35B = geometry("qwen3.6-35b-a3b")
QWEN3_CODER_30B = geometry("qwen3-coder-30b-a3b")
GPT_OSS_20B = geometry("gpt-oss-20b")
DEEPSEEK_V3 = geometry("deepseek-v3")
MODELS = (
    QWEN3_8B, QWEN25_32B, GEMMA3_12B, GEMMA3_27B, GEMMA4_31B, QWEN36_27B, QWEN36_35B,
    QWEN3_CODER_30B, GPT_OSS_20B, DEEPSEEK_V3,
)  # fmt: skip
CARDS = (
    RTX_3090,
    RTX_4090,
    RTX_5060_TI,
    RTX_5070_TI,
    RTX_5090,
    RTX_2080_TI,
    V100,
    A100,
    H100,
    B70,
    M4_MAX,
)

NVLINK = CardLink("nvlink", 56.2, p2p=True, title="NVLink 3 bridge")
PCIE = CardLink("pcie", 25.0, p2p=True, title="PCIe 4.0 x16")


def setup(
    model,
    quant="awq",
    kv="bf16",
    engine="vllm",
    tp=1,
    pp=1,
    ep=1,
    replicas=1,
    spec=0,
    method="mtp",
    **options,
):
    return Setup(
        model,
        find_quant(quant),
        find_kv(kv),
        engine,
        Layout(tp, pp, ep, replicas),
        spec=Speculation(method, spec) if spec else None,
        **options,
    )


def rig(device, count=1, link=None, pairs=()):
    return Rig((device,) * count, link, pairs, f"{count}x {device.id}")

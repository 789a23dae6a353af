"""The embedded engine: llama.cpp's own server with continuous batching, from the PyPI package xllamacpp."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata
from importlib.util import find_spec

from skep.engines.adapter import OwnEngine, Refusal, common_refusals, flag, unsupported_options
from skep.engines.base import REPORT_FD, Launch
from skep.engines.llama import BATCH, KV_TYPES, batch_of, flash_of, llama_refusals
from skep.errors import EngineError, UserError

_FILE = ("is the file's own here", "choose another GGUF file")
_CPU = ("cannot be: the embedded engine runs on the CPU", "leave it out, or use llamacpp")
_ITSELF = ("cannot be told to the embedded engine", "leave it out, or use llamacpp")
_OTHERS = ("is of vLLM and SGLang", "leave it out")
_NOT: dict[str, Refusal] = {
    "quant": _FILE,
    "dtype": _FILE,
    **dict.fromkeys(("tp", "pp", "dp", "ep", "memory_share", "graphs", "p2p", "split", "card_shares"), _CPU),
    "custom_all_reduce": _OTHERS,
    "trust_remote_code": ("means nothing here: a GGUF file brings no code", "leave it out"),
    "tool_parser": ("means nothing here: llama.cpp finds it from the chat template", "leave it out"),
    "reasoning_parser": _ITSELF,
    "chat_template": _ITSELF,
}


class Embedded(OwnEngine):
    module = "skep.engines.embedded_server"

    def check(self, launch: Launch) -> None:
        if find_spec("xllamacpp") is None:
            raise EngineError("the embedded engine is not installed", hint="run `pip install 'skep[embedded]'`")
        if launch.weights is None:
            raise UserError(
                f"the embedded engine has no weights for `{launch.model}`", hint=f"run `skep pull {launch.model}`"
            )
        for what, instead in self.refusals(launch):
            raise UserError(f"embedded: {what}", hint=instead)

    def refusals(self, launch: Launch) -> Iterable[Refusal]:
        """Free of I/O."""
        kv, draft = launch.options.kv, launch.options.draft
        yield from unsupported_options(launch.options, _NOT)
        if draft is not None and draft.method != "ngram":
            yield f"speculation by `{draft.method}` cannot be: it drafts from the text alone", "use ngram, or llamacpp"
        if kv is not None and kv not in KV_TYPES:
            yield f'kv = "{kv}" is not known to the embedded engine', f"one of {', '.join(KV_TYPES)}"
        yield from common_refusals(launch)
        yield from llama_refusals(launch)

    def argv(self, launch: Launch) -> list[str]:
        own = ["--model", launch.weights, "--alias", launch.model, "--slots", launch.slots]
        own += ["--context", launch.context_tokens, "--threads", launch.threads]
        where = ["--host", launch.host, "--port", launch.port, "--report-fd", REPORT_FD]
        return self.words(*own, *where, *_told(launch), launch=launch)

    def version(self) -> str | None:
        try:
            return f"xllamacpp {metadata.version('xllamacpp')}"
        except metadata.PackageNotFoundError:
            return None


def _told(launch: Launch) -> list[str]:
    """What differs from the server's own way; a launch without options has the same words as ever."""
    options, batch, flash = launch.options, batch_of(launch), flash_of(launch.options)
    words = flag("--threads-batch", options.threads_batch) + flag("--micro-batch", options.batched_tokens)
    words += flag("--batch", batch if batch != BATCH else None) + flag("--kv", options.kv)
    words += flag("--flash-attention", None if flash is None else "on" if flash else "off")
    words += ["--split"] if options.kv_layout == "split" else []
    words += ["--no-prefix-cache"] if options.prefix_cache is False else []
    return words + flag("--ngram", None if options.draft is None else options.draft.depth)

"""Rules about a model's files: absent, gated, damaged, or of a kind that the engine does not know."""

from __future__ import annotations

from skep.engines.causes.rule import Rule, words

_GGUF = ("llamacpp", "embedded", "ollama")
_GPU = ("vllm", "sglang")
_FILES = "check the files, or pull them again"

FILES = (
    Rule(
        "gated",
        words(
            r"gatedrepoerror|access (?:a|to) gated repo|cannot access gated repo|access to model (?P<repo>\S+) is "
            r"restricted",
            r"\b403 (?:client error|forbidden)\b.*(?:gated|not in the authorized list|awaiting a review)",
        ),
        ("OSError: You are trying to access a gated repo.",),
        "the weights of {checkpoint} are gated: their owner wants you to agree first",
        "agree on the model's page, then HF_TOKEN in the environment; or `skep pull` them once",
    ),
    Rule(
        "hub-unreachable",
        words(
            r"couldn't connect to '?(?:https://)?(?P<hub>[\w.-]+)'?.*(?:to load|cached)",
            r"offlinemodeisenabled|offline "
            r"mode is enabled",
            r"localentrynotfounderror",
            r"failed to resolve '(?P<hub>[\w.-]*hugg?ing[\w.-]+)'",
            r"max retries exceeded with url: /(?:api/models|[\w.-]+/[\w.-]+/resolve)",
            r"outgoing traffic has been disabled",
        ),
        (
            (
                "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them "
                "in the cached "
                "files."
            ),
        ),
        "the hub cannot be reached and `{checkpoint}` is not here",
        "`skep pull` it where there is a network, or name a folder",
        final=False,
    ),
    Rule(
        "no-weights",
        words(
            r"repositorynotfounderror|repository not found for url",
            r"is not a local folder and is not a valid model "
            r"identifier",
            r"hfvalidationerror: repo id must",
            r"incorrect path_or_model_id",
            r"invalid repository id or local directory specified",
            r"cannot find any model weights with",
            r"does not appear to have (?:a file named|files named) (?P<file>\S+)",
            r"revisionnotfounderror",
            r"could not detect config format for no config file found",
            r"entrynotfounderror: 404",
        ),
        ("OSError: qwen/qwen9 is not a local folder and is not a valid model identifier listed on the hub",),
        "there are no weights at `{checkpoint}`[: {file} is missing]",
        "check the name or the path; `skep pull` lists what it can fetch",
    ),
    Rule(
        "no-gguf",
        words(
            r"failed to open GGUF file '(?P<file>[^']*)' \(no such file",
            r"gguf_init_from_file: failed to open '?(?P<file>[^']+?)'?:"
            r" ?'?no such file",
            r"error loading model: .*?failed to open (?P<file>\S+): no such file",
        ),
        ("gguf_init_from_file: failed to open GGUF file 'model.gguf' (No such file or directory)",),
        "the GGUF file {checkpoint} does not exist",
        "check its path; `skep pull` fetches some",
        engines=_GGUF,
    ),
    Rule(
        "damaged-gguf",
        words(
            r"invalid magic characters",
            r"model is corrupted or incomplete",
            r"corrupted model: (?P<tensors>\d+) tensors "
            r"expected",
            r"gguf_init_from_\w+: failed to read",
            r"wrong number of tensors; expected",
            r"bad GGUF|not a GGUF",
            r"data is not within the file bounds",
        ),
        (
            (
                "llama_model_load: error loading model: tensor 'blk.3.ffn_up.weight' data is not within the file "
                "bounds, model is "
                "corrupted or incomplete"
            ),
        ),
        "the GGUF file {checkpoint} is damaged or not whole",
        "pull it again",
        engines=_GGUF,
    ),
    Rule(
        "damaged-weights",
        words(
            r"safetensorerror: error while deserializing|safetensors_rust\.safetensorerror",
            r"pytorchstreamreader failed",
            r"metadataincompletebuffer|headertoolarge|invalidheaderdeserialization",
        ),
        ("safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",),
        "a weights file of {checkpoint} is damaged or not whole",
        "pull it again; `git lfs pull` where a folder holds pointers only",
        engines=_GPU,
    ),
    Rule(
        "gguf-architecture",
        words(
            r"unknown model architecture: '(?P<architecture>[^']*)'",
            r"unknown (?:pre-tokenizer type|projector type): "
            r"'(?P<architecture>[^']*)'",
            r"unsupported model architecture: '(?P<architecture>[^']*)'",
        ),
        ("llama_model_load: error loading model: unknown model architecture: 'qwen9moe'",),
        "this llama.cpp does not know `{architecture}`",
        "a newer {engine}",
        engines=_GGUF,
    ),
    Rule(
        "gguf-tensors",
        words(
            r"missing tensor '(?P<tensor>[^']*)'",
            r"key not found in model: (?P<tensor>\S+)",
            r"error loading model vocabulary: (?P<tensor>.+)",
            r"error loading model hyperparameters: (?P<tensor>.+)",
        ),
        ("llama_model_load: error loading model: missing tensor 'blk.48.attn_norm.weight'",),
        "the GGUF file {checkpoint} was made for another version: {tensor}",
        "a newer {engine}, or a GGUF made again",
        engines=_GGUF,
    ),
    Rule(
        "remote-code",
        words(
            r"argument `?trust_remote_code=true`?",
            r"setting `?trust_remote_code=true`?",
            r"requires you to execute the "
            r"\w+ file in that repo",
            r"contains custom code which must be executed",
        ),
        ("ValueError: The repository contains custom code which must be executed to correctly load the model.",),
        "the checkpoint {checkpoint} brings Python code of its own, and that was not allowed",
        "read that code, then trust_remote_code = true",
        only_if=lambda launch: not launch.options.trust_remote_code,
    ),
    Rule(
        "architecture",
        words(
            r"model architectures (?P<architecture>\[[^\]]*\]) (?:are not supported|failed to be inspected)",
            r"model architecture (?P<architecture>\S+) (?:was supported in vLLM until|is not supported in-tree)",
            r"has model type `(?P<architecture>[^`]+)` but transformers does not recognize",
            r"unsupported architectures: (?P<architecture>\S+)",
            r"\b(?P<architecture>\w+) has no sglang implementation",
        ),
        ("ValueError: Model architectures ['Qwen9ForCausalLM'] are not supported for now.",),
        "this version of {engine} (or its transformers) does not know {architecture}",
        "a newer {engine}, with the transformers it asks for",
    ),
    Rule(
        "tokenizer",
        words(
            r"can't load tokenizer for",
            r"couldn't instantiate the backend tokenizer",
            r"tokenizer class \S+ does not exist",
            r"failed to load the tokenizer",
            r"unable to load vocabulary from file",
            r"requires the (?:sentencepiece|protobuf|tiktoken) library",
        ),
        ("OSError: Can't load tokenizer for 'my-model'.",),
        "the tokenizer of {checkpoint} is missing or not readable",
        "its files beside the weights (tokenizer.json, tokenizer_config.json); " + _FILES,
    ),
    Rule(
        "ollama-pull",
        words(r"model \S+ not found(?:, try pulling it first)?", r"pull model manifest: file does not exist"),
        ('{"error":"model \'qwen3:8b\' not found"}',),
        "Ollama has no model `{checkpoint}`",
        "`ollama pull {checkpoint}`",
        engines=("ollama",),
    ),
    Rule(
        "template-file",
        words(
            r"supplied chat template (?:path|string|is not supported)|chat template .* doesn't exist",
            r"the supplied chat template is not supported",
        ),
        ("ValueError: The supplied chat template string (chat.jinja) appears path-like, but doesn't exist!",),
        "the chat template that was given does not exist or cannot be read",
        "check the path of chat_template, or leave it out",
    ),
    Rule(
        "chat-template",
        words(
            r"default chat template is no longer allowed",
            r"does not (?:have|define) a chat template",
            r"chat_?template is not set|no chat template|failed to initialize chat template",
            r"this model has no HF chat template",
        ),
        (
            (
                '{"object":"error","message":"As of transformers v4.44, default chat template is no longer allowed, '
                "so you must "
                'provide a chat template if the tokenizer does not define one."}'
            ),
        ),
        "the model has no chat template",
        "chat_template = a file from the model's makers, or an instruct version of the model",
        final=False,
    ),
    Rule(
        "ollama-capability",
        words(r'"?(?P<name>[^"\s]+)\\?"? does not support (?P<what>chat|tools|thinking|generate)'),
        ('{"error":"\\"nomic-embed-text\\" does not support chat"}',),
        "the model does not support {what}",
        "another model",
        final=False,
        engines=("ollama",),
    ),
)

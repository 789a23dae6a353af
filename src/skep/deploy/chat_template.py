"""Whether the chat template of a checkpoint on this machine takes tools.

Knows nothing of engines and parsers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from skep.config.load import read_text_file

_JINJA_FILES = ("chat_template.jinja", "additional_chat_templates/tool_use.jinja")
_JSON_FILES = ("chat_template.json", "tokenizer_config.json")
_JSON_KEY = "chat_template"
_GGUF_KEY = "tokenizer.chat_template"  # behind it perhaps the name of another one, as `.tool_use`
_OTHER_TOKENIZER = "tekken.json"  # Mistral's, with a template that is no file
_VARIABLE = "tools"  # by which a template is handed them


def folder_takes_tools(folder: Path) -> bool | None:
    """Return what the templates of a folder as on the hub say; None: it has none that is read."""
    if (folder / _OTHER_TOKENIZER).is_file():
        return None
    templates = [text for name in _JINJA_FILES if (text := _text_of(folder / name))]
    return _take_tools(templates or list(_templates_in_json(folder)))


def header_takes_tools(metadata: Mapping[str, Any]) -> bool | None:
    """Return what the templates in a GGUF file's header say; None: it has none."""
    values = (value for key, value in metadata.items() if key.startswith(_GGUF_KEY))
    return _take_tools([value for value in values if isinstance(value, str)])


def _take_tools(templates: list[str]) -> bool | None:
    if templates:
        return any(_VARIABLE in template for template in templates)
    return None


def _templates_in_json(folder: Path) -> Iterator[str]:
    """Yield one text, or one for each of the names that a list gives."""
    for name in _JSON_FILES:
        try:
            document = json.loads(_text_of(folder / name) or "null")
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict):
            value = document.get(_JSON_KEY)
        else:
            value = None
        entries = value if isinstance(value, list) else [value]
        for entry in entries:
            if isinstance(entry, dict):
                template = entry.get("template")
            else:
                template = entry
            if isinstance(template, str):
                yield template


def _text_of(path: Path) -> str | None:
    """Return the text of a file; None where there is none that can be read."""
    try:
        if path.is_file():
            return read_text_file(path)
        return None
    except (OSError, ValueError):
        return None

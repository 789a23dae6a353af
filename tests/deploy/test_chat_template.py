"""Whether a chat template takes tools, in the forms in which a checkpoint has one."""

import json

import pytest

from skep.deploy.chat_template import folder_takes_tools, header_takes_tools

PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"
WITH_TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}" + PLAIN
NAMED = [{"name": "default", "template": PLAIN}, {"name": "tool_use", "template": WITH_TOOLS}]

FOLDERS = [
    ({}, None),
    ({"tokenizer_config.json": json.dumps({})}, None),
    ({"tokenizer_config.json": json.dumps({"chat_template": PLAIN})}, False),
    ({"tokenizer_config.json": json.dumps({"chat_template": WITH_TOOLS})}, True),
    ({"tokenizer_config.json": json.dumps({"chat_template": NAMED})}, True),
    ({"chat_template.json": json.dumps({"chat_template": WITH_TOOLS})}, True),
    (
        {
            "chat_template.jinja": PLAIN,
            "tokenizer_config.json": json.dumps({"chat_template": WITH_TOOLS}),
        },
        False,
    ),
    ({"chat_template.jinja": PLAIN, "additional_chat_templates/tool_use.jinja": WITH_TOOLS}, True),
    # Mistral's tokenizer brings its own
    ({"tekken.json": "{}", "chat_template.jinja": PLAIN}, None),
    # what is no template
    ({"tokenizer_config.json": "["}, None),
    ({"tokenizer_config.json": "[" * 100_000}, None),
    ({"tokenizer_config.json": json.dumps({"chat_template": [7, {"template": None}]})}, None),
    ({"chat_template.jinja": "tools" * 1_000_000}, None),
]


@pytest.mark.parametrize(("files", "takes_tools"), FOLDERS)
def test_a_folder_takes_tools_as_its_template_says(tmp_path, files, takes_tools):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert folder_takes_tools(tmp_path) is takes_tools


HEADERS = [
    ({}, None),
    ({"tokenizer.chat_template": PLAIN}, False),
    ({"tokenizer.chat_template": WITH_TOOLS}, True),
    ({"tokenizer.chat_template": PLAIN, "tokenizer.chat_template.tool_use": WITH_TOOLS}, True),
    ({"tokenizer.chat_template": 7, "tokenizer.chat_templates": ("tool_use",)}, None),
]


@pytest.mark.parametrize(("metadata", "takes_tools"), HEADERS)
def test_a_gguf_takes_tools_as_its_header_says(metadata, takes_tools):
    assert header_takes_tools(metadata) is takes_tools

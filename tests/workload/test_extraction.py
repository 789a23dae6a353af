"""What is judged of an answer: said aloud, or thought; and which code is meant."""

import time

import pytest

from skep.workload.extraction import Block, code_blocks, python_blocks, split_answer

F = "```"


@pytest.mark.parametrize(
    ("answer", "reasoning", "text", "thought"),
    [
        ("plain\n", None, "plain\n", ""),
        ("plain", "hm", "plain", "hm"),
        ("<think>hm</think>\n\nyes", None, "yes", "hm"),
        ("<thought>hm</thought>yes", None, "yes", "hm"),
        ("[THINK]hm[/THINK]yes", None, "yes", "hm"),
        ("<|channel>thought\nhm<channel|>yes", None, "yes", "hm"),
        ("hm</think>yes", None, "yes", "hm"),
        ("<think>for ever", None, "", "for ever"),
        ("<think>a<think>b</think>c", None, "c", "a<think>b"),
        ("a <think>b</think>c <think>d</think>e", None, "a c e", "b\nd"),
        ("<think>b</think>c", "a", "c", "a\nb"),
        (
            (
                "<|channel|>analysis<|message|>hm<|end|>"
                "<|start|>assistant<|channel|>final<|message|>yes<|return|>"
            ),
            None,
            "yes",
            "hm",
        ),
        ("<|channel|>analysis<|message|>hm", None, "", "hm"),
        (
            "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>",
            None,
            "",
            "{}",
        ),
        ("<|start|>assistant<|channel|>final<|message|>yes", None, "yes", ""),
        ("", None, "", ""),
    ],
)
def test_reasoning_is_kept_apart(answer, reasoning, text, thought):
    """Beside the answer, in tags, in a channel of its own, unclosed, or opened by the prompt."""
    split = split_answer(answer, reasoning)
    assert (split.text, split.reasoning) == (text, thought)


def test_halves_of_characters_can_be_written_down():
    text = split_answer("\ud800x \ud83d\ude00", None).text
    assert text == "\ufffdx \U0001f600"
    assert text.encode()


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        (f"a\n{F}python\nx = 1\n{F}\nb", [Block("python", "x = 1\n")]),
        (f"{F}Python3 title=a.py\r\nx = 1\r\n{F}\r\n", [Block("python", "x = 1\n")]),
        (f"{F}py:main.py\nx = 1\n{F}", [Block("python", "x = 1\n")]),
        (f"{F}{{.python}}\nx = 1\n{F}", [Block("python", "x = 1\n")]),
        (f"{F}main.py\nx = 1\n{F}", [Block("python", "x = 1\n")]),
        (f"{F}JSON\n1\n{F}\n{F}\n2\n{F}", [Block("json", "1\n"), Block("", "2\n")]),
        (f"~~~python\n{F}\n~~~", [Block("python", f"{F}\n")]),
        (f"{F}python\nx = 1", [Block("python", "x = 1\n")]),
        (f"{F}python\nx\n{F}python\ny\n{F}", [Block("python", "x\n"), Block("python", "y\n")]),
        (f"1. a\n   {F}python\n   if x:\n       y\n   {F}", [Block("python", "if x:\n    y\n")]),
        (f"- {F}python\n  x\n  {F}", [Block("python", "x\n")]),
        (f"{F}python\n{F}", [Block("python", "")]),
        (f"say {F} and {F}", []),
        (F, []),
        ("<code>x = 1</code>", []),
    ],
)
def test_fences_are_found(text, blocks):
    """As in CommonMark, with what models do besides."""
    assert code_blocks(text) == blocks


def python_of(text):
    """The blocks in one piece; None: there is none."""
    blocks = python_blocks(text)
    if blocks:
        return "\n\n".join(code.strip("\n") for code in blocks) + "\n"
    return None


def fenced(*codes):
    return "Some words.\n\n".join(f"{F}python\n{code}\n{F}\n" for code in codes)


SHELL = (
    f"{F}bash\npip install x\n{F}\n{F}json\n{{}}\n{F}\n{F}text\nx = 1\n{F}\n{F}\nHello there, "
    f"friend.\n{F}\n"
)
DOCSTRING = f'def f():\n    """One.\n\n    {F}python\n    f()\n    {F}\n    """\n    return 1\n'
F1 = "def f():\n    return 1"
CODE = {
    "a fence in a docstring, four columns deeper, does not end the block": (
        f"Here:\n{fenced(DOCSTRING)}",
        DOCSTRING,
    ),
    "blocks are joined in order": (
        fenced("import a", "def f(): ...", "print(f())"),
        "import a\n\ndef f(): ...\n\nprint(f())\n",
    ),
    "other languages are left out": (SHELL + fenced("x = 1"), "x = 1\n"),
    "nothing but other languages": (SHELL, None),
    "no language, but it looks like code": (
        f"{F}\nfor i in range(3):\n    print(i)\n{F}",
        "for i in range(3):\n    print(i)\n",
    ),
    "without fences": ("def f(x):\n    return x", "def f(x):\n    return x\n"),
    "between words": (
        (
            "Sure:\n\nimport os\n\ndef f(x):\n    # hi\n\n    return x\n\nprint(f(1))\n\nThat "
            "is it.\n"
        ),
        "import os\n\ndef f(x):\n    # hi\n\n    return x\n\nprint(f(1))\n",
    ),
    "a body alone": ("    return x + 1\n", "    return x + 1\n"),
    "the longest run of lines": (f"x = 1\nNow something longer:\n\n{F1}\n", f"{F1}\n"),
}


@pytest.mark.parametrize(("text", "code"), CODE.values(), ids=CODE)
def test_the_code_of_an_answer_is_found(text, code):
    assert python_of(text) == code


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No code here.",
        "For example: this.\n\nImport taxes are high.",
        "# Title\n\nA paragraph (with a remark).",
        "1. One\n2. Two\n",
        "\x00\x01\ufffd" * 100,
        f"{F}\n{F}",
    ],
)
def test_prose_is_not_code(text):
    assert python_of(text) is None


@pytest.mark.parametrize(
    "unit",
    [
        "`",
        "```\n",
        "```a\n",
        "```python\nx = 1\n```\n",
        "~",
        " ",
        "\n",
        "> ",
        "- ```x`\n",
        "<think>",
        "</think>",
        "<|channel|>",
        "def f(x):\n",
        "(\n",
        "x = ",
        "a.b.",
        '"""',
        ">>> \n",
        "\x00\xff\ufffd",
        "import a, ",
    ],
)
def test_50_kb_of_anything_take_no_time(unit):
    text = unit * (50_000 // len(unit))
    began = time.process_time()
    split = split_answer(text, None)
    code_blocks(split.text or text)
    python_of(text)
    assert time.process_time() - began < 2

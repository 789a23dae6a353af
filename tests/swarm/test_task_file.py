"""Files of tasks: what is taken, and what is told, with its line, before anything runs."""

import io
import json
from tempfile import NamedTemporaryFile

import pytest

from skep.errors import UserError
from skep.swarm.task_file import parse_template, read_schema, read_tasks, tasks_of


def read(text, ending=None, **options):
    """From stdin, or from a file with that ending."""
    data = text if isinstance(text, bytes) else text.encode()
    if ending is None:
        return read_tasks("-", stdin=io.BytesIO(data), **options)
    with NamedTemporaryFile(suffix=ending) as file:
        file.write(data)
        file.flush()
        return read_tasks(file.name, **options)


def refused(text, **options):
    with pytest.raises(UserError) as caught:
        read(text, **options)
    assert caught.value.exit_code == 2
    return caught.value.message


LONG = "x" * 300_000
BOOK = 'id,title,text\na,T,"two\nlines {title}"\n,U,v\n'
FIELDS = '{"id": "a", "title": "T", "n": [1]}\n{"prompt": "own"}'
TWICE = '{"id": "a", "prompt": "x"}\n{"prompt": "y"}\n{"id": "a", "prompt": "z"}'


@pytest.mark.parametrize(
    ("text", "ending", "template", "tasks"),
    [
        (
            '{"prompt": "a"}\n\n{"prompt": "b"}\n{"id": 70, "prompt": "c"}',
            None,
            None,
            {"1": "a", "3": "b", "70": "c"},
        ),
        (
            '\ufeff{"prompt": "a"}\r\n{"prompt": "b\u2028c"}',
            None,
            None,
            {"1": "a", "2": "b\u2028c"},
        ),
        ("one\r\n\n  two {}  \n", ".txt", None, {"1": "one", "3": "two {}"}),
        ("one", ".txt", "Say {{}} {} {line}", {"1": "Say {} one one"}),
        (
            BOOK,
            ".csv",
            "Sum up {title}: {text}",
            {"a": "Sum up T: two\nlines {title}", "4": "Sum up U: v"},
        ),
        ("prompt,system\nhello,be brief\n", ".csv", None, {"2": "hello"}),
        (f"a\n{LONG}\n", ".csv", "{a}", {"2": LONG}),
        (json.dumps({"prompt": LONG}), None, None, {"1": LONG}),
        (FIELDS, None, "{title} {n}", {"a": "T [1]", "2": "own"}),
    ],
    ids=[
        "ids",
        "editors",
        "text",
        "text with a template",
        "columns",
        "a prompt's column",
        "long",
        "long line",
        "fields",
    ],
)
def test_every_form_has_its_prompts_and_an_id_is_the_line_number_unless_given(
    text, ending, template, tasks
):
    """What editors do to files does no harm: a byte order mark, line ends of Windows, no end of
    the last line.
    """
    taken = read(text, ending=ending, template=template)
    assert {task.id: task.messages[-1]["content"] for task in taken} == tasks


def test_text_without_a_form_is_told_of_the_form_it_may_have():
    with pytest.raises(UserError) as caught:
        read("Write a haiku")
    assert "a .txt file" in caught.value.hint


def test_a_line_is_a_task():
    (task,) = read(
        json.dumps(
            {
                "id": "a",
                "prompt": "Say x",
                "system": "Be brief",
                "schema": {"type": "string"},
                "max_tokens": 9,
            }
            | {"temperature": 0, "checker": {"kind": "contains", "all": ["x"]}}
            | {"extra": {"top_p": 0.5}}
        )
    )
    assert task.id == "a"
    assert task.messages == (
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "Say x"},
    )
    assert (task.schema, task.max_tokens, task.temperature) == ({"type": "string"}, 9, 0)
    assert (task.checker["kind"], task.extra) == ("contains", {"top_p": 0.5})


def test_messages_pass_as_they_are():
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "tool", "content": "y", "tool_call_id": "1"},
    ]
    (task,) = read(json.dumps({"messages": messages}), system="s")
    assert list(task.messages) == [{"role": "system", "content": "s"}, *messages]


def test_defaults_hold_for_tasks_that_do_not_say_otherwise():
    own_system = {"role": "system", "content": "own"}
    first, second = read(
        '{"prompt": "a", "max_tokens": 5}\n'
        + json.dumps({"messages": [own_system, {"role": "user", "content": "b"}]}),
        system="s",
        max_tokens=7,
        schema={"type": "object"},
    )
    assert (first.max_tokens, second.max_tokens) == (5, 7)
    assert first.messages[0]["content"] == "s"
    assert second.messages[0] == own_system
    assert first.schema == second.schema == {"type": "object"}
    with pytest.raises(
        UserError, match=r"`max_tokens` must be a whole number from 1 to 10000000, not `0`"
    ):
        read('{"prompt": "a"}', max_tokens=0)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "not JSON: Expecting property name"),
        ("[1]", "write one object a line"),
        ("{}", "neither `prompt` nor `messages`"),
        ('{"promt": "x"}', "`promt` is not known; did you mean `prompt`?"),
        ('{"prompt": "x", "prompt": "y"}', "`prompt` is given twice"),
        ('{"prompt": NaN}', "`NaN` is not JSON"),
        ('{"prompt": "x", "temperature": 1e999}', "too large a number"),
        ('{"prompt": "x", "temperature": -1}', "`temperature` must be"),
        ('{"prompt": "\\ud800"}', "half of a surrogate pair"),
        ('{"prompt": " "}', "`prompt` must be a text that is not blank"),
        ('{"prompt": "x", "messages": [{"role": "user", "content": "y"}]}', "both given"),
        ('{"messages": [{"role": "bob", "content": "x"}]}', "`messages[0].role`"),
        ('{"messages": [{"role": "user"}]}', "`messages[0].content`"),
        ('{"id": true, "prompt": "x"}', "`id` must be"),
        (
            '{"prompt": "x", "extra": {"stream": false}}',
            "`extra` must be an object, without messages",
        ),
        ('{"prompt": "x", "schema": {"type": "objct"}}', "`schema` is not a JSON schema: $.type"),
        ('{"prompt": "x", "schema": {"$ref": "http://x/y"}}', "nothing is fetched"),
        ('{"prompt": "x", "schema": {"$ref": "#/$defs/y"}}', "nothing is there"),
        ('{"prompt": "x", "schema": {"pattern": "("}}', "$.pattern"),
        (
            '{"prompt": "x", "schema": {"$id": "http://[x", "$ref": "y"}}',
            "its references cannot be followed",
        ),
        ('{"prompt": "x", "checker": {"kind": "contain"}}', "did you mean `contains`?"),
        # Every other fault of a checker is in tests/workload/test_banks.py.
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_faulty_line_is_named(line, fault):
    message = refused('{"prompt": "fine"}\n' + line)
    assert message.startswith("stdin, line 2: ")
    assert fault in message


def test_all_faults_are_told_at_once_and_many_are_counted():
    message = refused("\n".join(['{"prompt": "fine"}', *(["{}"] * 15)]))
    lines = message.splitlines()
    assert lines[0] == "stdin has 15 faults:"
    assert [line.split(":")[0].strip() for line in lines[1:-1]] == [
        f"line {number}" for number in range(2, 12)
    ]
    assert lines[-1].strip() == "and 5 more"


@pytest.mark.parametrize(
    ("text", "ending", "template", "fault"),
    [
        ("a,b\n1,2\n", ".csv", "{c}", "asks for `{c}`; known: `a`, `b`"),
        ("a,b\n1,2\n", ".csv", None, "no column `prompt`; it has `a`, `b`"),
        ("a,a\n1,2\n", ".csv", "{a}", "the column `a` appears twice"),
        ("a,b\n1\n", ".csv", "{a}", "line 2: 1 fields, and the header has 2"),
        ('a,b\n1,"2" x\n', ".csv", "{a}", "line 2: broken CSV"),
        ('a,b\n1,"2\n', ".csv", "{a}", "line 2: broken CSV"),
        ("a,b\n", ".csv", "{a}", "has no tasks"),
        ("", ".csv", "{a}", "is empty"),
        ('{"title": "T"}', None, "{title} {n}", "line 1: the template asks for `{n}`"),
        (b'{"prompt": "a"}\n{"prompt": "\xff"}', None, None, "line 2: a byte that is not UTF-8"),
        (b'{"prompt": "a"}\n\0', None, None, "line 2: not JSON"),
        ('{"prompt": "a"}'.encode("utf-16"), None, None, "line 1: a byte that is not UTF-8"),
        (b"", None, None, "has no tasks"),
        (TWICE, None, None, "stdin, line 3: the id `a` is already used in line 1"),
        (
            '{"id": 2, "prompt": "x"}\n{"prompt": "y"}',
            None,
            None,
            "line 2: the id `2` is already used in line 1",
        ),
    ],
)
def test_a_faulty_file_is_told(text, ending, template, fault):
    assert fault in refused(text, ending=ending, template=template)


@pytest.mark.parametrize("template", ["{a.b}", "{a[0]}", "{a!r}", "{a:>9}", "{a", "a}", "plain"])
def test_a_template_is_text_and_names(template):
    with pytest.raises(UserError):
        parse_template(template)


def test_the_form_follows_the_name_of_the_file(tmp_path):
    for name, text in (
        ("a.txt", "hello"),
        ("b.csv", "prompt\nhello\n"),
        ("c.jsonl", '{"prompt": "hello"}'),
    ):
        (tmp_path / name).write_text(text)
        assert [task.messages[-1]["content"] for task in read_tasks(tmp_path / name)] == ["hello"]
    for path, words in ((tmp_path, "Is a directory"), (tmp_path / "none.jsonl", "No such file")):
        with pytest.raises(UserError, match=words):
            read_tasks(path)


def test_tasks_may_come_as_a_list():
    tasks = tasks_of(["hello", {"id": "b", "prompt": "x"}], system="s")
    assert [task.id for task in tasks] == ["1", "b"]
    with pytest.raises(UserError, match="the list, task 2: a task is an object such as"):
        tasks_of(["a", 5])
    circle = {"prompt": "x"}
    circle["extra"] = circle
    for odd in (
        circle,
        {"prompt": "x", "temperature": float("nan")},
        {"prompt": "\ud800"},
        {"prompt": {1}},
    ):
        with pytest.raises(UserError, match="the list, task 1: not JSON"):
            tasks_of([odd])


def test_a_schema_may_be_a_file(tmp_path):
    path = tmp_path / "form.json"
    path.write_text('{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}')
    assert read_schema(path)["type"] == "object"
    for text, fault in (
        ("{", "is not JSON"),
        ("[]", "a schema is an object"),
        ('{"$schema": "x"}', "not a draft"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=fault):
            read_schema(path)

"""What a client may ask for, what it is shown, and that the documentation knows the same words."""

import ast
import json
from pathlib import Path

import pytest

from api_clients import openai
from skep.gateway.batch.api import (
    ENDPOINTS,
    BatchApiError,
    batch_document,
    file_document,
    page,
    parse_batch_spec,
    window_seconds,
)
from skep.gateway.batch.store import BatchOrder, BatchStatus, StoredBatch, StoredFile

ROOT = Path(__file__).parent.parent.parent
ORDER = BatchOrder("batch_1", "", 10.9, ENDPOINTS[0], "file-1", "24h", 86_410.9, {"a": "b"})


def test_the_client_reads_every_state_of_a_batch_and_a_file():
    times = {status: 20.0 + number for number, status in enumerate(BatchStatus)}
    tally = {
        "completed": 2,
        "failed": 1,
        "prompt_tokens": 5,
        "cached_tokens": None,
        "output_tokens": 6,
    }
    errors = [{"code": "x", "line": 1}]
    detail = {
        "model": "m",
        "total": 3,
        "output_file_id": "file-2",
        "errors": errors,
        "tally": tally,
    }
    for status in BatchStatus:
        document = batch_document(StoredBatch(ORDER, status, times, detail))
        batch = openai.types.Batch.model_validate(document, strict=True)
        times_told = (batch.created_at, batch.expires_at)
        assert (batch.status, *times_told, batch.request_counts.failed) == (status, 10, 86_410, 1)
        assert (batch.usage is not None) == status.is_final
    assert batch.usage.total_tokens == 11
    assert batch.errors.data[0].line == 1
    none = StoredBatch(ORDER, BatchStatus.FAILED, {}, {"tally": {"completed": 0, "failed": 0}})
    fresh = openai.types.Batch.model_validate(batch_document(none), strict=True)
    assert (fresh.usage, fresh.errors, fresh.request_counts.total) == (None, None, 0)
    document = file_document(StoredFile("file-1", "", 1.5, "a.jsonl", "batch", 3, 9.5))
    assert openai.types.FileObject.model_validate(document, strict=True).expires_at == 9
    assert page([], 1) == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


@pytest.mark.parametrize(
    "window", ["", "25h", "0h", "24", "h", "1d", "-1h", "1.5h", " 24h", "٢h", "99999999h"]
)
def test_a_window_is_a_day_or_less_and_any_other_is_refused(window):
    assert [window_seconds(window) for window in ("24h", "1h", "90m", "1440m")] == [
        86_400,
        3600,
        5400,
        86_400,
    ]
    with pytest.raises(BatchApiError, match="completion_window"):
        window_seconds(window)


def spec(**fields):
    return json.dumps(
        {"input_file_id": "f", "endpoint": ENDPOINTS[0], "completion_window": "24h", **fields}
    ).encode()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        *(
            (body, "not a batch request")
            for body in (b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"input_file_id": 1}')
        ),
        *(
            (spec(metadata=odd), "metadata")
            for odd in (3, {"a": 1}, {"a" * 65: ""}, {str(i): "" for i in range(17)})
        ),
    ],
)
def test_what_is_no_order_is_refused(body, why):
    with pytest.raises(BatchApiError, match=why):
        parse_batch_spec(body)


def test_every_code_of_the_api_is_documented():
    codes = set()
    for path in (ROOT / "src/skep/gateway/batch").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "BatchApiError":
                codes |= {word.value.value for word in node.keywords if word.arg == "code"}
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
                "LineError",
                "_InvalidLine",
            ):
                codes |= {node.args[0].value} if isinstance(node.args[0], ast.Constant) else set()
    text = (ROOT / "docs/batch.md").read_text()
    assert len(codes) > 10
    assert not [code for code in codes if f"`{code}`" not in text]

"""Results of other tools, read as levels. The files under data/ are made up, in the tools' form."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from skep.bench.imports import imported_levels_json, levels_from_json, read_import
from skep.errors import StoreError, UserError
from skep.records import Clock, Disagreement, Energy, Interval, Percentiles

DATA = Path(__file__).parent / "data"
FILES = ("vllm_summary.json", "vllm_detailed.json", "guidellm_0_3.json", "guidellm_0_8.json")


def text(name):
    return (DATA / name).read_text()


def document(name, **changes):
    return {**json.loads(text(name)), **changes}


def read(value, name="x.json"):
    return read_import(value if isinstance(value, str) else json.dumps(value), name)


def without(value, *keys):
    return {key: found for key, found in value.items() if key not in keys}


# vllm bench serve


def test_a_summary_of_vllm_becomes_one_level():
    found = read(text("vllm_summary.json"))
    (level,) = found.levels
    assert (found.tool, found.model) == ("vllm bench serve", "made-up/tiny-1b")
    assert (level.concurrency, level.requests, level.failed) == (16, 100, 2)
    assert (level.output_tokens, level.wall_s, level.effective_tok_s) == (19600, 20.0, 980.0)
    assert (level.prompt_tokens, level.output_tokens_each) == (1000.0, 200.0)
    assert found.rows == ()


def test_the_time_of_a_vllm_result_is_local():
    assert read(text("vllm_summary.json")).created_at is not None
    assert read(document("vllm_summary.json", date="yesterday")).created_at is None


def test_a_percentile_that_is_not_in_the_file_is_not_made_up():
    """By default vLLM writes no p95."""
    (level,) = read(text("vllm_summary.json")).levels
    assert (level.ttft_ms, level.tpot_ms, level.total_ms, level.task_tok_s) == (None, None, None, None)


def test_percentiles_are_taken_where_all_are_there():
    (level,) = read(document("vllm_summary.json", p95_ttft_ms=200.0, p95_tpot_ms="28.5")).levels
    assert level.ttft_ms == Percentiles(118.0, 200.0, 240.0, 120.0)
    assert level.tpot_ms == Percentiles(13.0, 28.5, 30.0, 15.0)


def test_details_of_vllm_give_what_its_summary_lacks():
    found = read(text("vllm_detailed.json"))
    (level,) = found.levels
    assert (level.requests, level.failed, level.errors) == (4, 1, (("failed", 1),))
    assert level.ttft_ms.p50 == pytest.approx(100.0)
    assert level.ttft_ms.p95 == pytest.approx(118.0)
    assert level.tpot_ms.p50 == pytest.approx(10.0)
    assert level.tpot_ms.mean == pytest.approx((10 + 10 + 20) / 3)
    assert level.task_tok_s == pytest.approx(5 / 0.04)
    assert level.total_ms.p50 == pytest.approx(140.0)


def test_rows_of_vllm_begin_with_the_first_request():
    rows = read(text("vllm_detailed.json")).rows
    assert [row.started_s for row in rows] == pytest.approx([0.0, 0.0, 0.15, 0.15])
    assert rows[0].arrivals_s == pytest.approx((0.1, 0.11, 0.12, 0.13, 0.14))
    assert (rows[0].level, rows[0].prompt_tokens, rows[0].output_tokens) == (2, 10, 5)


def test_a_failed_request_keeps_the_last_line_of_its_error():
    row = read(text("vllm_detailed.json")).rows[3]
    assert (row.ok, row.error) == (False, "TimeoutError: it took too long")


def test_a_failed_request_hides_how_full_the_level_was():
    """vLLM does not tell when it ended."""
    (level,) = read(text("vllm_detailed.json")).levels
    assert (level.plateau_tok_s, level.delivered) == (None, None)


def test_older_details_without_start_times_give_percentiles_but_no_rows():
    found = read(without(document("vllm_detailed.json"), "start_times", "failed"))
    assert found.rows == ()
    assert (found.levels[0].failed, found.levels[0].plateau_tok_s) == (1, None)
    assert found.levels[0].ttft_ms.p50 == pytest.approx(100.0)


def test_a_result_whose_requests_all_failed_has_no_speed_and_no_times():
    """vLLM writes zeros for an empty sample."""
    zeros = {f"{which}_ttft_ms": 0.0 for which in ("mean", "median", "p95", "p99")}
    empty = document(
        "vllm_summary.json", completed=0, failed=100, total_output_tokens=0, output_throughput=0.0, **zeros
    )
    (level,) = read(empty).levels
    assert (level.effective_tok_s, level.ttft_ms, level.output_tokens_each) == (None, None, None)


def test_several_appended_results_are_several_levels():
    one = document("vllm_detailed.json", max_concurrency=1)
    lines = "\n".join(json.dumps(result) for result in (document("vllm_detailed.json"), one))
    found = read(lines)
    assert [level.concurrency for level in found.levels] == [1, 2]
    assert [level.contention_pct for level in found.levels] == pytest.approx([0.0, 0.0])
    assert len(found.rows) == 8


def test_a_level_that_comes_again_is_its_next_run():
    twice = "\n".join(json.dumps(document("vllm_detailed.json")) for _ in range(2))
    assert {row.repeat for row in read(twice).rows} == {0, 1}


def test_results_of_several_models_are_refused():
    both = (document("vllm_summary.json"), document("vllm_summary.json", model_id="another"))
    with pytest.raises(UserError, match="several models: another, made-up/tiny-1b"):
        read("\n".join(json.dumps(result) for result in both))


def test_without_a_limit_and_without_a_rate_all_requests_came_at_once():
    found = read(document("vllm_summary.json", max_concurrency=None))
    assert found.levels[0].concurrency == 100
    assert found.config["results"][0]["concurrency"] == "all at once"


def test_a_rate_gives_the_mean_in_flight_where_latency_is_known():
    """98 requests of 1.02 s in 20 s: 5 at a time."""
    latency = {"mean_e2el_ms": 1020.0, "median_e2el_ms": 1000.0, "p95_e2el_ms": 1500.0, "p99_e2el_ms": 1600.0}
    found = read(document("vllm_summary.json", max_concurrency=None, request_rate=4.9, **latency))
    assert found.levels[0].concurrency == 5
    assert found.config["results"][0]["concurrency"] == "mean in flight"


def test_a_rate_without_any_concurrency_is_refused():
    with pytest.raises(UserError, match=r"`request_rate` is 4\.9") as caught:
        read(document("vllm_summary.json", max_concurrency=None, request_rate=4.9))
    assert "--max-concurrency" in caught.value.hint


def test_numbers_may_be_text_null_or_nan():
    odd = document("vllm_summary.json", duration="20.0", output_throughput=None, total_input_tokens=float("nan"))
    (level,) = read(odd).levels
    assert (level.wall_s, level.effective_tok_s, level.prompt_tokens) == (20.0, 980.0, None)


def test_what_was_asked_for_is_kept_without_the_long_lists():
    config = read(text("vllm_detailed.json")).config
    assert config["file"] == "x.json"
    assert config["results"][0]["request_rate"] == "inf"
    assert "ttfts" not in config["results"][0]
    json.dumps(config, allow_nan=False)


@pytest.mark.parametrize("missing", ["total_output_tokens", "duration"])
def test_a_result_without_tokens_or_time_is_refused(missing):
    with pytest.raises(UserError):
        read(without(document("vllm_summary.json"), missing))


# guidellm


def test_a_report_of_guidellm_0_3_is_read():
    found = read(text("guidellm_0_3.json"))
    assert (found.tool, found.model, found.created_at) == ("guidellm", "made-up/tiny-1b", 1772450000.0)
    assert [level.concurrency for level in found.levels] == [1, 4]
    assert [level.output_tokens for level in found.levels] == [64, 64]
    assert [level.ttft_ms.p50 for level in found.levels] == pytest.approx([50.0, 200.0], abs=0.2)
    assert found.levels[1].contention_pct == pytest.approx(75.0, abs=1)


def test_tpot_is_the_inter_token_latency_of_guidellm():
    """Not its time per output token, which has one more token below the line."""
    levels = read(text("guidellm_0_3.json")).levels
    assert [level.tpot_ms.p50 for level in levels] == pytest.approx([10.0, 40.0], abs=0.05)
    (first, _) = read(text("guidellm_0_8.json")).levels
    assert first.tpot_ms.p50 == pytest.approx(20.0, abs=0.05)


def test_a_report_of_guidellm_0_8_is_read():
    found = read(text("guidellm_0_8.json"))
    first, second = found.levels
    assert (found.tool, found.model) == ("guidellm 0.8.1", "made-up/tiny-1b")
    assert (first.concurrency, first.requests, first.failed, first.output_tokens) == (2, 7, 1, 96)
    assert first.cached_prompt_share == pytest.approx(0.25)
    assert first.effective_tok_s == pytest.approx(96 / first.wall_s, rel=1e-3)
    assert (second.concurrency, second.requests) == (3, 6)
    assert second.ttft_ms.p99 == pytest.approx(200.0, abs=0.2)


def test_rows_of_guidellm_are_kept_where_all_are_listed():
    """The second benchmark lists none."""
    rows = read(text("guidellm_0_8.json")).rows
    assert {row.level for row in rows} == {2}
    assert [row.error for row in rows if not row.ok] == ["ReadTimeout: no answer"]
    assert min(row.started_s for row in rows) == 0.0


def test_a_sample_of_the_requests_does_not_stand_for_all():
    report = document("guidellm_0_3.json")
    del report["benchmarks"][1]["requests"]["successful"][2:]
    found = read(report)
    assert {row.level for row in found.rows} == {1}
    assert found.levels[1].task_tok_s is None
    assert found.levels[1].tpot_ms.p50 == pytest.approx(40.0, abs=0.05)


def test_without_arrivals_there_is_no_plateau():
    assert {level.plateau_tok_s for level in read(text("guidellm_0_3.json")).levels} == {None}


def test_how_the_concurrency_is_known_is_kept():
    first, second = read(text("guidellm_0_8.json")).config["results"]
    assert (first["type_"], first["concurrency"]) == ("concurrent", "asked for")
    assert (second["rate"], second["concurrency"], second["incomplete"]) == (5.0, "mean in flight", 2)


def test_a_key_in_a_report_is_not_kept():
    assert "secret" not in repr(read(text("guidellm_0_8.json")))


def test_a_rate_of_guidellm_without_any_concurrency_is_refused():
    report = document("guidellm_0_8.json")
    del report["benchmarks"][1]["metrics"]["request_concurrency"]
    with pytest.raises(UserError, match="strategy `poisson` that tells no concurrency"):
        read(report)


def test_throughput_uses_its_limit():
    report = document("guidellm_0_8.json")
    report["benchmarks"][1]["config"]["strategy"] = {"type_": "throughput", "max_concurrency": 64}
    assert [level.concurrency for level in read(report).levels] == [2, 64]


def test_a_report_without_benchmarks_is_refused():
    with pytest.raises(UserError, match="holds no benchmarks"):
        read({"benchmarks": []})


# Both


@pytest.mark.parametrize(
    "content",
    ["", "not json", "[]", "3", "{}", '{"results": []}', "date,model\n1,2\n", '{"benchmarks": 3}', "[" * 100_000],
)
def test_an_unknown_form_is_refused_with_what_was_expected(content):
    with pytest.raises(UserError, match=r"`results\.csv`") as caught:
        read(content, "results.csv")
    assert "vllm bench serve --save-result" in caught.value.hint
    assert "guidellm" in caught.value.hint


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("junk", [None, "x", -1, [], float("nan")])
def test_junk_in_any_field_is_refused_or_unknown_but_never_a_crash(name, junk):
    """Every key of the first three floors, one at a time."""

    def spoiled(value, depth):
        for key in value if isinstance(value, dict) else range(min(len(value), 2)):
            inner = value[key]
            value[key] = junk
            yield
            value[key] = inner
            if depth and isinstance(inner, dict | list):
                yield from spoiled(inner, depth - 1)

    whole = document(name)
    for _ in spoiled(whole, 3):
        try:
            found = read(whole)
        except UserError:
            continue
        json.dumps(imported_levels_json(found.levels), allow_nan=False)


@pytest.mark.parametrize("name", FILES)
def test_levels_are_stored_and_read_back_exactly(name):
    levels = read(text(name)).levels
    assert levels_from_json(json.loads(json.dumps(imported_levels_json(levels)))) == levels


def test_a_level_with_everything_in_it_is_read_back_exactly():
    level = replace(
        read(text("vllm_detailed.json")).levels[0],
        energy=Energy(10.0, 2.0, 0.5, 5.0, 9.0, ("power cap",), "NVML energy counter"),
        clocks=(Disagreement(Clock.DECODE, 1.0, 2.0, "a proxy between them"),),
        effective_interval=Interval(1.0, 2.0, 3.0),
        finish_reasons=(("stop", 3), ("length", 1)),
    )
    assert levels_from_json(json.loads(json.dumps(imported_levels_json([level])))) == (level,)


def test_stored_levels_that_are_damaged_are_named():
    with pytest.raises(StoreError, match="stored levels cannot be read"):
        levels_from_json([{"concurrency": "many"}])

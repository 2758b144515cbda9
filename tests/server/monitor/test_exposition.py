"""Metrics pages of real servers, in our names."""

import time
from pathlib import Path

import pytest

from loadchaos.server.dialects import DIALECTS
from loadchaos.server.dialects.base import MetricName
from loadchaos.server.monitor.exposition import PageParser

PAGES = Path(__file__).parent / "pages"


def parse(dialect: str, page: str) -> dict[str, dict[str, float]]:
    return PageParser(DIALECTS[dialect].metrics).parse((PAGES / page).read_bytes())


def test_page_parser_reads_vllm_0_32() -> None:
    values = parse("vllm", "vllm_0.32.txt")["0"]
    assert values["generation_tokens_total"] == 20004
    assert values["iterations_total"] == 20007
    assert values["requests_finished_total"] == 59  # over all finished_reason
    assert values["mm_cache_queries_total"] == 27
    assert (values["kv_blocks"], values["kv_block_size"], values["kv_cache_tokens"]) == (32768, 128, 4194304)
    assert values["process_start_time_s"] == 1795189801.41


def test_page_parser_reads_vllm_0_22_with_mtp() -> None:
    values = parse("vllm", "vllm_0.22.1_mtp.txt")["0"]
    assert (values["spec_drafts_total"], values["spec_draft_tokens_total"]) == (2727, 5454)
    assert values["kv_blocks"] == 5461
    assert "kv_cache_tokens" not in values


def test_page_parser_reads_lmdeploy() -> None:
    values = parse("lmdeploy", "lmdeploy_0.18.txt")["0"]
    assert (values["prompt_tokens_total"], values["generation_tokens_total"]) == (72, 18)
    assert values["requests_finished_total"] == 3
    assert values["iterations_total"] == 18


def test_page_parser_reads_known_series_again() -> None:
    parser = PageParser([MetricName("a", ("x",))])
    assert parser.parse(b'x{engine="0",l="1"} 1\nx{engine="0",l="2"} 2\n') == {"0": {"a": 3}}
    assert parser.parse(b'x{engine="0",l="1"} 10\nx{engine="0",l="2"} 2.5\n') == {"0": {"a": 12.5}}


def test_page_parser_gives_process_values_to_each_engine() -> None:
    parser = PageParser([MetricName("a", ("x",)), MetricName("p", ("process_x",))])
    page = b'x{engine="0"} 1\nx{engine="1"} 2\nprocess_x 7\n'
    assert parser.parse(page) == {"0": {"a": 1, "p": 7}, "1": {"a": 2, "p": 7}}


def test_page_parser_prefers_the_newer_name() -> None:
    parser = PageParser([MetricName("a", ("new", "old"))])
    assert parser.parse(b"old 1\nnew 2\n") == {"0": {"a": 2}}
    assert parser.parse(b"new 2\nold 1\n") == {"0": {"a": 2}}
    assert parser.parse(b"old 1\n") == {"0": {"a": 1}}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e300", "-1e40", "1.8446744073709552e+19"])
def test_page_parser_skips_values_that_are_no_count(value: str) -> None:
    assert PageParser([MetricName("a", ("x",))]).parse(f"x {value}\n".encode()) == {}


def test_page_parser_ignores_timestamps() -> None:
    parser = PageParser([MetricName("a", ("x",))])
    assert parser.parse(b"x 5 1795189801000\n") == {"0": {"a": 5}}
    assert parser.parse(b"x 6 1795189801000\n") == {"0": {"a": 6}}


def test_page_parser_reads_labels_with_blanks_braces_and_quotes() -> None:
    parser = PageParser([MetricName("a", ("x",))])
    assert parser.parse(b'x{l="a b} \\" c",engine="2"} 4\n') == {"2": {"a": 4}}


def test_page_parser_counts_bad_lines() -> None:
    parser = PageParser([MetricName("a", ("x",))])
    assert parser.parse(b"<html>\nx 1\n\xff\xfe\n") == {"0": {"a": 1}}
    assert parser.bad_lines == 2


def test_page_parser_skips_other_metrics_and_counts_what_is_no_line() -> None:
    parser = PageParser([MetricName("a", ("x",))])
    assert parser.parse(b'x 1\nother{l="a b}"} 2\nother_total 3 1700000000\nother{} 1\n') == {"0": {"a": 1}}
    assert parser.bad_lines == 0
    parser.parse(b"x 1\nwhat is this line\n{} 3\nother\n" + b"x" * 70_000 + b" 1\n")
    assert parser.bad_lines == 4


@pytest.mark.parametrize("name", ["other", "x"])
def test_page_parser_takes_bounded_time_for_a_page_of_12_mb(name: str) -> None:
    """Labels that change with each page are the worst case."""
    parser = PageParser([MetricName("a", ("x",))])
    for scrape in range(3):
        lines = (f'{name}{{engine="0",request="{scrape}-{n:060d}"}} {n}.0\n' for n in range(120_000))
        page = "".join(lines).encode()
        assert len(page) > 10_000_000
        begin = time.process_time()
        parser.parse(page)
        assert time.process_time() - begin < (4.0 if scrape == 0 else 1.5)
    assert parser.unread == (120_000 if name == "x" else 0)
    assert parser.bad_lines == 0

"""An example dialect: a complete dialect for an imaginary server."""

from loadchaos.core.http_answer import HttpAnswer
from loadchaos.server.dialects import DIALECTS, Dialect
from loadchaos.server.dialects.base import DetectionSign, MetricName, patterns
from loadchaos.server.dialects.detect import detect

# The file loadchaos/server/dialects/tinyserve.py:
TINYSERVE = Dialect(
    name="tinyserve",
    title="TinyServe",
    owned_by="tinyserve",  # in /v1/models
    metrics_prefix="tinyserve:",
    signs=(DetectionSign("/tiny/info"),),  # a page that only this server has
    command_word="tinyserve",
    default_port=9000,
    metrics=(MetricName("requests_running", ("tinyserve:running",)),),
    validation=patterns(r"prompt of \d+ tokens is too long"),  # the client's fault
    shed=patterns(r"queue is full"),  # admission control
    engine_dead=patterns(r"tiny engine is gone"),  # nothing else causes this text
    exact_output={"ignore_eos": "true", "min_tokens": "tokens"},
    length_flag="--context",
)

# The entry in loadchaos/server/dialects/__init__.py:
TABLE = {**DIALECTS, TINYSERVE.name: TINYSERVE}


def test_dialect_is_detected_by_its_signs() -> None:
    found = detect({"/tiny/info": HttpAnswer(200)}, TABLE)
    assert (found.dialect, found.signs) == (TINYSERVE, ("TinyServe: /tiny/info is there",))


def test_dialect_is_detected_by_owner_against_a_vllm_version_page() -> None:
    models = '{"data": [{"id": "m", "owned_by": "tinyserve"}]}'
    found = detect(
        {"/v1/models": HttpAnswer(200, {}, models), "/version": HttpAnswer(200, {}, '{"version": "2.1"}')}, TABLE
    )
    assert (found.dialect, found.version) == (TINYSERVE, "2.1")


def test_dialect_knows_its_texts() -> None:
    assert any(p.search("error: tiny engine is gone") for p in TINYSERVE.engine_failure)

from tests.run.conftest import Row, Serve, Start
from tests.run.raw_server import answer


def test_abort_when_ends_a_run_of_errors(start: Start, serve: Serve) -> None:
    """The server answers the load with 502 from its 20th request on."""
    streamed: list[int] = []

    def reply(_n: int, body: Row) -> tuple[int, list[Row]]:
        if not body.get("stream"):
            return 200, answer(2)
        streamed.append(1)
        return (200, answer(8)) if len(streamed) < 20 else (502, [{"error": {"message": "bad gateway", "code": 502}}])

    run = start(
        "--target",
        serve(reply),
        load=[{"users": 4, "for": "2m"}],
        target={"dialect": "openai"},
        abort_when="error_rate > 50% for 2s",
    )
    assert run.ends(60) == 1
    verdict = run.verdict()
    assert verdict["verdict"] == "fail"
    assert "unexplained_http_error" in {f["id"] for f in verdict["failures"]}
    delivered = run.check("load_delivered")
    assert delivered["verdict"] == "unknown"
    assert "ended early by abort_when: error_rate > 50% for 2s" in delivered["actual"]
    assert "the load ends early: error_rate > 50% for 2s" in run.output
    assert (
        run.output.count("users wait after instant errors: 100 ms, doubled after each further error, at most 2 s") == 1
    )
    assert verdict["generator"]["backed_off"] > 0
    assert sum(verdict["outcomes"].values()) < 200, "users back off"

import pytest

from tests.run.conftest import Start, embedded_target


@pytest.mark.slow
@pytest.mark.parametrize("defects", [["kv_leak_on_abort"], []])
def test_kv_leak_of_aborted_requests_is_found(defects: list[str], start: Start) -> None:
    leaving = {
        "name": "leaving", "payload": {"text": {"tokens": "64..256"}}, "output": {"exact": 200},
        "behaviour": {"abort": {"share": "100%", "at_token": "1..5"}},
    }  # fmt: skip
    staying = {"name": "staying", "payload": {"text": {"tokens": "64..256"}}, "output": {"max": 4}}
    run = start(
        target=embedded_target(*defects),
        traffic=[leaving, staying],
        load=[{"users": 4, "requests": 40}],
    )
    run.ends(120)
    verdict = run.verdict()
    assert [f["id"] for f in verdict["failures"]] == (["kv_leak"] if defects else [])
    check = run.check("idle after the load")
    aborted = verdict["outcomes"]["aborted"]
    if not defects:
        assert (check["verdict"], check["actual"]) == ("pass", "0 requests")
    else:
        assert check["verdict"] == "fail"
        assert f"({aborted} blocks) held by no request" in check["actual"]

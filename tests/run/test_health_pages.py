import json

import pytest

from tests.run.conftest import Start
from tests.run.foreign_server import MODELS, ForeignServer, serving

EXPECT = ["engine_deaths == 0", "hangs == 0", "failures == 0", "ok_share >= 95%"]
LITELLM = {
    "/v1/models": (200, MODELS),
    "/health": (200, json.dumps({"healthy_endpoints": [], "unhealthy_endpoints": []})),
    "/health/liveliness": (200, '"I\'m alive!"'),
    "/health/readiness": (200, json.dumps({"status": "healthy", "litellm_version": "1.80.0"})),
}


@pytest.mark.parametrize("pages", [{"/v1/models": (200, MODELS)}, {}], ids=["no health", "no health, no models"])
def test_server_without_health_is_healthy_while_it_answers(pages: dict[str, tuple[int, str]], start: Start) -> None:
    with serving(ForeignServer(pages)) as server:
        run = start("--target", server.url, *([] if pages else ["--model", "foreign"]), expect=EXPECT)
        assert run.ends() == 0, run.output
    assert [s["state"] for s in run.verdict()["states"]] == ["healthy"]
    assert run.verdict()["target"]["model"] == "foreign"
    assert not run.rows(row="probe", what="health", ok=False)


def test_server_without_models_asks_for_the_name_of_its_model(start: Start) -> None:
    with serving(ForeignServer({})) as server:
        run = start("--target", server.url)
        assert run.ends() == 4
    assert "--model" in run.output


def test_litellm_is_probed_at_its_liveness_page(start: Start) -> None:
    with serving(ForeignServer(LITELLM)) as server:
        run = start("--target", server.url, expect=EXPECT)
        assert run.ends() == 0, run.output
    assert server.asked["/health"] == 0
    assert server.asked["/health/liveliness"] > 4
    signs = [sign for state in run.verdict()["states"] for sign in state["signs"]]
    assert "/health/liveliness returns 200" in signs


@pytest.mark.slow
def test_server_that_tells_another_version_in_the_run_is_unknown(start: Start) -> None:
    pages = {"/v1/models": (200, MODELS), "/version": (200, '{"version": "0.18.0"}')}
    with serving(ForeignServer(pages)) as server:
        run = start("--target", server.url, expect=EXPECT)
        run.loaded(1)
        server.pages["/version"] = (200, '{"version": "0.19.1"}')
        assert run.ends() == 3, run.output
    assert "its version was '0.18.0', and '0.19.1'" in " ".join(run.output.partition("UNKNOWN")[2][:400].split())
    assert [row["named"]["version"] for row in run.rows(row="identity")] == ["0.18.0", "0.19.1"]

"""A label of the answers of a server is in everything that a run writes."""

import csv
import re
from collections import Counter
from typing import Any

import pytest

from tests.run.conftest import Start

pytestmark = pytest.mark.slow
TEXT = {"text": {"tokens": "16..32"}}
TARGET = {"embedded": {"dialect": "vllm", "era": "0.32", "flags": {"service_tier": "flex"}}}


def traffic(name: str, endpoint: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "endpoint": endpoint, "payload": TEXT, "output": {"exact": 8}, **more}


ALL: list[dict[str, Any]] = [
    traffic("chat", "chat"),
    traffic("whole", "chat", stream=False),
    traffic("completions", "completions"),
    traffic("responses", "responses"),
    {"name": "embeddings", "endpoint": "embeddings", "payload": TEXT},
]
LABELLED = {t["name"] for t in ALL[:-1]}


def test_service_tier_is_in_ledger_verdict_report_export_and_metrics(start: Start) -> None:
    run = start(traffic=ALL, target=TARGET, load=[{"users": 2, "requests": 60}])
    assert run.ends(90) == 0, run.output
    tiers = Counter(
        (r["traffic"], (r.get("labels") or {}).get("service_tier")) for r in run.rows("requests-0.jsonl", row="end")
    )
    assert {key for key in tiers if key[1] is not None} == {(name, "flex") for name in LABELLED}
    labels = run.verdict()["answer_labels"]
    assert {name: of["service_tier"] for name, of in labels.items() if "service_tier" in of} == {
        name: {"flex": tiers[name, "flex"]} for name in LABELLED
    }
    page = (run.folder / "report.html").read_text()
    assert '<td class="l">service tier</td><td class="l">flex</td>' in page
    run.again("export", "--csv", "--openmetrics").check_returncode()
    with (run.folder / "export" / "requests.csv").open() as file:
        exported = Counter((row["traffic"], row["service_tier"] or None) for row in csv.DictReader(file))
    assert exported == tiers
    samples = (run.folder / "export" / "openmetrics.txt").read_text()
    counted = re.findall(r'loadchaos_answers_total.*traffic="(\w+)",label="service_tier",value="flex"} (\d+)', samples)
    assert {(name, int(n)) for name, n in counted} >= {(name, tiers[name, "flex"]) for name in LABELLED}

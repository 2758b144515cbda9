"""Additions that CONTRIBUTING.md describes: at most two files each.

They are made in a copy of the package. A process then uses each of them.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLANS = """
from loadchaos.core.errors import OptionError
from loadchaos.load.registry import full_registry
from loadchaos.profile.profile import from_mapping

def profile(traffic={"text": {"tokens": 8}}, **more):
    traffic = [{"name": "t", "payload": traffic}]
    load = [{"rate": "1/s", "for": "1s", "max_in_flight": 1}]
    return from_mapping({"name": "p", "about": "a", "traffic": traffic, "load": load, **more}, full_registry())
"""


@dataclass(frozen=True)
class Addition:
    """New files, insertions into existing ones, and code that uses them.

    An insertion follows a text of the file, or its end.
    """

    use: str
    files: Mapping[str, str] = field(default_factory=dict)
    entries: Mapping[str, list[tuple[str, str]]] = field(default_factory=dict)

    def make(self, package: Path) -> None:
        for name, text in self.files.items():
            assert not (package / name).exists()
            (package / name).write_text(text)
        for name, insertions in self.entries.items():
            text = (package / name).read_text()
            for after, inserted in insertions:
                assert not after or text.count(after) == 1, (name, after)
                text = text.replace(after, after + inserted) if after else text + inserted
            (package / name).write_text(text)


ADDITIONS = {
    "payload": Addition(
        files={
            "load/payloads/logit_bias.py": """
from typing import ClassVar

from loadchaos.load.payloads.base import Payload

class Options(Payload):
    ORDER: ClassVar[int] = 33
    token: int = 1

    def add(self, request, facts, rng):
        request.extra["logit_bias"] = {str(self.token): -100}
""",
        },
        entries={
            "load/payloads/__init__.py": [
                ("    images,\n", "    logit_bias,\n"),
                ('    "recorded": recorded.Options,\n', '    "logit_bias": logit_bias.Options,\n'),
            ]
        },
        use="""
import json
from loadchaos.core.model import Facts, TextFacts
from loadchaos.load.request_builder import build
from loadchaos.profile.steps import steps

plan = profile({"text": {"tokens": 12}, "logit_bias": {"token": 9}})
facts = Facts(base_url="http://x", admin_url="http://x", dialect="vllm", model="m", version="0.18.0", max_model_len=4096,
              text=TextFacts(9, ((" the", 1),), " the", "tokenize"))
assert json.loads(build(next(iter(steps(plan, 1))), facts).body)["logit_bias"] == {"9": -100}
""",
    ),
    "network fault": Addition(
        entries={
            "core/attack_names.py": [('NETWORK_FAULTS = ("latency",', ' "stutter",')],
            "chaos/toxics.py": [
                (
                    "    effects = CUT\n    refuses = True\n",
                    """
class StutterToxic(ToxicType):
    \"\"\"Pause for `pause` after each byte.\"\"\"

    attributes = (Attribute("pause", 20, "ms"),)
    effects = SLOW
""",
                ),
                ('    "latency": LatencyToxic,\n', '    "stutter": StutterToxic,\n'),
            ],
        },
        use="""
from docs.tables import TABLES
from loadchaos.chaos.toxics import parse_toxic
from loadchaos.profile.schema import schema

(attack,) = profile(attacks=[{"network": "stutter", "at": "1s", "for": "1s", "params": {"pause": 5}}]).attacks
assert attack.operation == "network_stutter"
assert parse_toxic("x", "stutter", {"pause": 5}).attributes == {"pause": 5.0}
assert '"stutter"' in schema()
assert "| `stutter` | Pause for `pause` after each byte. | `pause` (ms) |" in TABLES["network faults"]()
""",
    ),
    "kind of attack": Addition(
        files={
            "chaos/clock.py": """
class ClockAttack:
    name, effects, holds, undone_by = "clock_ahead", (), True, None

def make(spec, params, context):
    return ClockAttack()
""",
        },
        entries={
            "core/attack_names.py": [
                (
                    "ATTACK_KINDS: Mapping[str, KindSpec] = {\n",
                    '    "clock": KindSpec("sets the clock {names}", "root", ("ahead", "behind"), instant=("behind",)),\n',
                )
            ]
        },
        use="""
from docs import ledger_page
from docs.tables import TABLES
from loadchaos.chaos.injector import make_attack
from loadchaos.profile.schema import schema

(attack,) = profile(attacks=[{"clock": "ahead", "at": "1s", "for": "1s"}]).attacks
assert attack.operation == "clock_ahead"
assert make_attack(attack.spec(), {}, None)[0] == "clock"
for wrong in ({"clock": "sideways"}, {"clock": "behind", "for": "1s"}, {"clock": "ahead", "admin": "sleep"}):
    try:
        profile(attacks=[{**wrong, "at": "1s"}])
    except Exception as e:
        assert "clock" in str(e) or "behind" in str(e), e
    else:
        raise AssertionError(wrong)
assert '"clock"' in schema() and "`clock`" in ledger_page.page()
assert "| `clock` | sets the clock `ahead`, `behind` | root |" in TABLES["attack kinds"]()
""",
    ),
    "dialect": Addition(
        files={
            "server/dialects/tinyserve.py": """
from loadchaos.server.dialects.base import DetectionSign, Dialect

TINYSERVE = Dialect(name="tinyserve", title="TinyServe", signs=(DetectionSign("/tiny/info"),))
""",
        },
        entries={
            "server/dialects/__init__.py": [
                (
                    "from loadchaos.server.dialects.sglang import SGLANG\n",
                    "from loadchaos.server.dialects.tinyserve import TINYSERVE\n",
                ),
                ("for dialect in (VLLM, LMDEPLOY,", " TINYSERVE,"),
            ]
        },
        use="""
from loadchaos.core.http_answer import HttpAnswer
from loadchaos.server.dialects.detect import detect

assert detect({"/tiny/info": HttpAnswer(200)}).dialect.title == "TinyServe"
assert profile(target={"dialect": "tinyserve"}).target.dialect == "tinyserve"
""",
    ),
    "signature": Addition(
        entries={
            "analysis/signatures/vllm.toml": [
                (
                    "",
                    """
[[signature]]
id = "teapot"
title = "The engine is a teapot"
severity = "engine_death"
find = "short and stout"
pattern = "I am short and stout"
remedy = "Pour it out."
examples = "RuntimeError: I am short and stout"
""",
                )
            ]
        },
        use="""
from loadchaos.analysis.classify.classifier import classify_text

(failure,) = classify_text("INFO Application startup complete.\\nERROR 11-22 10:00:00 RuntimeError: I am short and stout\\n")
assert (failure.id, failure.severity) == ("teapot", "engine_death"), failure
""",
    ),
    "detector": Addition(
        files={
            "analysis/detectors/full_moon.py": """
from loadchaos.analysis.detectors.base import Detector
from loadchaos.analysis.failure import Failure, evidence

class FullMoonDetector(Detector):
    seen = False

    def on_metrics(self, row):
        self.seen = row["values"].get("moon") == 1

    def finish(self):
        return [Failure("full_moon", "degraded", "The moon is full", evidence("metrics", "moon 1"))] if self.seen else []
""",
        },
        entries={
            "analysis/signatures/figures.toml": [
                (
                    "",
                    '\n[[signature]]\nid = "full_moon"\ntitle = "The moon is full"\nseverity = "degraded"\nsymptom = true\n',
                )
            ]
        },
        use="""
from docs.tables import TABLES
from loadchaos.analysis.judge import Judge

judge = Judge()
judge.fold({"row": "metrics", "at_ns": 1, "replica": "a", "engine": "0", "values": {"moon": 1}})
assert "full_moon" in [f.id for f in judge.verdict().failures]
assert "| `full_moon` | degraded | The moon is full |" in TABLES["failures without a line"]()
""",
    ),
    "label of an answer": Addition(
        entries={"core/answer_labels.py": [("LABELS = (\n", '    AnswerLabel("region", "region"),\n')]},
        use="""
from loadchaos.analysis.judge import Judge
from loadchaos.load.wire.answer_reader import AnswerReader, AnswerRules
from loadchaos.report.export.tables import TABLES

answer = AnswerReader(AnswerRules(), asked_stream=True, declared_stream=True)
choice = '{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}'
answer.feed(1, ('data: {"id": "1", "region": "north", "choices": [' + choice + ']}\\n\\n').encode())
assert answer.labels == {"region": "north"}, answer.labels
judge = Judge()
judge.fold({"row": "end", "at_ns": 2, "id": "r", "traffic": "t", "outcome": "ok", "labels": answer.labels})
assert judge.verdict().answer_labels == {"t": {"region": {"north": 1}}}
assert "region" in TABLES[0].types
""",
    ),
    "column of an export": Addition(
        entries={
            "report/export/tables.py": [
                (
                    "REQUESTS: Sequence[Column[RequestRecord]] = (\n",
                    '    Column("gap_share", "share of gaps", lambda r: r.outcome == "ok", "BOOLEAN"),\n',
                )
            ]
        },
        use="""
from docs.tables import TABLES as PAGES
from loadchaos.report.export.tables import TABLES, RunClock

table = TABLES[0]
folded = table.records(RunClock(0, 0))
folded.fold({"row": "end", "id": "a", "at_ns": 1, "outcome": "ok"})
records = folded.taken()
(cells,) = table.cells(records)
assert dict(zip(table.types, cells))["gap_share"] is True
assert "| `gap_share` | BOOLEAN | share of gaps |" in PAGES["columns of requests"]()
""",
    ),
    "defect": Addition(
        files={
            "simulator/defects/drops_blocks.py": """
from loadchaos.simulator.defects.defect import Defect

DEFECT = Defect("drops_blocks", "drops blocks", {"blocks_leaked_on_abort": 7})
""",
        },
        entries={
            "simulator/defects/__init__.py": [
                ("from loadchaos.simulator.defects import (\n", "    drops_blocks,\n"),
                ("_ALL = (\n", "    drops_blocks.DEFECT,\n"),
            ]
        },
        use="""
from loadchaos.simulator.defects import rules_of
from loadchaos.simulator.engine.types import EngineConfig

rules = rules_of(EngineConfig(defects=frozenset(["drops_blocks"])))
assert rules.blocks_leaked_on_abort == 7
assert profile(target={"embedded": {"dialect": "vllm", "defects": ["drops_blocks"]}})
""",
    ),
    "expectation": Addition(
        entries={
            "core/expectation_names.py": [
                ('"hangs": ("count", "times the server hung"),\n', '    "moons": ("count", "full moons"),\n')
            ],
            "analysis/verdict/verdict.py": [("        **base.counts,\n", '        "moons": 3,\n')],
        },
        use="""
from docs.tables import TABLES
from loadchaos.analysis.verdict.expectations import ExpectationInputs, judge
from loadchaos.analysis.verdict.verdict import figures_of

assert profile(expect=["moons == 0"])
figures = figures_of([], [], ExpectationInputs({}, {}, {}, {}, []))
assert judge("moons == 0", figures).verdict == "fail"
assert "| `moons` | full moons |" in TABLES["expectations"]()
""",
    ),
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """What each use printed; empty where it worked."""
    root = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "loadchaos", root / "loadchaos")  # with its bytecode, which stays valid
    (root / "docs").mkdir()
    shutil.copy(ROOT / "docs/tables.py", root / "docs")
    lines = [PLANS, "import json, traceback", "outputs = {}"]
    for name, addition in ADDITIONS.items():
        addition.make(root / "loadchaos")
        use = f"exec({addition.use!r}, dict(globals()))"
        lines.append(f"try:\n    {use}\n    outputs[{name!r}] = ''")
        lines.append(f"except BaseException:\n    outputs[{name!r}] = traceback.format_exc()")
    program = "\n".join([*lines, "import loadchaos", "print(json.dumps([loadchaos.__file__, outputs]))"])
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    file, found = json.loads(done.stdout.splitlines()[-1])
    assert Path(file).is_relative_to(root)
    return dict(found)


@pytest.mark.parametrize("name", ADDITIONS)
def test_addition_works_in_a_copy_of_the_package(name: str, outputs: Mapping[str, str]) -> None:
    assert outputs[name] == ""


@pytest.mark.parametrize("name", ADDITIONS)
def test_addition_touches_at_most_two_files(name: str) -> None:
    addition = ADDITIONS[name]
    assert len(addition.files) + len(addition.entries) <= 2

"""Plugins: distributions on sys.path, as pip would install them, and the example package from its own wheel."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadchaos import __version__
from tests.http_server import Asked, Handler, serving

ROOT = Path(__file__).parents[2]
Run = Callable[..., subprocess.CompletedProcess[str]]


def add(site: Path, package: str, module: str, **entries: str) -> None:
    """Install a package into a folder: `entries` are entry points by kind, as in `text = x:Y`."""
    name = package.replace("-", "_")
    info = site / f"{name}-2.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 2.1\n")
    (info / "entry_points.txt").write_text("".join(f"[loadchaos.{kind}]\n{line}\n" for kind, line in entries.items()))
    (site / f"{name}.py").write_text(module)


@pytest.fixture
def python(tmp_path: Path) -> Run:
    """Runs Python with the packages of the folder `site`."""
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "PYTHONWARNINGS": "error"}

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *args], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100
        )

    return run


def states(python: Run) -> dict[tuple[str, str], str]:
    done = python("-m", "loadchaos", "plugins", "--json")
    assert done.returncode == 0, done.stderr
    return {(p["kind"], p["name"]): p["state"] for p in json.loads(done.stdout)}


PROFILE = """
name: p
about: a
traffic: [{name: t, payload: {text: {tokens: 8}, MORE}}]
load: [{rate: 1/s, for: 1s, max_in_flight: 1}]
"""


@pytest.mark.slow
def test_example_package_works_from_its_own_wheel(tmp_path: Path, python: Run) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT / "examples" / "plugin",
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    found = states(python)
    assert set(found.values()) == {"ok"}, found
    assert {kind for kind, _ in found} == {
        "payloads", "behaviours", "endpoints", "dialects", "oracles", "signatures", "trace_formats", "attacks", "notifiers",
    }  # fmt: skip
    (tmp_path / "p.yaml").write_text(PROFILE.replace("MORE", "banned_token: {id: 9}"))
    (tmp_path / "t.csv").write_text("minute,prompt,answer\n1,5,6\n2,7,8\n")
    (tmp_path / "log").write_text("ERROR: tiny engine is gone\n")
    assert "no mistakes" in python("-m", "loadchaos", "check", "p.yaml").stdout
    assert "tiny_engine_gone" in python("-m", "loadchaos", "classify", "log").stdout
    assert "shouting" in python("-m", "loadchaos", "oracles").stdout
    used = python(
        "-c",
        """
import asyncio
from loadchaos.core.http_answer import HttpAnswer
from loadchaos.profile.trace import read
from loadchaos.report.export.notify import send
from loadchaos.server.dialects import outcome_rules_of_any_server
from loadchaos.server.dialects.detect import detect
assert [a.at for a in read("t.csv")] == [0.0, 60_000.0]
assert detect({"/tiny/info": HttpAnswer(200)}).dialect.title == "TinyServe"
assert any(p.search("queue is full") for p in outcome_rules_of_any_server().shed)
assert send("file://sent", {"text": "x"}) == "" and open("sent").read() == '{"text": "x"}\\n'
""",
    )
    assert used.returncode == 0, used.stderr


OWN_SERVER = """
name: own
target: {dialect: tinyserve}
traffic:
  - {name: chat, payload: {text: {tokens: 20}, banned_token: {id: 9}}, output: {max: 4}, behaviour: {late: {wait: 0.2}}}
  - {name: tiny, payload: {text: {tokens: 20}}, output: {max: 4}, endpoint: tiny}
load: [{rate: 10/s, for: 2s}]
attacks: [{admin: tiny_reload, at: 1s}, {plugin: many_models, at: 1s, params: {requests: 2}}]
"""


@pytest.mark.slow
def test_example_package_sends_its_requests_and_attacks_its_server(tmp_path: Path, python: Run) -> None:
    shutil.copytree(ROOT / "examples" / "plugin" / "loadchaos_example", tmp_path / "site" / "loadchaos_example")
    entries = tomllib.loads((ROOT / "examples" / "plugin" / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = {
        g.removeprefix("loadchaos."): "\n".join(f"{n}={e}" for n, e in some.items()) for g, some in entries.items()
    }
    add(tmp_path / "site", "installed-example", "", **lines)
    posted: dict[str, list[Any]] = {}

    class TinyServe(Handler):
        def reply(self, asked: Asked) -> None:
            if asked.method == "GET":
                pages = {"/v1/models": {"data": [{"id": "m"}]}, "/tiny/info": {}, "/health": {}}
                self.answer(
                    200 if self.path in pages else 405 if "/reload" in self.path else 404, pages.get(self.path, {})
                )
                return
            body = asked.json()
            posted.setdefault(self.path, []).append(body)
            if self.path == "/tiny/reload":
                self.answer(200, {})
                return
            usage = {
                "prompt_tokens": len(str(body.get("prompt") or body.get("messages")).split()),
                "completion_tokens": 4,
            }
            choice = {"index": 0, "text": " a b c d", "delta": {"content": " a b c d"}, "finish_reason": "length"}
            if not body.get("stream"):
                message = {"role": "assistant", "content": " a"}
                self.answer(200, {"model": "m", "choices": [{**choice, "message": message}], "usage": usage})
                return
            self.begin_stream()
            self.event({"model": "m", "choices": [choice]})
            self.event({"model": "m", "choices": [], "usage": usage})
            self.end_stream()

    (tmp_path / "own.yaml").write_text(OWN_SERVER)
    with serving(TinyServe) as url:
        words = ("--target", url, "--authorize", url.removeprefix("http://"), "--no-live", "--exporter-port", "0")
        done = python("-m", "loadchaos", "run", "own.yaml", *words)
    assert "20 requests ok" in done.stdout, done.stdout + done.stderr
    assert len(posted["/tiny/reload"]) == 1
    (events,) = tmp_path.glob("runs/*/events.jsonl")
    acts = [row for row in map(json.loads, events.read_text().splitlines()) if row["row"] == "attack"]
    assert "2 asked, 0 refused" in {row.get("text") for row in acts if row["attack"] == "plugin_many_models"}
    assert {(body["max_tokens"], body["stream"]) for body in posted["/tiny/generate"] if "stream" in body} == {
        (4, True)
    }
    (ledger,) = tmp_path.glob("runs/*/requests-0.jsonl")
    ends = [row for row in map(json.loads, ledger.read_text().splitlines()) if row["row"] == "end"]
    late = [row["sent_ns"] - row["due_ns"] for row in ends if row["traffic"] == "chat"]
    assert min(late) >= 0.2e9


@pytest.mark.slow
def test_broken_plugin_is_an_error_only_where_it_is_used(tmp_path: Path, python: Run) -> None:
    module = "from pathlib import Path\nPath('loaded').touch()\nraise RuntimeError('no such thing')\n"
    add(tmp_path / "site", "bad-plugin", module, payloads="poem = bad_plugin:X", dialects="odd = bad_plugin:Y")
    for more, code in (("sampling: {top_k: 5}", 0), ("poem: {}", 2)):
        (tmp_path / "p.yaml").write_text(PROFILE.replace("MORE", more))
        done = python("-m", "loadchaos", "check", "p.yaml")
        assert done.returncode == code, done.stderr
    whole = "plugin 'poem' of loadchaos.payloads, from bad-plugin 2.1: bad_plugin:X cannot be loaded: RuntimeError: "
    whole += "no such thing"
    assert whole in done.stderr
    assert states(python)["payloads", "poem"] == whole
    assert "warning: plugin 'odd'" in python("-m", "loadchaos", "plugins").stdout


@pytest.mark.parametrize(
    ("kind", "line", "said"),
    [
        ("payloads", "text = odd_plugin:Right", f"loadchaos {__version__} and odd-plugin 2.1 both have this name"),
        ("payloads", "poem = odd_plugin:wrong", "is no subclass of Payload"),
        ("dialects", "poem = odd_plugin:wrong", "is no Dialect"),
        ("dialects", "poem = odd_plugin:named", "its `name` is 'other'"),
        ("dialects", "poem = odd_plugin:later", "it needs version 99 of loadchaos.api"),
        ("payload", "poem = odd_plugin:Right", "loadchaos has no payload; a plugin is one of payloads, "),
        ("signatures", "poem = odd_plugin", "severity is missing"),
    ],
    ids=["collision", "no class", "no dialect", "other name", "other version", "unknown kind", "signatures"],
)
def test_mistake_in_a_plugin_is_named(tmp_path: Path, python: Run, kind: str, line: str, said: str) -> None:
    module = """
from loadchaos import api
class Right(api.Payload):
    ORDER = 1
    def add(self, request, facts, rng): pass
wrong, named = 5, api.Dialect(name="other", title="O")
def __getattr__(name):
    if name == "later": api.require(99)
    raise AttributeError(name)
"""
    add(tmp_path / "site", "odd-plugin", module, **{kind: line})
    if kind == "signatures":
        package = tmp_path / "site" / "odd_plugin"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "x.toml").write_text('[[signature]]\nid = "teapot"\ntitle = "A teapot"\n')
    assert said in states(python)[kind, line.split()[0]]
    (tmp_path / "log").write_text("hello\n")
    assert python("-m", "loadchaos", "classify", "log").returncode in (0, 3)


def test_unknown_attack_of_a_plugin_is_named(tmp_path: Path, python: Run) -> None:
    (tmp_path / "own.yaml").write_text(OWN_SERVER.replace("dialect: tinyserve", "dialect: vllm"))
    done = python("-m", "loadchaos", "check", "own.yaml")
    assert "unknown attack 'many_models': no installed plugin has it" in done.stdout + done.stderr


def test_no_plugin_is_loaded_when_modules_are_imported(tmp_path: Path, python: Run) -> None:
    kinds = ("payloads", "behaviours", "endpoints", "dialects", "oracles", "signatures", "trace_formats", "notifiers")
    module = "from pathlib import Path\nPath('loaded').touch()\n"
    add(tmp_path / "site", "any-plugin", module, **dict.fromkeys(kinds, "any = any_plugin:X"))
    done = python(
        "-c",
        """
import pkgutil, sys, importlib, loadchaos
for module in pkgutil.walk_packages(loadchaos.__path__, "loadchaos."):
    if not any(part in module.name for part in (".load.locust", "__main__", ".webui")):
        importlib.import_module(module.name)
print(len([name for name in sys.modules if name.startswith("loadchaos.")]))
""",
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) > 300
    assert not (tmp_path / "loaded").exists()


def test_help_reads_no_entry_points(python: Run) -> None:
    done = python("-X", "importtime", "-m", "loadchaos", "--help")
    assert done.returncode == 0
    assert "loadchaos.core.plugins" not in done.stderr

"""A small server that starts as vLLM does and dies of one request, and an advisory of a user with its reproducer."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from loadchaos.run.ports import free_port

SERVER = """#!{python}
import http.server, os, sys
port = int(sys.argv[sys.argv.index("--port") + 1])
mode = os.environ.get("FAKE") or ("dies" if "/2.0/" in sys.argv[0] else "lives")
if mode == "does not start":
    sys.exit("no weights")

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(b"{{}}")

    def do_POST(self):
        if mode == "dies":
            print("RuntimeError: CPU Generator does not use offset", file=sys.stderr, flush=True)
        elif mode == "dies of another failure":
            print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", file=sys.stderr, flush=True)
        if mode != "lives":
            os._exit(1)
        self.answer(b"{{}}")

    def answer(self, body):
        self.send_response(503 if mode == "refuses" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
SCRIPT = """
import sys, time, urllib.request
if "asleep" in open(__file__.replace("repro.py", "mode")).read():
    time.sleep(60)
try:
    urllib.request.urlopen(sys.argv[1] + "/v1/chat/completions", data=b"{}", timeout=10)
except OSError:
    sys.exit("the server died")
sys.exit(int(open(__file__.replace("repro.py", "mode")).read() or 0))
"""
ADVISORY = """\
id = "vllm-own-death"
title = "it dies"
failure = "cpu_generator_offset"
severity = "engine_death"

[when]
hardware = "cpu"

[needs]
max_num_seqs = "<=8"

[[affected]]
versions = "==2.0"
proved = { build = "own", date = "2026-11-27", tries = "1 of 1", reproducer = "own-death" }
"""


@dataclass(frozen=True)
class Bench:
    """Folder of a user: a program called vllm, an advisory, its script."""

    home: Path
    port: int

    @property
    def program(self) -> Path:
        return self.home / "bin" / "vllm"

    def launch(self, mode: str = "", flags: str = "--max-num-seqs 8") -> str:
        return f"FAKE='{mode}' {self.program} serve M --port {self.port} {flags}"

    def words(self, *more: str) -> list[str]:
        """Words of a proof of the user's advisory; what the shipped ones need is never sent."""
        never = [
            "structured output",
            "tool calls",
            "images",
            "seed",
            "sampling parameters",
            "refused requests",
            "token ids",
        ]
        without = [word for one in never for word in ("--without", one)]
        out = ["--advisories", str(self.home / "own"), "--out", str(self.home / "runs")]
        return ["doctor", "--prove", *out, *without, "--fact", "hardware=cpu", *more]

    def script(self, mode: str) -> None:
        (self.home / "own" / "own-death" / "mode").write_text(mode)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    found = Bench(tmp_path, free_port())
    found.program.parent.mkdir()
    found.program.write_text(SERVER.format(python=sys.executable))
    found.program.chmod(0o755)
    (tmp_path / "own" / "own-death").mkdir(parents=True)
    (tmp_path / "own" / "vllm-own-death.toml").write_text(ADVISORY)
    (tmp_path / "own" / "own-death" / "repro.py").write_text(SCRIPT)
    found.script("")
    return found

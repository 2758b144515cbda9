"""A trace that kills a server with the bug near_max_oob, and wheels of such servers."""

import zipfile
from pathlib import Path

import pytest

from loadchaos.profile import request_trace
from loadchaos.profile.request_trace import TraceSend
from tests.campaigns.traces import stored_chat, trace_of

SERVER = """\
import os, sys
VERSION = "{version}"
if {breaks}:
    sys.exit("error: this release does not start")
defect = ["--defect", "near_max_oob"] if {bad} else []
python, *more = sys.argv[1:]
os.execv(python, [python, "-m", "loadchaos.simulator.server", *defect, *more])
"""


def write_trace(folder: Path, *words: int) -> Path:
    """One request after the other, each with so many words, and the death that they led to."""
    sends = [TraceSend(id=f"r{i}", at_s=i / 10, body=stored_chat(folder, n)) for i, n in enumerate(words)]
    failure = {"id": "index_oob_indexkernel", "severity": "engine_death", "title": "an index is out of bounds"}
    return request_trace.write(trace_of(folder, sends, source="test", failure=failure), folder)


@pytest.fixture
def deadly_trace(tmp_path: Path) -> Path:
    """A prompt of 1500 words among others."""
    return write_trace(tmp_path / "trace", 10, 1500)


def write_wheel(folder: Path, version: str, *, bad: bool = False, breaks: bool = False, needs: str = "") -> Path:
    """A wheel of `fakellm`, whose module starts the embedded server."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"fakellm-{version}-py3-none-any.whl"
    info = f"fakellm-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: fakellm\nVersion: {version}\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("fakellm.py", SERVER.format(version=version, bad=bad, breaks=breaks))
        archive.writestr(f"{info}/METADATA", metadata + (f"Requires-Dist: {needs}\n" if needs else ""))
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"fakellm.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path

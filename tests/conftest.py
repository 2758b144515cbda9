"""Options of the whole suite, and its last line: what was skipped, and why.

`--update` rewrites golden files, and the diff is the review.
"""

import asyncio
import inspect
import os
import signal
import socket
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.embedded_server import EmbeddedServer
from tests.rows import EmittedRows

# A busy machine is not a fault of the code: how long one example takes is measured in bench/, never asserted.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

# The key that seals run folders is of the tests, and not of who runs them.
os.environ["XDG_STATE_HOME"] = str(Path(tempfile.gettempdir(), f"loadchaos-tests-{os.getuid()}"))

_skipped: Counter[str] = Counter()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite golden headers of tests/crashes")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture
def rows() -> EmittedRows:
    return EmittedRows()


@pytest.fixture
def hears_sighup() -> Iterator[None]:
    """SIGHUP is not ignored, here and in children: under nohup it is."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def unused_port() -> int:
    """A port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@pytest.fixture
def embedded(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of an embedded server with the flags that a test is parametrised with."""
    with EmbeddedServer(*request.param) as server:
        yield server.url


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A self-signed one for localhost, with its key in one file."""
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    argv += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run(argv, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl to make a certificate with")
    cert.write_text(cert.read_text() + key.read_text())
    return cert


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        _skipped[report.longrepr[2].removeprefix("Skipped: ")] += 1


def pytest_unconfigure() -> None:
    """After pytest's own summary: a suite that skipped is not one that passed, so nobody should have to look for it."""
    reasons = "; ".join(f"{n} x {reason}" for reason, n in _skipped.most_common())
    print(f"skipped: {_skipped.total()}" + (f" ({reasons})" if reasons else ""))

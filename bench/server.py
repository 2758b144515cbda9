"""Compile and run the load server of the benches (server.c).

python -m bench.server [--events N] [--gap-us N] [--ttft-us N] [--spread-us N] [--tls] [--core N]

serves until Ctrl-C and prints each second what it has served. Benches read its counters and the stamps of its events.
"""

from __future__ import annotations

import argparse
import hashlib
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
import time
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent
BUILD = HERE.parent / "build" / "bench"
NO_EVENT = 2**32 - 1
"""`event` of the stamp that says when a request had been read."""

STAMP = np.dtype([("stream", "<u4"), ("event", "<u4"), ("due_ns", "<u8"), ("sent_ns", "<u8")])
_ENDING_S = 10.0


class NoCompilerError(Exception):
    """There is no C compiler; the text lists the names that were tried."""


@dataclass(frozen=True)
class Counters:
    """Counters of the server: `struct counters` of server.c, in its order."""

    connections: int
    open: int
    begun: int
    ended: int
    events: int
    cut: int
    refused: int
    late_1ms: int


_COUNTERS = struct.Struct(f"<{len(fields(Counters))}Q")


@dataclass(frozen=True)
class Pace:
    """Pace of a stream: number of events and their times.

    The first event comes after ttft_us (plus up to spread_us), the others gap_us apart.
    """

    events: int = 64
    gap_us: int = 20_000
    ttft_us: int = 100_000
    spread_us: int = 0

    def arguments(self) -> list[str]:
        """Command line arguments for server.c."""
        return [text for f in fields(self) for text in (f"--{f.name.replace('_', '-')}", str(getattr(self, f.name)))]


def build(source: str, *flags: str) -> Path:
    """Compile a file of this folder, once for each content and flags.

    Raises NoCompilerError.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NoCompilerError("no C compiler (cc, gcc, clang) is on the PATH")
    text = (HERE / source).read_bytes()
    key = hashlib.blake2b(text + repr(flags).encode(), digest_size=6).hexdigest()
    target = BUILD / f"{Path(source).stem}-{key}"
    if not target.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        made = target.with_suffix(f".{os.getpid()}")
        subprocess.run([compiler, "-O2", "-o", str(made), str(HERE / source), *flags], check=True)
        made.replace(target)
    return target


def has_openssl() -> bool:
    """Tell whether OpenSSL's headers and libraries are installed."""
    probe = "#include <openssl/ssl.h>\nint main(void){return !TLS_server_method();}"
    compiler = shutil.which("cc") or "cc"
    with tempfile.TemporaryDirectory() as folder:
        argv = [compiler, "-x", "c", "-", "-o", f"{folder}/probe", "-lssl", "-lcrypto"]
        try:
            return subprocess.run(argv, input=probe.encode(), capture_output=True, check=False).returncode == 0
        except OSError:
            return False


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for 127.0.0.1 with its key, valid for a day."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    argv += ["-days", "1", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*argv, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


class LoadServer:
    """The server as a context manager.

    `url` and `counters()` work while it runs; `stamps` is there when it has ended.
    """

    def __init__(self, pace: Pace, *, tls: bool = False, stamps: bool = False, before: tuple[str, ...] = ()) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="loadchaos-bench-")
        folder = Path(self._folder.name)
        program = build("server.c", "-DTLS", "-lssl", "-lcrypto") if tls else build("server.c")
        argv = [*before, str(program), *pace.arguments(), "--counters", str(folder / "counters")]
        self._stamps = folder / "stamps" if stamps else None
        if self._stamps:
            argv += ["--stamps", str(self._stamps)]
        self.certificate: Path | None = None
        if tls:
            self.certificate, key = certificate(folder)
            argv += ["--tls", str(self.certificate), str(key)]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        first_line = self._process.stdout.readline().split()
        if len(first_line) != 2:
            raise RuntimeError(f"the load server did not start: {' '.join(argv)}")
        self.port = int(first_line[1])
        self.pid = self._process.pid
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self.stamps: NDArray[np.void] = np.empty(0, STAMP)
        with (folder / "counters").open("rb") as file:
            self._map = mmap.mmap(file.fileno(), _COUNTERS.size, prot=mmap.PROT_READ)

    def counters(self) -> Counters:
        """Read the counters from shared memory, at no cost for the server."""
        return Counters(*_COUNTERS.unpack(self._map[:]))

    def __enter__(self) -> LoadServer:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """End the server and keep its stamps; a second call does nothing."""
        if self._process.stdin is None or self._process.stdin.closed:
            return
        self._process.stdin.close()
        try:
            self._process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        if self._stamps is not None and self._stamps.exists():
            self.stamps = np.fromfile(self._stamps, STAMP)
        self._map.close()
        self._folder.cleanup()


def main() -> int:
    """Serve and print counters."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Pace):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, default=field.default)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--core", type=int, help="pin the server to this core")
    args = parser.parse_args()
    pace = Pace(args.events, args.gap_us, args.ttft_us, args.spread_us)
    pinned = () if args.core is None else ("taskset", "-c", str(args.core))
    with LoadServer(pace, tls=args.tls, before=pinned) as server:
        print(server.url, f"(certificate {server.certificate})" if server.certificate else "", flush=True)
        try:
            while True:
                time.sleep(1)
                print(server.counters(), flush=True)
        except KeyboardInterrupt:
            return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""List the releases of a package with pip, and install each one once."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import fcntl
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadchaos.core.errors import OptionError
from loadchaos.core.whole_file import write_whole
from loadchaos.server.process.launcher import last_line

_LIST_S = 180.0
_INSTALL_S = 3600.0
_LOOK_AGAIN_S = 1.0
_NAME = re.compile(r"([A-Za-z0-9][\w.-]*)(?:\[[\w,.-]+\])?==\{version\}")
_INDEX_OPTIONS = ("-i", "--index-url", "--extra-index-url", "-f", "--find-links")
_PRE_RELEASE = re.compile(r"\d(a|b|rc|\.dev)\d")


@dataclass(frozen=True)
class InstallPlan:
    """Commands that install and start a release. Both have the placeholders {version} and {venv}; `venvs` is the folder
    of the installed releases; None: one of the cache, named by the command.
    """

    install: str
    launch: str
    package: str | None = None
    venvs: Path | None = None

    def check(self) -> None:
        if "{version}" not in self.install:
            raise OptionError(
                f"--install {self.install!r}: the placeholder {{version}} was expected, such as "
                "'{venv}/bin/pip install vllm=={version}'"
            )
        if "{venv}" not in self.launch and "{version}" not in self.launch:
            raise OptionError(
                f"--launch {self.launch!r}: the placeholder {{venv}} was expected, such as '{{venv}}/bin/vllm serve MODEL': "
                "without it every release has the same server"
            )
        self.name()

    def name(self) -> str:
        match = _NAME.search(self.install)
        if self.package is not None:
            return self.package
        if match is None:
            raise OptionError(
                f"--install {self.install!r} names no package as NAME=={{version}}: give its name with --package"
            )
        return match[1]

    def folder(self) -> Path:
        if self.venvs is not None:
            return self.venvs.absolute()
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        known = hashlib.blake2b(self.install.encode(), digest_size=4).hexdigest()
        return root / "loadchaos" / "releases" / f"{self.name()}-{known}"

    def filled(self, command: str, version: str) -> str:
        venv = str(self.folder() / version)
        return command.replace("{version}", version).replace("{venv}", venv)


def index_options(install: str) -> list[str]:
    """Options of an install command that say where packages come from."""
    words, found = shlex.split(install), []
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word in _INDEX_OPTIONS:
            found += [word, after]
        elif word.split("=", 1)[0] in _INDEX_OPTIONS or word in ("--no-index", "--pre"):
            found.append(word)
    return found


def available(plan: InstallPlan, *, pre: bool = False) -> list[str]:
    """List the releases that pip has for this Python, oldest first. Raises OptionError where pip has none."""
    if importlib.util.find_spec("pip") is None:
        raise OptionError(f"{sys.executable} has no pip, which lists the releases: run `python -m ensurepip`")
    argv = [sys.executable, "-m", "pip", "index", "versions", plan.name(), *index_options(plan.install)]
    argv += ["--pre"] if pre and "--pre" not in argv else []
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_LIST_S, check=False)
    except subprocess.TimeoutExpired:
        raise OptionError(
            f"pip did not list the releases of {plan.name()} within {_LIST_S:.0f} s: look at the index in --install"
        ) from None
    match = re.search(r"^Available versions: (.+)$", done.stdout, re.MULTILINE)
    if match is None:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()[
            -1:
        ]
        raise OptionError(
            f"pip lists no release of {plan.name()}: {(errors or ['no output'])[0]}; check the name (--package) and "
            "the index in --install"
        )
    return [version.strip() for version in match[1].split(",")][::-1]


def releases_between(text: str, plan: InstallPlan) -> list[str]:
    """List the releases of a range `A..B`, oldest first. Raises OptionError for a range that pip does not have."""
    oldest, newest = _ends(text)
    return range_of(oldest, newest, available(plan, pre=bool(_PRE_RELEASE.search(text))), plan.name())


def _ends(text: str) -> tuple[str, str]:
    oldest, dots, newest = (part.strip() for part in text.partition(".."))
    if not dots or not oldest or not newest:
        raise OptionError(f"releases {text!r}: a range was expected, such as 0.22.1..0.32.0")
    return oldest, newest


def range_of(oldest: str, newest: str, every: Sequence[str], name: str) -> list[str]:
    first, last = (_place(version, every, name) for version in (oldest, newest))
    if first >= last:
        raise OptionError(f"releases {oldest}..{newest}: {oldest} is not older than {newest}; give the older one first")
    return list(every[first : last + 1])


def _place(version: str, every: Sequence[str], name: str) -> int:
    """Find a release in the list; 0.32 is the same as 0.32.0."""
    plain = [_plain(other) for other in every]
    if _plain(version) in plain:
        return plain.index(_plain(version))
    near = difflib.get_close_matches(version, every, n=5, cutoff=0.3) or every[-5:]
    raise OptionError(
        f"releases: pip has no release {version} of {name}; there are {len(every)}, such as {', '.join(near)}"
    )


def _plain(version: str) -> str:
    return re.sub(r"(\.0)+$", "", version)


class ReleaseInstaller:
    """Installs releases, each once. Logs are beside the installed releases. Each release has a lock. A bisection that
    uses a release has it shared, one that installs it has it alone. The processes of an install command hold it too:
    those of a killed bisection may still write.
    """

    def __init__(self, plan: InstallPlan, print_line: Callable[[str], None]) -> None:
        self._plan, self._print, self._folder = plan, print_line, plan.folder()
        self._locks: dict[str, int] = {}

    async def prepare(self, version: str) -> str:
        """Install a release that is not installed. Returns why that failed, or ""."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if version not in self._locks:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._locks[version] = os.open(self._folder / f"{version}.lock", flags, 0o600)
        lock = self._locks[version]
        while True:
            if _locked(lock, fcntl.LOCK_SH) and self._is_installed(version):
                return ""
            if why := await self._lock_alone(version, lock):
                return why
            if not self._is_installed(version) and (why := await self._install(version, lock)):
                fcntl.flock(lock, fcntl.LOCK_UN)
                return why

    def close(self) -> None:
        """Let other bisections install the releases again."""
        for lock in self._locks.values():
            os.close(lock)
        self._locks.clear()

    def _is_installed(self, version: str) -> bool:
        return _read(self._marker(version)) == _known(self._plan.install) and (self._folder / version).is_dir()

    def _marker(self, version: str) -> Path:
        return self._folder / f"{version}.installed"

    async def _lock_alone(self, version: str, lock: int) -> str:
        """Wait until nobody else uses a release. Returns why that is in vain, or ""."""
        told = False
        while not _locked(lock, fcntl.LOCK_EX):
            other = _read(self._marker(version))
            if other is not None and other != _known(self._plan.install):
                return "another bisection uses it, installed with another command: choose another --venvs"
            if _locked(lock, fcntl.LOCK_SH) and self._is_installed(version):
                return ""
            fcntl.flock(lock, fcntl.LOCK_UN)  # two that wait with a shared lock would wait for each other
            if not told:
                self._print(f"{version}: another bisection installs it; waiting")
            told = True
            await asyncio.sleep(_LOOK_AGAIN_S)
        return ""

    async def _install(self, version: str, lock: int) -> str:
        marker, log, venv = self._marker(version), self._folder / f"{version}.log", self._folder / version
        if venv.exists() and not log.exists():
            return f"{venv} was not made by a bisection: move it, or choose another --venvs"
        if marker.exists() and venv.is_dir():
            self._print(f"{version}: {venv} was installed with another command: it is made anew")
        self._print(f"{version}: installing into {venv}")
        marker.unlink(missing_ok=True)
        shutil.rmtree(venv, ignore_errors=True)
        with log.open("wb") as output:
            for command in (f"{shlex.quote(sys.executable)} -m venv {shlex.quote(str(venv))}", self._plan.install):
                code = await _run(self._plan.filled(command, version), output.fileno(), lock)
                if code != 0:
                    shutil.rmtree(venv, ignore_errors=True)
                    return f"it cannot be installed: {_decisive(log)} ({log})"
        write_whole(marker, _known(self._plan.install) + "\n")
        return ""


def _locked(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _known(install: str) -> str:
    """Hash of an install command, which may hold the password of an index."""
    return hashlib.blake2b(install.encode(), digest_size=16).hexdigest()


def _read(marker: Path) -> str | None:
    try:
        return marker.read_text("utf-8").removesuffix("\n")
    except FileNotFoundError:
        return None


def _decisive(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").splitlines()
    errors = [line for line in lines if line.lstrip().lower().startswith("error")]
    return (errors[-1].strip() if errors else last_line(log))[:200] or "the command printed nothing"


async def _run(command: str, output: int, lock: int) -> int:
    """Run a shell command; its processes end with us. They hold a lock until then."""
    process = await asyncio.create_subprocess_shell(
        command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        pass_fds=(lock,),
    )
    try:
        async with asyncio.timeout(_INSTALL_S):
            return await process.wait()
    except TimeoutError:
        os.write(output, f"error: not finished within {_INSTALL_S:.0f} s\n".encode())
        return 1
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

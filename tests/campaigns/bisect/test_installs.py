import asyncio
import fcntl
import os
from pathlib import Path

import pytest

from loadchaos.campaigns.bisect import installs
from loadchaos.campaigns.bisect.installs import InstallPlan, ReleaseInstaller


class Shell:
    """Stands in for the shell of install commands: each one leaves its text in the release's folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.code = folder, 0
        self.ran: list[str] = []
        self.lines: list[str] = []
        self.hold: asyncio.Event | None = None
        monkeypatch.setattr(installs, "_run", self.run)
        monkeypatch.setattr(installs, "_LOOK_AGAIN_S", 0.01)

    async def run(self, command: str, _: int, __: int) -> int:
        self.ran.append(command)
        venv = self.folder / "1.0"
        venv.mkdir(exist_ok=True)
        (venv / "made").write_text(command)
        if self.hold is not None:
            await self.hold.wait()
        return self.code

    def installer(self, install: str = "install a=={version}") -> ReleaseInstaller:
        return ReleaseInstaller(InstallPlan(install, "{venv}/serve", venvs=self.folder), self.lines.append)

    @property
    def made(self) -> str:
        return (self.folder / "1.0" / "made").read_text()


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(tmp_path / "venvs", monkeypatch)


def prepared(installer: ReleaseInstaller) -> str:
    return asyncio.run(installer.prepare("1.0"))


def test_release_is_installed_once(shell: Shell) -> None:
    first = shell.installer()
    assert prepared(first) == prepared(first) == prepared(shell.installer()) == ""
    assert len(shell.ran) == 2
    assert shell.made == "install a==1.0"


def test_release_of_another_install_command_is_made_anew(shell: Shell) -> None:
    first = shell.installer()
    prepared(first)
    first.close()
    assert prepared(shell.installer("install --pre a=={version}")) == ""
    assert shell.made == "install --pre a==1.0"
    assert any("was installed with another command: it is made anew" in line for line in shell.lines)


def test_release_in_use_is_not_made_anew(shell: Shell) -> None:
    prepared(shell.installer())
    why = prepared(shell.installer("install --pre a=={version}"))
    assert why == "another bisection uses it, installed with another command: choose another --venvs"
    assert shell.made == "install a==1.0"


def test_password_of_an_index_is_not_written(shell: Shell) -> None:
    install = "install --index-url https://me:hunter2secret@index.example/simple a=={version}"
    first = shell.installer(install)
    assert prepared(first) == prepared(shell.installer(install)) == ""
    assert len(shell.ran) == 2
    assert [file.name for file in shell.folder.iterdir() if file.is_file() and b"hunter2" in file.read_bytes()] == []


def test_release_of_a_killed_bisection_is_made_anew(shell: Shell) -> None:
    (shell.folder / "1.0").mkdir(parents=True)
    (shell.folder / "1.0" / "half").touch()
    (shell.folder / "1.0.log").touch()
    assert prepared(shell.installer()) == ""
    assert not (shell.folder / "1.0" / "half").exists()


def test_folder_of_somebody_else_is_left_alone(shell: Shell) -> None:
    (shell.folder / "1.0").mkdir(parents=True)
    (shell.folder / "1.0" / "theirs").touch()
    assert "was not made by a bisection: move it" in prepared(shell.installer())
    assert (shell.folder / "1.0" / "theirs").exists()


async def test_release_that_is_being_installed_is_waited_for(shell: Shell) -> None:
    shell.hold = asyncio.Event()
    tasks = [asyncio.create_task(shell.installer().prepare("1.0")) for _ in range(2)]
    for _ in range(1000):
        if shell.lines and "waiting" in shell.lines[-1]:
            break
        await asyncio.sleep(0.01)
    shell.hold.set()
    assert (list(await asyncio.gather(*tasks))) == ["", ""]
    assert len(shell.ran) == 2
    assert shell.lines[-1] == "1.0: another bisection installs it; waiting"


def test_failed_installation_is_not_kept(shell: Shell) -> None:
    shell.code = 1
    assert "it cannot be installed" in prepared(shell.installer())
    assert not (shell.folder / "1.0").exists()
    shell.code = 0
    assert prepared(shell.installer()) == ""


async def test_processes_of_an_install_command_hold_the_lock(tmp_path: Path) -> None:
    """An installation whose bisection was killed still writes into the release."""
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    other = os.open(tmp_path / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)

    os.mkfifo(tmp_path / "fifo")
    running = asyncio.create_task(installs._run(f"touch {tmp_path}/begun; read line < {tmp_path}/fifo", 2, lock))
    for _ in range(1000):
        if (tmp_path / "begun").exists():
            break
        await asyncio.sleep(0.01)
    os.close(lock)  # as the death of the bisection does
    during = installs._locked(other, fcntl.LOCK_EX)
    await asyncio.to_thread((tmp_path / "fifo").write_text, "\n")
    await running
    assert (during, installs._locked(other, fcntl.LOCK_EX)) == (False, True)

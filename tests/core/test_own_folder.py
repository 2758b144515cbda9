"""A folder that was copied or unpacked is somebody else's, and none of its paths leads out of it."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from loadchaos.core import own_folder
from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.recorder import create_folder


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return create_folder(tmp_path, "run").path


def test_run_folder_is_own_and_so_is_what_it_holds(own: Path) -> None:
    (own / "incidents" / "001").mkdir(parents=True)
    assert own_folder.is_own(own)
    assert own_folder.is_own(own / "incidents" / "001")
    assert not own_folder.is_own(own.parent)


def test_moved_folder_stays_own_but_a_copy_is_not(own: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(own, tmp_path / "copy"))
    assert not own_folder.is_own(copy)
    assert own_folder.is_own(own.rename(tmp_path / "moved"))


def test_unpacked_folder_that_got_the_inode_of_the_deleted_one_is_not_own(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ext4 gives an inode again at once; here the folder itself stays, with the seal that an archive holds."""
    monkeypatch.setattr(own_folder, "_WRITTEN_NS", 500_000_000)
    assert own_folder.is_own(own)
    seal = own / own_folder.SEAL
    text, times = seal.read_text(), seal.stat()
    seal.unlink()
    time.sleep(0.6)
    seal.write_text(text)
    os.utime(seal, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert not own_folder.is_own(own)


def test_folder_of_another_machine_is_not_own(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    assert not own_folder.is_own(own)


def test_without_a_home_folder_nothing_is_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert not own_folder.is_own(create_folder(tmp_path, "run").path)


def _link(folder: Path, to: str) -> None:
    (folder / "verdict.json.part").symlink_to(to)


ESCAPES: dict[str, Callable[[Path], None]] = {
    "file": lambda folder: _link(folder, "/etc/hostname"),
    "relative": lambda folder: _link(folder, "../outside"),
    "new file": lambda folder: _link(folder, "/tmp/no-such-file-yet"),
    "folder": lambda folder: (folder / "incidents").symlink_to("/etc"),
    "pipe": lambda folder: os.mkfifo(folder / "events.jsonl"),
}


@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES)
def test_refuse_links_finds_what_leads_out_of_somebody_elses_folder(
    escape: Callable[[Path], None], tmp_path: Path
) -> None:
    foreign = tmp_path / "foreign"
    (foreign / "watch").mkdir(parents=True)
    (foreign / "watch" / "page").symlink_to("../here")
    own_folder.refuse_links(foreign)
    escape(foreign)
    with pytest.raises(OptionError, match="made by somebody else"):
        own_folder.refuse_links(foreign)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x"])
def test_inside_refuses_a_name_that_leads_out(name: str, tmp_path: Path) -> None:
    assert own_folder.inside(tmp_path, "bodies/a.json") == tmp_path / "bodies" / "a.json"
    with pytest.raises(OptionError, match="leads out of"):
        own_folder.inside(tmp_path, name)

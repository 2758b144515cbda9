import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadchaos.cli.main import main
from loadchaos.core.errors import OptionError
from loadchaos.core.folder_lock import FolderLock


def test_folder_lock_names_its_holder_and_is_free_again(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path / "made", "loadchaos minimise")
    with pytest.raises(OptionError, match=rf"in use by loadchaos minimise, pid {os.getpid()} on "):
        FolderLock(tmp_path / "made", "loadchaos bisect")
    lock.close()
    FolderLock(tmp_path / "made", "loadchaos bisect").close()


@pytest.mark.parametrize("what", ["minimise", "bisect", "replay"])
def test_search_that_another_process_continues_is_not_resumed(what: str, tmp_path: Path) -> None:
    folder = tmp_path / f"{what}-source-1"
    folder.mkdir()
    (folder / f"{what}.json").write_text("{}")
    lock = FolderLock(folder, f"loadchaos {what}")
    flags = ["--flags"] if what == "bisect" else []
    done = CliRunner().invoke(main, [what, str(tmp_path / "source"), "--out", str(tmp_path), "--resume", *flags])
    lock.close()
    assert f"in use by loadchaos {what}, pid {os.getpid()}" in f"{done.output}{done.exception}", done.output

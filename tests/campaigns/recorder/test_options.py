import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadchaos.cli.main import main


def run(tmp_path: Path, **more: str) -> tuple[int, str]:
    given = {"upstream": "http://127.0.0.1:1", "listen": "127.0.0.1:0", "out": str(tmp_path / "out"), **more}
    argv = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
    result = CliRunner().invoke(main, ["record", *argv])
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("upstream", "127.0.0.1:8000", "http://HOST:PORT or https://HOST:PORT was expected"),
        ("upstream", "http://user:pass@127.0.0.1:8000", "without a user, a path or a query"),
        ("upstream", "http://127.0.0.1:8000/v1", "without a user, a path or a query"),
        ("upstream", "http://127.0.0.1:99999", "http://HOST:PORT or https://HOST:PORT was expected"),
        ("listen", "8080", "HOST:PORT such as 0.0.0.0:8000 was expected"),
        ("listen", "127.0.0.1:70000", "HOST:PORT such as 0.0.0.0:8000 was expected"),
        ("max_size", "lots", "a size such as 8GiB or 500MB was expected"),
        ("max_size", "10KB", "at least 1MB was expected"),
        ("freeze_on", "error-rate", "give a rate such as error-rate>5%"),
        ("freeze_on", "latency>5%", "give a rate such as error-rate>5%"),
        ("freeze_on", "error-rate>500%", "a share lies between 0% and 100%"),
        ("freeze_on", "error-rate>x", "give a rate such as error-rate>5%"),
        ("ca", "/nowhere.pem", "a PEM file that this user may read was expected"),
    ],
)
def test_mistake_is_named(tmp_path: Path, option: str, value: str, expected: str) -> None:
    more = {"upstream": "https://127.0.0.1:1"} if option == "ca" else {}
    code, output = run(tmp_path, **{**more, option: value})
    assert code == 2
    assert expected in output
    assert "pass@" not in output


def test_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, output = run(tmp_path, listen=f"127.0.0.1:{taken.getsockname()[1]}")
    assert code == 2
    assert "choose another address or a free port" in output


def test_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, output = run(tmp_path, out=str(tmp_path / "file" / "out"))
    assert code == 2
    assert "choose another folder with --out" in output

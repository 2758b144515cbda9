from pathlib import Path

import pytest

from loadchaos.core.errors import ProfileError
from loadchaos.load.payloads import requests_file
from loadchaos.profile.profile import Profile, Registry, from_mapping, load

PROFILE = """
name: own
traffic:
  - {name: mine, payload: {requests: {file: mine.jsonl}}}
  - {name: text, payload: {text: {tokens: 10}}}
load:
  - {users: 1, requests: 1}
"""
REQUEST = '{"prompt": "hello", "max_tokens": %d}\n'


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a folder `profiles` in it that has a profile."""
    monkeypatch.chdir(tmp_path)
    # In one process the current folder is one: it keeps files by the names they have there.
    requests_file.read_once.cache_clear()
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles/own.yaml").write_text(PROFILE)
    return tmp_path


def sent(profile: Profile) -> object:
    return profile.to_json()["traffic"][0]["payload"]["requests"]["file"]


def test_files_beside_the_profile_are_found_from_any_folder(home: Path, registry: Registry) -> None:
    (home / "profiles/mine.jsonl").write_text(REQUEST % 1)
    assert sent(load(Path("profiles/own.yaml"), registry)) == str(home / "profiles/mine.jsonl")
    (home / "mine.jsonl").write_text(REQUEST % 2)
    profile = load(Path("profiles/own.yaml"), registry)
    assert sent(profile) == str(home / "profiles/mine.jsonl"), "the one beside the profile is nearer"
    assert profile.traffic[0].payload_options["requests"].outputs(0) == [1]


def test_files_in_the_current_folder_are_found(home: Path, registry: Registry) -> None:
    (home / "mine.jsonl").write_text(REQUEST % 1)
    assert sent(load(Path("profiles/own.yaml"), registry)) == str(home / "mine.jsonl")


def test_files_of_the_target_are_found_beside_the_profile(home: Path, registry: Registry) -> None:
    (home / "profiles/mine.jsonl").write_text(REQUEST % 1)
    (home / "profiles/model").mkdir()
    (home / "profiles/ca.pem").touch()
    (home / "profiles/own.yaml").write_text(PROFILE + "target: {tokenizer: model, ca: ca.pem}\n")
    target = load(Path("profiles/own.yaml"), registry).target
    assert (target.tokenizer, target.ca) == (str(home / "profiles/model"), str(home / "profiles/ca.pem"))


def test_files_of_overrides_are_relative_to_the_current_folder(home: Path, registry: Registry) -> None:
    for name in ("mine.jsonl", "profiles/mine.jsonl", "other.jsonl", "profiles/other.jsonl"):
        (home / name).write_text(REQUEST % 1)
    override = "traffic.0.payload.requests.file=other.jsonl"
    assert sent(load(Path("profiles/own.yaml"), registry, [override])) == str(home / "other.jsonl")


def test_files_that_are_missing_are_named(home: Path, registry: Registry) -> None:
    with pytest.raises(ProfileError, match=r"own\.yaml:4:.*mine\.jsonl: No such file in the folder of the profile"):
        load(Path("profiles/own.yaml"), registry)


def test_files_of_traces_and_images_are_found_beside_the_profile(home: Path, registry: Registry) -> None:
    (home / "profiles/t.jsonl").write_text('{"timestamp": 0, "input_length": 9, "output_length": 1}\n')
    (home / "profiles/odd").mkdir()
    (home / "profiles/odd/x.png").write_bytes(b"no image")
    text = PROFILE.replace("requests: {file: mine.jsonl}", "hostile_images: {folder: odd}, text: {}")
    text = text.replace("{users: 1, requests: 1}", "{repeat: 2, phases: [{trace: t.jsonl}]}")
    (home / "profiles/own.yaml").write_text(text)
    found = load(Path("profiles/own.yaml"), registry).to_json()
    assert [phase["trace"] for phase in found["load"]] == [str(home / "profiles/t.jsonl")] * 2
    assert found["traffic"][0]["payload"]["hostile_images"]["folder"] == str(home / "profiles/odd")


@pytest.mark.parametrize(
    "text",
    ["traffic: 3\nload: 4\n", "traffic: [3]\nload: [{phases: 3}]\n", f"traffic: []\nload: [{{trace: {'x' * 5000}}}]\n"],
)
def test_files_of_an_invalid_profile_raise_no_other_error(text: str, home: Path, registry: Registry) -> None:
    (home / "profiles/own.yaml").write_text("name: x\n" + text)
    with pytest.raises(ProfileError, match="expected"):
        load(Path("profiles/own.yaml"), registry)


def test_files_of_a_loaded_profile_are_absolute(
    home: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "profiles/mine.jsonl").write_text(REQUEST % 1)
    profile = load(Path("profiles/own.yaml"), registry)
    (home / "run").mkdir()
    (home / "run/profile.yaml").write_text(profile.to_yaml())
    monkeypatch.chdir("/")
    assert load(home / "run/profile.yaml", registry) == profile
    assert from_mapping(profile.to_json(), registry) == profile

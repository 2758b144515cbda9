from dataclasses import replace
from pathlib import Path

import pytest

from loadchaos.campaigns.bisect.flag_session import FlagSession
from loadchaos.campaigns.bisect.installs import InstallPlan
from loadchaos.campaigns.bisect.version_session import VersionSession
from loadchaos.campaigns.campaign import Campaign
from loadchaos.campaigns.minimise.session import MinimiseSession
from loadchaos.campaigns.replay.expected import ExpectedFailure
from loadchaos.campaigns.replay.one_try import TryPlan
from loadchaos.campaigns.replay.resumed import settings_of
from loadchaos.campaigns.replay.servers import from_launch
from loadchaos.campaigns.replay.session import ReplayRequest, ReplaySession
from loadchaos.core.errors import OptionError
from loadchaos.run.options import Options
from tests.campaigns.traces import ONE_REQUEST

LAUNCH = "VLLM_USE_V1=1 KEY=secretsecret12 serve --port 7 --a"


def campaign(folder: Path) -> Campaign:
    return Campaign(folder, lambda _: None)


def plan(launch: str = LAUNCH, failure: str = "x", *, share: bool = False) -> TryPlan:
    return TryPlan(from_launch(launch), ExpectedFailure(failure), Options(), {}, share=share)


def flags(folder: Path, given: TryPlan) -> FlagSession:
    return FlagSession(campaign(folder), ONE_REQUEST, given, 60.0)


OTHERS = [
    (plan(failure="y"), r"another failure: x \(now y\)"),
    (plan(LAUNCH.replace("V1=1", "V1=0")), r"another environment: VLLM_USE_V1=1 \(now VLLM_USE_V1=0\)"),
    (plan(LAUNCH.replace("KEY=secretsecret12 ", "")), r"another environment: KEY=#\w+ \(now none\)"),
    (plan(share=True), r"another choice of servers: fresh for each try \(now shared by tries"),
]


@pytest.mark.parametrize(("other", "message"), OTHERS)
def test_bisection_is_not_resumed_with_other_settings(tmp_path: Path, other: TryPlan, message: str) -> None:
    flags(tmp_path, plan())._decider._save()
    flags(tmp_path, plan(LAUNCH.replace("--a", "--a --b")))  # other flags are other candidates
    with pytest.raises(OptionError, match=message):
        flags(tmp_path, other)
    assert "secretsecret12" not in (tmp_path / "bisect.json").read_text()


def test_bisection_of_releases_is_not_resumed_with_another_install_command(tmp_path: Path) -> None:
    def session(install: str) -> VersionSession:
        return VersionSession(campaign(tmp_path), ONE_REQUEST, plan(), 60.0, InstallPlan(install, "{venv}/bin/serve"))

    session("pip install --extra-index-url https://me:secretsecret12@host a=={version}")
    session("pip install --extra-index-url https://me:secretsecret12@host a=={version}")
    with pytest.raises(OptionError, match="another command of --install"):
        session("pip install --pre a=={version}")
    assert "secretsecret12" not in (tmp_path / "bisect.json").read_text()


@pytest.mark.parametrize(("other", "message"), OTHERS[:3])
def test_minimiser_is_not_resumed_with_other_settings(tmp_path: Path, other: TryPlan, message: str) -> None:
    MinimiseSession(campaign(tmp_path), ONE_REQUEST, plan(), 60.0)._decider._save()
    with pytest.raises(OptionError, match=message):
        MinimiseSession(campaign(tmp_path), ONE_REQUEST, other, 60.0)


def test_replay_is_not_resumed_on_another_server(tmp_path: Path) -> None:
    def session(given: TryPlan, against: str | None = None) -> ReplaySession:
        request = ReplayRequest(given, against=from_launch(against) if against else None)
        return ReplaySession(campaign(tmp_path), ONE_REQUEST, request, lambda _: None)

    session(plan())._save()
    session(plan(LAUNCH.replace("--port 7", "--port 8")))
    for other, message in (*OTHERS, (plan(LAUNCH + " --b"), r"another server: .*--a .now .*--a --b")):
        with pytest.raises(OptionError, match=message):
            session(other)
    with pytest.raises(OptionError, match=r"another server of --against: none .now serve --b"):
        session(plan(), "serve --b")
    assert "secretsecret12" not in (tmp_path / "replay.json").read_text()


def test_state_of_an_older_version_is_not_resumed(tmp_path: Path) -> None:
    (tmp_path / "bisect.json").write_text('{"schema": 1, "decisions": {}}')
    with pytest.raises(
        OptionError, match=r"schema 3 was expected in bisect.json: another version wrote it; start without --resume"
    ):
        flags(tmp_path, plan())


def test_settings_have_inherited_variables_of_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    before = settings_of(plan())
    monkeypatch.setenv("VLLM_ATTENTION_BACKEND", "TRITON")
    after = settings_of(replace(plan(), rounds=3))
    assert set(after["environment"]) - set(before["environment"]) == {"VLLM_ATTENTION_BACKEND=TRITON"}
    assert after == before | {"environment": after["environment"]}

import os
from typing import Any

import pytest

from loadchaos.chaos import authorization
from loadchaos.core.errors import AuthorizationError
from loadchaos.load.registry import full_registry
from loadchaos.load.wire.request import headers_with_values
from loadchaos.profile.profile import Profile, from_mapping
from loadchaos.run.options import Master, Options, header_variables, headers_of_options, planned_headers, target_spec

TARGET, ADMIN, REPLICA = "http://10.1.2.3:8000", "http://10.1.2.4:9000", "http://10.1.2.5:8000"


def harmful(target: dict[str, Any], **more: Any) -> Profile:
    return from_mapping(
        {
            "name": "p",
            "target": target,
            "attacks": [{"admin": "reset_mm_cache", "every": "2s"}],
            "traffic": [{"name": "text", "payload": {"text": {"tokens": 16}}}],
            "load": [{"users": 1, "requests": 1}],
            **more,
        },
        full_registry(),
    )


@pytest.mark.parametrize(
    ("target", "options", "asked"),
    [
        ({}, {"target": TARGET, "admin_url": ADMIN}, [TARGET, ADMIN]),
        ({"replicas": [{"name": "a", "url": REPLICA}]}, {"target": TARGET}, [TARGET, REPLICA]),
        ({"embedded": {"dialect": "vllm"}}, {"embedded": True, "admin_url": ADMIN}, [ADMIN]),
        ({"launch": {"command": ["vllm"]}}, {"admin_url": ADMIN}, [ADMIN]),
    ],
)
def test_authorize_is_needed_for_each_address(
    target: dict[str, Any], options: dict[str, Any], asked: list[str]
) -> None:
    words = [url.removeprefix("http://") for url in asked]
    for missing in words:
        given = [word for word in words if word != missing]
        with pytest.raises(AuthorizationError, match=f"--authorize {missing}"):
            target_spec(harmful(target), Options(**options, authorize=given))
    assert sorted(target_spec(harmful(target), Options(**options, authorize=words)).external_urls) == sorted(asked)


def test_load_of_other_machines_needs_authorize_for_a_local_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loopback of a worker is another one: what may be attacked from here may be a tunnel there."""
    monkeypatch.setattr(authorization, "_why_not_local", lambda url: None)
    options: dict[str, Any] = {"target": "http://127.0.0.1:9", "master": Master(1)}
    deadly = harmful({}, can_kill=True)
    with pytest.raises(AuthorizationError, match=r"Workers on other machines .* --authorize 127\.0\.0\.1:9"):
        target_spec(deadly, Options(**options))
    target_spec(deadly, Options(**options, authorize=["127.0.0.1:9"]))
    target_spec(harmful({}), Options(**options))  # attacks come from here


@pytest.mark.parametrize("name", ["Authorization", "authorization"])
def test_header_of_the_user_goes_before_the_key_in_discovery_and_load(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would send different accounts where the two have rules of their own."""
    monkeypatch.setenv("KEY", "of-the-option")
    monkeypatch.setenv("MINE", "Bearer mine")
    options = Options(api_key_env="KEY", headers={name: "env:MINE", "X-Empty": ""})
    found = headers_of_options(options)
    assert found == {name: "Bearer mine", "X-Empty": ""}
    env = {**os.environ, **header_variables(options)}
    assert headers_with_values(planned_headers(options), options.api_key_env, env) == found


def test_authorize_is_not_needed_for_the_embedded_server() -> None:
    assert target_spec(harmful({"embedded": {"dialect": "vllm"}}), Options(embedded=True)).external_urls == ()

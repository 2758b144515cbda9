from typing import Any

import pytest

from loadchaos.core.errors import AuthorizationError
from loadchaos.load.registry import full_registry
from loadchaos.profile.profile import Profile, from_mapping
from loadchaos.run.options import Options, target_spec

TARGET, ADMIN, REPLICA = "http://10.1.2.3:8000", "http://10.1.2.4:9000", "http://10.1.2.5:8000"


def harmful(target: dict[str, Any]) -> Profile:
    return from_mapping(
        {
            "name": "p",
            "target": target,
            "attacks": [{"admin": "reset_mm_cache", "every": "2s"}],
            "traffic": [{"name": "text", "payload": {"text": {"tokens": 16}}}],
            "load": [{"users": 1, "requests": 1}],
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


def test_authorize_is_not_needed_for_the_embedded_server() -> None:
    assert target_spec(harmful({"embedded": {"dialect": "vllm"}}), Options(embedded=True)).external_urls == ()

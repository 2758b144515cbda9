import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadchaos.campaigns.recorder.tap import ConnectionTap, secret_words
from loadchaos.core.redact import REDACTED, Redactor
from loadchaos.core.secret_patterns import is_secret_header
from tests.campaigns.recorder.conftest import SeenExchanges, post

VALUE = "Vizzini1987Cliffs"
SECRET = [
    "Authorization", "Proxy-Authorization", "Cookie", "Set-Cookie", "X-Api-Key", "api-key", "apikey", "X-Auth-Token",
    "X-Amz-Security-Token", "X-Goog-Api-Key", "X-Vault-Token", "X-Client-Secret", "X-Functions-Key", "x-auth",
    "Ocp-Apim-Subscription-Key", "PRIVATE-TOKEN", "JOB-TOKEN", "secretkey", "xaccesstoken", "session-token",
    "secretid", "aws-access-key-id", "db-pass",
]  # fmt: skip
OPEN = ["Host", "Content-Type", "User-Agent", "Accept", "X-Request-Id", "traceparent", "openai-organization"]
WORDS = "x api key auth token secret access client private job subscription session password id hf proxy set cookie jwt"


def hidden_in_a_recording(name: str) -> bool:
    seen = SeenExchanges()
    ConnectionTap(seen).feed_request(post(b"{}", f"{name}: {VALUE}".encode()))
    return VALUE in secret_words(seen.begun[0].secrets)


def hidden_by_the_redactor(name: str) -> bool:
    redactor = Redactor()
    texts = [f"{name}: {VALUE}", f'{{"{name}": "{VALUE}"}}', f"('{name}', '{VALUE}')"]
    return any(VALUE not in redactor.text(text) for text in texts) or redactor.mapping({name: VALUE})[name] == REDACTED


@pytest.mark.parametrize("name", SECRET)
def test_header_with_a_credential_is_hidden_everywhere(name: str) -> None:
    assert is_secret_header(name)
    assert hidden_by_the_redactor(name)
    assert hidden_in_a_recording(name)


@pytest.mark.parametrize("name", OPEN)
def test_header_without_a_credential_is_kept(name: str) -> None:
    assert not is_secret_header(name)
    assert not hidden_by_the_redactor(name)
    assert not hidden_in_a_recording(name)


@settings(max_examples=500)
@given(st.lists(st.sampled_from(WORDS.split()), min_size=1, max_size=4), st.sampled_from(["-", "", "_"]), st.booleans())
def test_header_that_the_redactor_hides_is_hidden_in_a_recording(parts: list[str], sign: str, upper: bool) -> None:
    name = sign.join(parts).upper() if upper else sign.join(parts)
    if hidden_by_the_redactor(name):
        assert hidden_in_a_recording(name), name

import base64
import html
import itertools
import json
import re
import time
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadchaos.core import secret_patterns
from loadchaos.core.redact import REDACTED, Redactor, launch_secrets

SECRET = "s3cr3t-Value/with+odd=chars"


@pytest.mark.parametrize(
    "line",
    [
        "Authorization: Bearer abcDEF123456",
        "authorization: Basic dXNlcjpwYXNzd29yZA==",
        "{'authorization': 'Bearer abcDEF123456'}",
        '{"Authorization": "Bearer abcDEF123456"}',
        '{"Authorization": "abcDEF123456"}',
        "asked with bearer abcDEF123456",
        "password: abcDEF123456",
        "auth_token=abcDEF123456",
        "OBJECT_STORE_KEY=abcDEF123456",
        "(b'authorization', b'Bearer abcDEF123456')",
        "x-api-key: abcDEF123456",
        "Cookie: session=abcDEF123456; other=1",
        "curl -H 'Authorization: abcDEF123456' http://127.0.0.1/",
        "args: {'api_key': ['abcDEF123456'], 'port': 8000}",
        "Namespace(api_key='abcDEF123456', port=8000)",
        "vllm serve m --api-key abcDEF123456 --port 8000",
        "vllm serve m --hf-token=abcDEF123456",
        "HF_TOKEN=abcDEF123456 vllm serve m",
        "fetching https://user:abcDEF123456@host.example/x.png",
        "fetching https://abcDEF123456@host.example/x.png",
        "GET https://b.s3.amazonaws.com/i.png?X-Amz-Expires=60&X-Amz-Signature=abcDEF123456&x=1",
        "GET https://a.blob.core.windows.net/c/i.png?sv=1&sig=abcDEF123456",
        "eyJabcDEF123456.eyJabcDEF123456.abcDEF123456",
        '{"aws_secret_access_key": "abcDEF123456"}',
        "aws_secret_access_key = 'abcDEF123456'",
        "AWS_SECRET_ACCESS_KEY=abcDEF123456",
        '{"token": "abcDEF123456"}',
        "X-Vault-Token: abcDEF123456",
        "X-Goog-Iap-Jwt-Assertion: abcDEF123456",
        "x-vault-passcode: abcDEF123456",
        "{'x-vault-token': 'abcDEF123456'}",
        "PRIVATE-TOKEN: abcDEF123456",
        "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=abcDEF123456==;EndpointSuffix=core",
        "Endpoint=sb://x;SharedAccessKey=abcDEF123456=",
        "https://hooks.slack.com/services/T0/B0/abcDEF123456",
        "DB_PASSPHRASE=abcDEF123456 serve",
        'gitlab_pat: "abcDEF123456"',
        "SENTRY_DSN=abcDEF123456",
        '{"jwt": "abcDEF123456"}',
        "credentials='abcDEF123456'",
        "Authorization: ApiKey abcDEF123456",
        "Authorization: Negotiate abcDEF123456==",
        'Authorization: Digest username="u", realm="r", nonce="n", response="abcDEF123456"',
        "Authorization: AWS4-HMAC-SHA256 Credential=AKIA/2026/us, SignedHeaders=host, Signature=abcDEF123456",
        "Authorization: Token token=abcDEF123456",
        "authorization: GoogleLogin auth=abcDEF123456",
        "{'authorization': 'ApiKey abcDEF123456'}",
        '{"Authorization": "AWS4-HMAC-SHA256 Credential=x, Signature=abcDEF123456"}',
        "map[Accept:[*/*] Authorization:[Bearer abcDEF123456]]",
        "map[X-Api-Key:[abcDEF123456]]",
        "Header{Authorization: [Bearer abcDEF123456]}",
        'authorization: Some("Bearer abcDEF123456")',
        "Authorization: \x1b[33mBearer\x1b[0m abcDEF123456",
        "\x1b[36mAuthorization\x1b[0m: \x1b[33mBearer abcDEF123456\x1b[0m",
        "authorization=\x1b[33mabcDEF123456\x1b[0m",
        "api_key\x1b[0m=\x1b[35mabcDEF123456\x1b[0m",
        "password\x1b[0m: \x1b[35mabcDEF123456",
        "postgres://user:p@abcDEF123456@host/db",
        "redis://:abcDEF123456@host:6379/0",
        '{"body": "{\\"api_key\\": \\"abcDEF123456\\"}"}',
        '{"body": "{\\"password\\":\\"abcDEF123456\\"}"}',
        '{"a": "{\\\\\\"api_key\\\\\\": \\\\\\"abcDEF123456\\\\\\"}"}',
        '{"msg": "{\\"Authorization\\": \\"Bearer abcDEF123456\\"}"}',
        '{"msg": "{\\"client_secret\\": \\"abcDEF123456\\"}"}',
        '{"msg": "{\\"token\\": \\"abcDEF123456\\"}"}',
        "api_key=SecretStr('abcDEF123456')",
        "password=Secret('abcDEF123456')",
        'hf_token: SecretStr("abcDEF123456")',
        "aws_secret_access_key = abcDEF123456",
        "client_secret = abcDEF123456",
        "secret_key : abcDEF123456",
        "DB_PASSPHRASE = abcDEF123456",
        "vllm serve m --hf_token abcDEF123456",
        "vllm serve m --api_key=abcDEF123456",
        "serve --hf_token=abcDEF123456 --x",
        "serve --passphrase abcDEF123456 --x",
        "argv: ['--api-key', 'abcDEF123456']",
        "argv: ['--hf-token', 'abcDEF123456', '--port']",
        '["--token", "abcDEF123456"]',
        "{'HUGGING_FACE_HUB_TOKEN': 'abcDEF123456'}",
        "{'HF_TOKEN': 'abcDEF123456', 'X': '1'}",
        '{"VLLM_API_KEY": "abcDEF123456"}',
        "environ({'OPENAI_KEY': 'abcDEF123456'})",
        '"HUGGINGFACE_TOKEN": "abcDEF123456"',
        "  token: abcDEF123456",
        "hub_token: abcDEF123456",
        "  secret: abcDEF123456",
        "password: !!str abcDEF123456",
        "<password>abcDEF123456</password>",
        "export OPENAI_API_KEY='abcDEF123456'",
        "Set-Cookie: sid=abcDEF123456; Path=/",
        "cookie: 'a=b; sid=abcDEF123456'",
        "api-key: abcDEF123456",
        "Ocp-Apim-Subscription-Key: abcDEF123456",
        "?access_token=abcDEF123456&x=1",
        "GET /v1/models?api_key=abcDEF123456 HTTP/1.1",
        "grpc metadata: [('authorization', 'Bearer abcDEF123456')]",
        "(b'x-api-key', b'abcDEF123456')",
        "-H 'X-Api-Key: abcDEF123456'",
        "curl -u user:abcDEF123456 http://x/",
        "curl --user user:abcDEF123456 http://x/",
        "sshpass -p abcDEF123456 ssh h",
        "docker login -p abcDEF123456 r.io",
        "machine h login u password abcDEF123456",
        "//r.io/:_authToken=abcDEF123456",
        "Server=db;User Id=u;Password=abcDEF123456;",
        "pwd=abcDEF123456;",
        "%41uthorization: Bearer abcDEF123456",
        "Authorization%3A%20Bearer%20abcDEF123456",
        "api_key%3DabcDEF123456",
        "api_key&#61;abcDEF123456",
        "&quot;api_key&quot;: &quot;abcDEF123456&quot;",
        "api_key => 'abcDEF123456'",
        '"api_key" => "abcDEF123456"',
        "api_key -> abcDEF123456",
        "x-amz-security-token: abcDEF123456",
        "X-Forwarded-Access-Token: abcDEF123456",
        "wandb login abcDEF123456abcDEF123456abcDEF123456",
        "huggingface-cli login --token abcDEF123456",
        "bearer=abcDEF123456",
        '"bearer": "abcDEF123456"',
        "BearerToken=abcDEF123456",
        "private_key: abcDEF123456",
        '"private_key": "abcDEF123456"',
        "refreshToken: 'abcDEF123456'",
        "id_token=abcDEF123456",
        "-----BEGIN RSA PRIVATE KEY-----\\nabcDEF123456\\nabcDEF123456==\\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_redactor_replaces_secret_of_a_known_form(line: str) -> None:
    shown = Redactor().text(line)
    assert "abcDEF123456" not in shown
    assert REDACTED in shown


@pytest.mark.parametrize(
    "line",
    [
        "AssertionError: Encoder cache miss for 7e5607661b30c0ffee",
        "ValueError: Attempted to assign 1 x 1963 = 1963 multimodal tokens to 1944 placeholders",
        "--max-num-batched-tokens 2048 --tokenizer /models/x --skip-tokenizer-init --num_speculative_tokens 1",
        "KeyError: 'hf_processor_failed'",
        "INFO Avg prompt throughput: 12.0 tokens/s, Running: 3 reqs",
        "api_key=None, token=None",
        "http://127.0.0.1:8000/v1/chat/completions?mode=abort&level=1",
        "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        "internal error happened, status code ResponseType.INPUT_LENGTH_ERROR",
        '{"logprobs": {"content": [{"token": " the", "logprob": -0.1}, {"token": "internationalization"}]}}',
        "eos_token='<|im_end|>' pad_token='<|endoftext|>' max_tokens=123456",
        "forward_pass: 12.5 ms, file_path='/x/y.py', x-request-id: abcdef, prefix-caching=True",
        "-----BEGIN CERTIFICATE-----",
        "the private key is not shown",
        "valid_token = await get_key_object(a1b2c3d4)",
        "time to first token: 1234.567ms, per token: 12.3456ms/token, forward_pass: 1234.567 ms, decode_pass = 1234567ns",
        "session_id=abc123def456 docker run -u 1000:1000 --user 1000:100000 image1",
        "<token>5</token><id>abc123def456</id>",
    ],
)
def test_redactor_keeps_ordinary_server_text(line: str) -> None:
    assert Redactor().text(line) == line


BODY, HEX = "aB3dE6gH9j" * 8, "0123456789abcdef" * 3
KEYS = {
    "GitHub": [*(f"gh{x}_{BODY[:36]}" for x in "pousr"), f"github_pat_{BODY[:40]}"],
    "GitLab": [f"gl{x}-{BODY[:20]}" for x in
               ("pat", "dt", "rt", "ptt", "soat", "ft", "imt", "cbt", "agent", "oas", "ffct")],
    "Slack": [*(f"xox{x}-{BODY[:12]}" for x in "abeprs"), f"xapp-{BODY[:12]}"],
    "NVIDIA": [f"nvapi-{BODY[:24]}"],
    "Stripe": [f"{x}{BODY[:24]}" for x in ("sk_live_", "sk_test_", "rk_live_", "rk_test_", "whsec_")],
    "SendGrid": [f"SG.{BODY[:22]}.{BODY[:43]}"],
    "npm": [f"npm_{BODY[:36]}"],
    "PyPI": [f"pypi-AgE{BODY[:40]}"],
    "Docker": [f"dckr_{x}_{BODY[:27]}" for x in ("pat", "oat")],
    "DigitalOcean": [f"do{x}_v1_{HEX[:32]}" for x in "opr"],
    "Databricks": [f"dapi{HEX[:32]}"],
    "Groq": [f"gsk_{BODY[:52]}"],
    "Replicate": [f"r8_{BODY[:37]}"],
    "Vault": [f"hv{x}.{BODY[:24]}" for x in "sbr"],
    "Google": [f"ya29.{BODY[:30]}", f"GOCSPX-{BODY[:28]}"],
    "Square": [f"sq0{x}-{BODY[:22]}" for x in ("csp", "atp")],
    "Shopify": [f"shp{x}_{HEX[:32]}" for x in ("at", "ca", "pa", "ss")],
    "Atlassian": [f"ATATT3{BODY[:40]}"],
    "Postman": [f"PMAK-{HEX[:24]}-{HEX[:34]}"],
    "Grafana": [f"glsa_{BODY[:32]}", f"glc_{BODY[:32]}"],
    "age": [f"AGE-SECRET-KEY-1{'Q3Z7' * 14}QZ"],
    "AWS": [f"{x}{'Q3Z7' * 4}" for x in ("AKIA", "ASIA", "ABIA", "ACCA")],
    "Google API": [f"AIza{BODY[:35]}"],
    "OpenAI": [f"sk-{BODY[:40]}"],
    "Hugging Face": [f"hf_{BODY[:34]}"],
}  # fmt: skip
"""Made-up keys of each issuer, whose begin shows what they are."""


@pytest.mark.parametrize("issuer", KEYS)
def test_redactor_hides_the_keys_of_each_issuer(issuer: str) -> None:
    for key in KEYS[issuer]:
        assert Redactor().text(f"the log shows {key} here") == f"the log shows {REDACTED} here"


def test_redactor_looks_for_the_begin_of_every_key() -> None:
    keys = [key.lower().encode() for of_issuer in KEYS.values() for key in of_issuer]
    assert set(secret_patterns._PREFIXED) <= set(KEYS)
    assert [begin for begin in secret_patterns._BEGINNINGS if not any(begin in key for key in keys)] == []


VALUE = 's3cr3t-Val&ue/with+odd=chars<x>"q" \u00e9'


def writings_of(value: str) -> dict[str, str]:
    """Ways in which programs write a value."""
    in_json = json.dumps(value)[1:-1]
    return {
        "itself": value,
        "Python": repr(value)[1:-1],
        "JSON": in_json,
        "JSON in JSON": json.dumps(in_json)[1:-1],
        "JSON of Go": in_json.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003E"),
        "JSON of PHP": in_json.replace("/", r"\/"),
        "URL": quote(value, safe=""),
        "URL with /": quote(value),
        "URL in small letters": re.sub("%..", lambda code: code[0].lower(), quote(value, safe="")),
        "URL in a URL": quote(quote(value, safe=""), safe=""),
        "form": quote_plus(value),
        "HTML": html.escape(value),
        "HTML of Go": html.escape(value).replace("&quot;", "&#34;").replace("+", "&#43;"),
        "HTML in HTML": html.escape(html.escape(value)),
        "JSON in HTML": html.escape(in_json),
        "hex": value.encode().hex(),
        "HEX": value.encode().hex().upper(),
        "base64": base64.b64encode(value.encode()).decode(),
        "base64 of a URL": base64.urlsafe_b64encode(value.encode()).decode(),
    }


WRITINGS = writings_of(VALUE)


@pytest.mark.parametrize("way", WRITINGS)
def test_redactor_hides_a_known_value_however_it_is_written(way: str) -> None:
    assert Redactor([VALUE]).text(f"echo {WRITINGS[way]} end") == f"echo {REDACTED} end"


UNQUOTED = VALUE.partition('"')[0]


@pytest.mark.parametrize(("way", "whole"), writings_of(UNQUOTED).items())
def test_redactor_hides_a_known_value_that_was_cut(way: str, whole: str) -> None:
    redactor = Redactor([UNQUOTED])
    for size in range(len(whole) * 2 // 3, len(whole)):
        assert redactor.text(f"'echo {whole[:size]}' end").replace("\\", "") == f"'echo {REDACTED}' end", way


def test_redactor_hides_no_begin_of_a_value_that_may_be_a_path() -> None:
    redactor = Redactor.of_launch(
        {}, {"CACHE": "/no/such/folder-of-a-cache", "THE_KEY": "/no/such/folder-of-a-key"}, []
    )
    assert redactor.text("/no/such/fold, /no/such/folder-of-a-cache") == f"{REDACTED}, {REDACTED}"
    redactor = Redactor.of_launch({}, {"CACHE": "/no/such/folder-of-a-cache"}, [])
    assert redactor.text("/no/such/fold, /no/such/folder-of-a-cache") == f"/no/such/fold, {REDACTED}"


@pytest.mark.parametrize("user", ["", "u", "us", "use"])
def test_redactor_hides_a_known_value_in_basic_authentication(user: str) -> None:
    shown = Redactor([VALUE]).text(f"echo {base64.b64encode(f'{user}:{VALUE}'.encode()).decode()} end")
    assert shown.endswith(f"{REDACTED} end")
    assert len(shown) < len(f"echo {REDACTED} end") + 8


def test_redactor_ignores_secrets_under_six_characters() -> None:
    assert Redactor(["ok"]).text("all ok") == "all ok"


def test_redactor_hides_the_longer_of_two_secrets_with_equal_begin() -> None:
    assert Redactor(["abcdefgh", "abcdefghijklm"]).text("abcdefghijklm") == REDACTED


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("OPENAI_API_KEY", True), ("HF_TOKEN", True), ("DB_PASSWORD", True), ("X-Api-Key", True), ("authToken", True),
        ("AWS_SECRET_ACCESS_KEY", True), ("AWS_ACCESS_KEY_ID", True), ("proxy-authorization", True),
        ("DB_PASS", True), ("MYSQL_PWD", True), ("GITLAB_PAT", True), ("SSH_PASSPHRASE", True), ("SENTRY_DSN", True),
        ("SERVICE_JWT", True), ("CLIENT_SECRET", True), ("GOOGLE_CREDENTIALS", True), ("PGPASSWORD", True), ("pass", True),
        ("PWD", False), ("OLDPWD", False), ("PASS_THROUGH", False), ("PATTERN", False), ("PATH", False), ("BYPASS", False),
        ("TOKENIZERS_PARALLELISM", False), ("MAX_NUM_BATCHED_TOKENS", False), ("KEYBOARD", False),
        ("FILE_SERVER_TOKEN", True), ("MODE_KEY_2", True), ("SSL_KEY_FILE", False), ("AUTH_MODE", False), ("", False),
    ],
)  # fmt: skip
def test_secret_name_recognises_secret_names(name: str, secret: bool) -> None:
    assert secret_patterns.secret_name(name) is secret


def test_redactor_learns_secrets_of_the_environment_by_name() -> None:
    redactor = Redactor.from_environment({"MY_API_KEY": "qwertyuiop", "LIMIT_KEY": "262144", "HOME": "/home/someone"})
    assert redactor.text("qwertyuiop in /home/someone of 262144") == f"{REDACTED} in /home/someone of 262144"


def test_redactor_argv_hides_and_learns_secret_options() -> None:
    redactor = Redactor()
    shown = redactor.argv(
        ["vllm", "serve", "m", "--api-key", "first-key", "second-key", "--port", "8000", "--token=third"]
    )
    assert shown == ["vllm", "serve", "m", "--api-key", REDACTED, REDACTED, "--port", "8000", f"--token={REDACTED}"]
    assert redactor.text("got second-key") == f"got {REDACTED}"


def test_redactor_argv_learns_secrets_of_assignments() -> None:
    redactor = Redactor()
    assert redactor.argv(["env", "DB_PASS=pa-55", "PORT=8000", "serve"]) == [
        "env", f"DB_PASS={REDACTED}", "PORT=8000", "serve",
    ]  # fmt: skip
    redactor.argv(["env", "DB_PASS=first-value", "serve"])
    assert redactor.text("connected as first-value") == f"connected as {REDACTED}"


def test_redactor_hides_every_line_of_a_secret() -> None:
    redactor = Redactor(["first-line-1\nsecond-line-2\r\nthird-line-3\n"])
    assert redactor.text("first-line-1 second-line-2 third-line-3") == " ".join([REDACTED] * 3)


def test_redactor_mapping_hides_and_learns_headers_without_their_scheme() -> None:
    redactor = Redactor()
    assert redactor.mapping({"Authorization": "Bearer top-secret-1", "Accept": "text/plain"}) == {
        "Authorization": REDACTED,
        "Accept": "text/plain",
    }
    assert redactor.text("echo top-secret-1") == f"echo {REDACTED}"


def test_redactor_data_hides_secrets_of_keys_and_texts() -> None:
    shown = Redactor(["planted-1"]).data(
        {"vllm_env": {"VLLM_API_KEY": "x", "n": 1}, "api_key": ["a", "b"], "list": ["planted-1", 2], "token": 5}
    )
    assert shown == {
        "vllm_env": {"VLLM_API_KEY": REDACTED, "n": 1},
        "api_key": REDACTED,
        "list": [REDACTED, 2],
        "token": 5,
    }


def test_redactor_hides_secret_split_over_two_reads() -> None:
    redactor = Redactor([SECRET])
    out = redactor.feed(f"a {SECRET[:7]}".encode()) + redactor.feed(f"{SECRET[7:]} b\n".encode()) + redactor.flush()
    assert out == f"a {REDACTED} b\n".encode()


def test_redactor_feed_gives_complete_lines_at_once_and_the_rest_at_flush() -> None:
    redactor = Redactor()
    assert redactor.feed(b"one\ntwo") == b"one\n"
    assert redactor.feed(b" and more\r") == b"two and more\r"
    assert redactor.feed(b"no end") == b""
    assert redactor.flush() == b"no end"


def test_redactor_cuts_endless_line_outside_secrets() -> None:
    redactor = Redactor([SECRET])
    text = (b"x" * 997 + b" " + SECRET.encode() + b" ") * 400
    out = b"".join(redactor.feed(text[i : i + 1000]) for i in range(0, len(text), 1000)) + redactor.flush()
    assert SECRET.encode() not in out
    assert out.count(REDACTED.encode()) == 400
    assert len(redactor._rest) == 0


def test_redactor_hides_secret_longer_than_its_buffer() -> None:
    redactor = Redactor()
    text = b"Bearer " + b"A" * 500_000 + b" after\n"
    out = b"".join(redactor.feed(text[i : i + 4096]) for i in range(0, len(text), 4096)) + redactor.flush()
    assert b"AAAA" not in out
    assert out.endswith(b" after\n")


def test_redactor_fork_shares_secrets() -> None:
    first = Redactor()
    second = first.fork()
    first.add("learned-later")
    assert first.feed(b"half ") == b""
    assert second.feed(b"learned-later\n") == f"{REDACTED}\n".encode()


PIECES = [*"ab:= /?&@'\"\r\n[]-_.", "Bearer ", "sk-", "hf_", "api_key", "http://", SECRET, "é"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=60).map("".join)


@given(text=TEXTS, cuts=st.lists(st.integers(0, 400), max_size=6))
def test_redactor_stream_cut_anywhere_equals_whole_text(text: str, cuts: list[int]) -> None:
    data = text.encode()
    redactor = Redactor([SECRET])
    edges = sorted({min(c, len(data)) for c in cuts} | {0, len(data)})
    out = b"".join(redactor.feed(data[a:b]) for a, b in itertools.pairwise(edges)) + redactor.flush()
    assert out == Redactor([SECRET]).redact(data)
    assert SECRET.encode() not in out


@example(text="api_key:=a")
@example(text="api_key=>a")
@given(text=TEXTS)
def test_redactor_is_idempotent(text: str) -> None:
    redactor = Redactor([SECRET])
    once = redactor.redact(text.encode())
    assert redactor.redact(once) == once


@given(data=st.binary(max_size=200))
def test_redactor_accepts_any_bytes(data: bytes) -> None:
    redactor = Redactor(["abcdef"])
    assert b"abcdef" not in redactor.feed(data) + redactor.flush()


def pem(kind: str = "RSA PRIVATE KEY", prefix: str = "") -> str:
    body = ["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"] * 5 + ["abcDEF123456=="]
    return "".join(f"{prefix}{line}\n" for line in [f"-----BEGIN {kind}-----", *body, f"-----END {kind}-----"])


@pytest.mark.parametrize("prefix", ["", "INFO 11-20 15:53:40 [x.py:1] ", "(EngineCore pid=12) "])
@pytest.mark.parametrize("kind", ["PRIVATE KEY", "RSA PRIVATE KEY", "OPENSSH PRIVATE KEY", "PGP PRIVATE KEY BLOCK"])
@pytest.mark.parametrize("size", [1, 30, 10_000])
def test_redactor_hides_a_private_key_of_several_lines(kind: str, prefix: str, size: int) -> None:
    text = f"before\n{pem(kind, prefix)}INFO Application startup complete.\n".encode()
    redactor = Redactor()
    out = b"".join(redactor.feed(text[i : i + size]) for i in range(0, len(text), size)) + redactor.flush()
    assert b"MIIE" not in out
    assert b"abcDEF" not in out
    assert out.startswith(b"before\n")
    assert out.endswith(b"INFO Application startup complete.\n")
    assert out == Redactor().redact(text)


def test_redactor_shows_text_after_a_private_key_without_an_end() -> None:
    text = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nINFO the server is up.\nand this as well\n"
    assert Redactor().text(text).endswith("INFO the server is up.\nand this as well\n")


def test_launch_secrets_are_all_values_but_plain_settings(tmp_path: Path) -> None:
    secrets = {"MY_THING": "correct-horse", "VLLM_API_KEY": "abc", "GIT_PAT": "abcdefgh", "VLLM_X": "f00-b4r-s3cret",
               "PHRASE": "correcthorse", "PIN": "12345678", "LOST": "/no/such/folder"}  # fmt: skip
    settings = {"VLLM_ATTENTION_BACKEND": "FLASHINFER", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "0,1,2,3",
                "HF_HOME": str(tmp_path), "PYTHONPATH": f"{tmp_path}:/usr", "OMP_PLACES": "0-3,5",
                "VLLM_WORKER_MULTIPROC_METHOD": "forkserver"}  # fmt: skip
    assert launch_secrets({**secrets, **settings}) == secrets


@pytest.mark.parametrize(
    "piece",
    [
        "--",
        "-----BEGIN PRIVATE KEY-----",
        "x-",
        "secret",
        "x",
        "a.b-",
        "token:",
        "sk_live_",
        "\\",
        "&amp;",
        "\x1b[0m",
        "token: a1",
        "password=(",
        "://a@",
        "authorization: a=1, ",
    ],
)
def test_redactor_takes_linear_time_for_a_long_line(piece: str) -> None:
    line = (piece * 65536)[:65536].encode() + b" --secret x-token private key"
    begin = time.process_time()
    Redactor().redact(line)
    assert time.process_time() - begin < 2.0


def test_text_of_a_row_is_redacted_again_when_a_secret_is_added() -> None:
    redactor = Redactor()
    fork = redactor.fork()
    row = {"text": "token of mine: hunter-2-hunter", "name": "server"}
    assert redactor.data(row) == row
    assert fork.data(row) == row
    fork.add("hunter-2-hunter")
    assert redactor.data(row) == {**row, "text": "token of mine: [redacted]"}
    redactor.add_prompts(["of mine"])
    assert "of mine" not in fork.data(row)["text"]
    assert redactor.data([f"text {n} of many" for n in range(3000)])[2999] == "text 2999 of many"

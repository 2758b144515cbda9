"""Secrets by name and by form: words of secret names, headers, settings, URLs, keys that show what they are. `FORMS` is
data for `Redactor`. The prefixes of keys follow the rules of detect-secrets and gitleaks.
"""

from __future__ import annotations

import base64
import functools
import re
from collections.abc import Sequence

_TOKEN_CHARS = rb"A-Za-z0-9._~+/=%-"
TOKEN_BYTES = b"".join(re.findall(rb"[" + _TOKEN_CHARS + rb"]", bytes(range(128))))

_PASSWORDS = ("password", "passwd")
_WORDS = ("secret", "passphrase")
_WHOLE_WORDS = ("pwd", "jwt", "dsn")
_LAST_WORDS = ("pass", "pat")
"""Last words of a secret's name: DB_PASS and GITLAB_PAT, but not PASS_THROUGH."""
_SECRET_WORDS = {
    *_PASSWORDS, *_WORDS, *_WHOLE_WORDS, "credential", "credentials", "key", "keys", "apikey", "token", "auth",
    "authorization", "cookie", "passcode",
}  # fmt: skip
"""Words of a secret's name. In a text `key` and `token` need another word beside them: `api_key`."""
# AUTH_MODE=internal or KEY_FILE=/etc/key.pem are about a secret and hold none; hiding "internal" would blind the log.
_ABOUT_WORD = {
    "file", "path", "dir", "type", "mode", "sock", "url", "name", "env", "enabled", "timeout", "limit", "length", "len",
    "size", "count", "max", "min", "algo", "algorithm", "provider", "method",
}  # fmt: skip
_JOINED = ("password", "passwd", "passphrase", "apikey", "secret", "token")  # PGPASSWORD
_FOLDERS = {"PWD", "OLDPWD"}
_WORD_ENDS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")

_SETTINGS = [
    first + sep + second
    for first, second in (
        (b"api", b"key"),
        (b"access", b"token"),
        (b"auth", b"token"),
        (b"client", b"secret"),
        (b"secret", b"key"),
        (b"hf", b"token"),
    )
    for sep in (b"_", b"-", b"")
] + [word.encode() for word in _PASSWORDS]
_NAME = rb"(?:" + rb"|".join(_SETTINGS) + rb")"
_OWNERS = (b"github", b"gitlab", b"slack", b"npm", b"bot", b"refresh", b"session", b"security", b"bearer", b"service",
           b"vault")  # fmt: skip
_KEYS = (b"secret", b"private", b"access", b"account", b"signing", b"encryption")
_WIDER = [
    *(word.encode() for word in (*_WORDS, *_WHOLE_WORDS, "credential", "id_token")),
    *(sep + word.encode() + end for sep in (b"_", b"-") for word in _LAST_WORDS for end in (b"=", b":", b"'", b'"')),
    *(owner + sep + b"token" for owner in _OWNERS for sep in (b"_", b"-", b"")),
    *(key + sep + b"key" for key in _KEYS for sep in (b"_", b"-", b"")),
]  # fmt: skip
"""Words of which one is in every name that `_WIDER_NAME` ends."""
_WIDER_NAME = (
    rb"(?:%b|credentials?|(?<![a-z])(?:%b|id_token)|(?:%b)[_-]?token|(?:%b)[_-]?(?:access[_-]?)?key|[_-](?:%b))"
    rb"(?:[_-]?(?:id|value|base64|b64|string|data))?"
) % (
    "|".join(_WORDS).encode(), "|".join(_WHOLE_WORDS).encode(), b"|".join(_OWNERS), b"|".join(_KEYS),
    "|".join(_LAST_WORDS).encode(),
)  # fmt: skip
"""End of a name that is a secret's: aws_secret_access_key, db_passphrase, GITLAB_PAT."""
_PARAMETER = (
    rb"X-(?:Amz|Goog|Oss)-(?:Signature|Credential|Security-Token)|AWSAccessKeyId|OSSAccessKeyId|Signature|sig|"
    rb"(?:access_|api_|auth_|id_)?token|api[_-]?key|key|code|password|secret"
)
_SPACE = rb"(?:[ \t]|%20|\x1b\[[0-9;]{0,12}m)"  # a log in colours has them between a name and its value
_MARK_OF_TEXT = rb"(?:\\{0,8}['\"]|&quot;|&#3[49];)"  # also of JSON in JSON, and in HTML
_ASSIGNS = _SPACE + rb"*(?>=>|->|:=|[:=]|%3[aAdD]|&#(?:58|61);)" + _SPACE + rb"*(?:!!?\w{1,20}[ \t]+)?"
_OPENS = rb"(?:[A-Za-z]\w{0,20}\()?(?:\((?!\[redacted)|\[(?!redacted\]))?b?" + _MARK_OF_TEXT
"""Opens a text, as it is or as programs print it: ['x'], b'x', SecretStr('x'), Some("x")."""
_BARE = rb"(?!\[redacted\])(?:\[(?!redacted\]))?"
_ASSIGNED = rb"\b%b?(?:%b|%b*,%b*)(?:%b|%b)" % (_MARK_OF_TEXT, _ASSIGNS, _SPACE, _SPACE, _OPENS, _BARE)
_QUOTED = rb"(?:[^'\"\\\r\n&]|\\(?!\\{0,8}['\"])|&(?!quot;|#3[49];))+"
"""The rest of a text that `_OPENS` began."""
_PROVES = rb"(?=[^\s]{0,80}[0-9])(?=[^\s]{0,80}[A-Za-z])(?![0-9.]+[a-zA-Z%/]{0,8}(?![\w.]))"
"""A bare value of letters and digits that is no number with a unit: 12.5ms."""
_NOTHING = rb"(?!None\b|null\b|True\b|False\b|true\b|false\b)"

_PREFIXED = {
    "GitHub": rb"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}",
    "GitLab": rb"gl(?:pat|dt|rt|ptt|soat|ft|imt|cbt|agent|oas|ffct)-[\w-]{16,}",
    "Slack": rb"xox[abeprs]-[\w-]{10,}|xapp-[\w-]{10,}",
    "NVIDIA": rb"nvapi-[\w-]{20,}",
    "Stripe": rb"[sr]k_(?:live|test)_[A-Za-z0-9]{8,}|whsec_[A-Za-z0-9]{16,}",
    "SendGrid": rb"SG\.[\w-]{16,}\.[\w-]{16,}",
    "npm": rb"npm_[A-Za-z0-9]{36}",
    "PyPI": rb"pypi-AgE[\w-]{16,}",
    "Docker": rb"dckr_(?:pat|oat)_[\w-]{16,}",
    "DigitalOcean": rb"do[opr]_v1_[a-f0-9]{32,}",
    "Databricks": rb"dapi[a-f0-9]{32}",
    "Groq": rb"gsk_[A-Za-z0-9]{20,}",
    "Replicate": rb"r8_[A-Za-z0-9]{30,}",
    "Vault": rb"hv[sbr]\.[\w-]{20,}",
    "Google": rb"ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}",
    "Square": rb"sq0(?:csp|atp)-[\w-]{20,}",
    "Shopify": rb"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}",
    "Atlassian": rb"ATATT3[\w=-]{20,}",
    "Postman": rb"PMAK-[a-f0-9]{24}-[a-f0-9]{34}",
    "Grafana": rb"gl(?:sa|c)_[A-Za-z0-9_+/=]{20,}",
    "age": rb"AGE-SECRET-KEY-1[0-9A-Z]{50,}",
}
"""Keys by issuer, each with a beginning of its own."""
_BEGINNINGS = [
    b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_", b"glpat-", b"gldt-", b"glrt-", b"glptt-", b"glsoat-",
    b"glft-", b"glimt-", b"glcbt-", b"glagent-", b"gloas-", b"glffct-", b"xox", b"xapp-", b"nvapi-", b"sk_live_",
    b"sk_test_", b"rk_live_", b"rk_test_", b"whsec_", b"sg.", b"npm_", b"pypi-age", b"dckr_", b"_v1_", b"dapi", b"gsk_",
    b"r8_", b"hvs.", b"hvb.", b"hvr.", b"ya29.", b"gocspx-", b"sq0", b"shpat_", b"shpca_", b"shppa_", b"shpss_",
    b"atatt3", b"pmak-", b"glsa_", b"glc_", b"age-secret-key-1",
]  # fmt: skip

_PARTS = rb"(?:[a-z0-9]{1,20}-){0,3}"
_SECRET_HEADER_NAMES = (b"private-token", b"job-token", b"subscription-key")
_VALUE = rb"[^\s'\",;]+?(?=[\])}]{0,4}(?:[\s'\",;\\]|&quot;|\Z))"
_SCHEME = (
    rb"(?:bearer|basic|token|digest|api-?key|negotiate|ntlm|kerberos|hawk|aws4-[\w-]{1,20}|googlelogin|sharedkey(?:lite)?"
    rb"|hmac[\w-]{0,20}|signature|dpop|vapid|jwt|key|oauth)"
)
_PARAMETERS = rb"(?:\"[^\"\r\n]*\")?(?:,[ \t]*[\w-]{1,40}=(?:\"[^\"\r\n]*\"|[^\s,'\"]+))*"
"""Parameters after the first one of Authorization: Digest and AWS4 have several."""
_SECRET_HEADERS: tuple[tuple[Sequence[bytes], bytes, bytes, bytes], ...] = (
    (
        [b"authorization"],
        rb"(?:proxy-)?authorization",
        _ASSIGNED + rb"(?:" + _SPACE + rb"*" + _SCHEME + _SPACE + rb"+(?!\[redacted\]))?",
        rb"(?:" + _VALUE + rb"|[^\s'\",;]+)" + _PARAMETERS,
    ),
    (
        [b"x-"],
        rb"x-" + _PARTS + rb"(?:api-?key|key|token|secret|auth|password|passcode|jwt|assertion)",
        _ASSIGNED,
        _VALUE,
    ),
    (_SECRET_HEADER_NAMES, _PARTS + rb"(?:" + rb"|".join(_SECRET_HEADER_NAMES) + rb")", _ASSIGNED, _VALUE),
    ([b"cookie"], rb"(?:set-)?cookie", rb"['\"]?[ \t]*:[ \t]*['\"]?", rb"[^\r\n'\"]+"),
)
"""Each secret header, such as Authorization, as HTTP, as JSON, as Python prints it: words of `FORMS`, name, what comes
before its value, value.
"""
_SECRET_HEADER = re.compile(
    rb"(?i)(?:%b|.*%b|.*%b)\Z" % (b"|".join(name for _, name, _, _ in _SECRET_HEADERS), _NAME, _WIDER_NAME)
)


def secret_name(name: str) -> bool:
    """Tell whether a name denotes a secret: OPENAI_API_KEY, x-api-key."""
    words = [word.lower() for word in _WORD_ENDS.split(name) if word]
    if not words or words[-1] in _ABOUT_WORD or name in _FOLDERS:
        return False
    return not _SECRET_WORDS.isdisjoint(words) or words[-1] in _LAST_WORDS or words[-1].endswith(_JOINED)


@functools.lru_cache(maxsize=1024)
def is_secret_header(name: str) -> bool:
    """Tell whether a header carries credentials, such as Authorization or x-api-key."""
    return _SECRET_HEADER.match(name.encode("utf-8", "surrogateescape")) is not None or secret_name(name)


FORMS: tuple[tuple[Sequence[bytes], re.Pattern[bytes]], ...] = (
    *(
        (words, re.compile(rb"(?i)((?:\b|(?<=[0-9\[]m))" + name + before + rb")" + value))
        for words, name, before, value in _SECRET_HEADERS
    ),
    (
        [b"bearer"],
        re.compile(
            rb"(?i)((?:\b|(?<=[0-9\[]m))bearer(?:%b+|%b?%b%b?))[%b]{6,}"
            % (_SPACE, _MARK_OF_TEXT, _ASSIGNS, _MARK_OF_TEXT, _TOKEN_CHARS)
        ),
    ),
    # Settings: api_key='...', "password": "...", api_key=['...'], --api-key ..., HF_TOKEN=...
    (_SETTINGS, re.compile(rb"(?i)(" + _NAME + _MARK_OF_TEXT + rb"?" + _ASSIGNS + _OPENS + rb")" + _QUOTED)),
    (
        _SETTINGS,
        re.compile(rb"(?i)(" + _NAME + _ASSIGNS + rb")" + _NOTHING + rb"(?!\w{1,20}\(['\"])[^\s'\"\[(,;&\\]+"),
    ),
    (_WIDER, re.compile(rb"(?i)(" + _WIDER_NAME + _MARK_OF_TEXT + rb"?" + _ASSIGNS + _OPENS + rb")" + _QUOTED)),
    (
        _WIDER,
        re.compile(
            rb"(?i)(%b(?:=(?=%b[^\s'\"\[(,;&]{6})|(?<![_-]pass)(?<![_-]pat)%b%b(?=[%b]{8})))[^\s'\"\[(,;&]+"
            % (_WIDER_NAME, _NOTHING, _ASSIGNS, _PROVES, _TOKEN_CHARS)
        ),
    ),
    ([b"token"], re.compile(rb"(?i)((?<![a-z])token" + _ASSIGNS + rb")" + _PROVES + rb"[" + _TOKEN_CHARS + rb"]{8,}")),
    # "token": "..." is also an entry of logprobs: a text of letters and digits is none.
    (
        [b"token"],
        re.compile(
            rb"(?i)(%b[ \t]*:[ \t]*b?%b)(?=[^'\"]{0,80}[0-9])[%b]{8,}"
            % (_MARK_OF_TEXT + rb"token" + _MARK_OF_TEXT, _MARK_OF_TEXT, _TOKEN_CHARS)
        ),
    ),
    (
        [b"--"],
        re.compile(
            rb"(?i)((?<![a-z-])--[a-z_-]{0,40}?(?:api[_-]?key|token|secret|password|passphrase|auth)"
            rb"(?:[ \t]+|=|['\"],[ \t]*)['\"]?)[^\s'\"]+"
        ),
    ),
    (
        [b"_key", b"_token", b"_secret", b"_password", b"_auth"],
        re.compile(
            rb"(\b[A-Z0-9_]*(?:_KEY|_TOKEN|_SECRET|_PASSWORD|_AUTH)(?:=['\"]?|%b%b%b))[^\s'\",;\\]{6,}"
            % (_MARK_OF_TEXT, _ASSIGNS, _MARK_OF_TEXT)
        ),
    ),
    # Settings in XML, and what commands take: netrc, curl -u user:password, docker login -p.
    ([b"</"], re.compile(rb"(?i)(<[\w:-]{0,40}(?:" + _NAME + rb"|" + _WIDER_NAME + rb"|token)>)[^<\s]{6,}(?=</)")),
    ([b" password "], re.compile(rb"(\blogin[ \t]\S{1,200}[ \t]password[ \t])\S+")),
    (
        [b" -u", b" --user"],
        re.compile(rb"((?<![\w-])(?:-u|--user)[ \t=]?['\"]?[\w.@-]{1,80}:)(?![0-9]+\b)[^\s'\"]{6,}"),
    ),
    (
        [b"sshpass", b" login"],
        re.compile(
            rb"(\b(?:sshpass[ \t]+-p|wandb[ \t]+login|docker[ \t]+login[^\r\n]{0,200}?[ \t]-p)[ \t]*)[^\s-]\S{5,}"
        ),
    ),
    # URLs: user:password@, and the parameters that sign one.
    ([b"@"], re.compile(rb"(\b[A-Za-z][A-Za-z0-9+.-]*://)[^/\s'\"?#]+(?=@)")),
    ([b"?", b"&"], re.compile(rb"(?i)([?&](?:" + _PARAMETER + rb")=)[^&\s'\"#<>]+")),
    ([b"hooks.slack.com", b"webhooks/"], re.compile(rb"((?:hooks\.slack\.com/\w+|/api/webhooks)/)[\w/-]{8,}")),
    # Keys that show what they are.
    ([b"sk-"], re.compile(rb"()\bsk-[A-Za-z0-9_-]{8,}")),
    ([b"hf_"], re.compile(rb"()\bhf_[A-Za-z0-9]{20,}")),
    (_BEGINNINGS, re.compile(rb"()\b(?:" + rb"|".join(_PREFIXED.values()) + rb")")),
    ([b"akia", b"asia", b"abia", b"acca"], re.compile(rb"()\b(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b")),
    ([b"aiza", b"eyj"], re.compile(rb"()\b(?:AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)")),
    (
        [b"private key"],
        re.compile(rb"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)(?:[^\r\n-]|-(?!-))+(?=-----END )"),
    ),
)
"""Each form: words of which one must be there (lower case), and a pattern of which group 1 is kept, the rest replaced.

Looking for the words is cheap, matching is not. No pattern reaches over the end of a line.
"""

LONGEST_WRITING = 24
"""A value is at most so many times as long where it is written in another way."""
_SHORTEST_BEGUN = 16
_CUT = rb"(?:[&;#<>%b]|\\(?!\\{0,8}['\"]))*" % _TOKEN_CHARS
"""Rest of a value that was cut, up to a mark of the text that it stands in."""
_ENTITIES = {"&": "amp", "<": "lt", ">": "gt", '"': "quot", "'": "apos"}


def writings(value: bytes, *, begins: bool = False) -> bytes:
    """A pattern of the ways in which programs write a known value: in JSON, also twice, of Python, Go (`\\u0026`) or PHP
    (`\\/`), in a URL or in HTML, also twice, in hex, and in base64, where others stand before it (`user:value`).
    `begins`: also of a text that begins with half of such a writing, of one that was cut.
    """
    text = value.decode("utf-8", "surrogateescape")
    found = [[_character(char) for char in text]]
    found += [[code.encode() for code in coded] for coded in (value.hex(), value.hex().upper())]
    for before in range(3):
        coded = base64.b64encode(b"\0" * before + value)
        whole = coded[-(-before * 8 // 6) : (before + len(value)) * 8 // 6]
        for form in {whole, whole.translate(bytes.maketrans(b"+/", b"-_"))}:
            found.append([*(re.escape(bytes([code])) for code in form), rb"[\w+/=-]{0,8}"])
    if not begins or len(text) < _SHORTEST_BEGUN:
        return b"|".join(map(b"".join, found))
    halves = ((parts[: len(parts) // 2], parts[len(parts) // 2 :]) for parts in found)
    return b"|".join(rb"%b(?:%b|%b)" % (b"".join(begin), b"".join(rest), _CUT) for begin, rest in halves)


def _character(char: str) -> bytes:
    if char.isascii() and (char.isalnum() or char in "-._~"):
        return re.escape(char.encode())
    raw = char.encode("utf-8", "surrogateescape")
    units = char.encode("utf-16-be", "surrogatepass")
    codes = [units[i : i + 2].hex().encode() for i in range(0, len(units), 2)]
    forms = [
        rb"\\{0,8}" + re.escape(raw),
        b"".join(rb"%(?:25){0,3}" + _any_case(f"{byte:02x}".encode()) for byte in raw),
        b"".join(rb"\\{1,8}u" + _any_case(code) for code in codes),
        rb"&(?:amp;){0,3}#(?:0{0,5}%d|[xX]0{0,5}%b);" % (ord(char), _any_case(b"%x" % ord(char))),
    ]
    if char in _ENTITIES:
        forms.append(rb"\\{0,8}&(?:amp;){0,3}" + _ENTITIES[char].encode() + rb";")
    return rb"(?:" + rb"|".join([*forms, rb"\+"] if char == " " else forms) + rb")"


def _any_case(code: bytes) -> bytes:
    return b"(?i:" + code + b")"


PEM_BEGIN = re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
PEM_END = b"-----END "
PEM_BODY = re.compile(
    rb"^\s*[A-Za-z0-9+/]{2,}={0,2}\s*$|(?:^|(?<=[\s'\"|:>]))(?:[A-Za-z0-9+/]{16,}={0,2}|[A-Za-z0-9+/]{2,}={1,2})(?=\s*$)"
)
PEM_HEAD = re.compile(rb"^\s*$|(?:Proc-Type|DEK-Info|Comment|Version):")
"""Lines of a private key: its first, its last, and those between, which hold base64 at their end."""

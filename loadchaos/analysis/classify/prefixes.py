"""Strip prefixes of transports and loggers from log lines.

Known are compose, Kubernetes, journald, colours, JSON and others.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import NamedTuple

from loadchaos.analysis.classify.python_stack import EXCEPTION_NAME, HEADER

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07")

# What a server's own line begins with; it has to follow a transport's mark that might be the server's own word.
_OWN = (
    r"(?=\([A-Za-z_][\w.]*,?(?: rank=\d+| pid=\d+)|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)[ :]|Traceback \(|\s{2}"
    rf"|\[\d{{4}}-\d\d-\d\d |\d{{4}}-\d\d-\d\d \d\d:|{EXCEPTION_NAME}\b)"
)
# What transports put before a line; stripped again and again, because they nest (compose over journald over ...).
_OUTER = re.compile(
    r"[\w.@-]+ +\| "  # docker compose: `vllm-1  | `; docker service: `llm_vllm.1.x@node | `
    r"|\[pod/[\w./-]+\] "  # kubectl logs --prefix
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?[ \t]"  # ISO: kubelet, CI, CloudWatch, journald
    r"(?:(?:stdout|stderr) [FP] |[\w.-]+ [\w.@/()-]+\[\d+\]: |\| )?"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)? (?:[\w.-]+ [\w.@/()-]+(?:\[\d+\])?: )?"  # journald, syslog, ts
    r"|<\d{1,3}>"  # a syslog priority
    r"|data: ?(?=\{)"  # an event of a stream
    r"|> "  # quoted in a mail or an issue
    rf"|[a-z0-9][a-z0-9.-]*-[a-z0-9]+ [a-z0-9][a-z0-9-]* {_OWN}"  # stern: pod and container
    rf"|\[?\d{{1,4}}\]?: {_OWN}"  # srun --label
    r"| +(?=\([A-Za-z_]\w*,? pid=|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d )"  # indented as a whole
)
_WRITER = re.compile(
    r"\((?P<process>[A-Za-z_][\w.:]*(?:,? +(?:rank|pid|ip)=[\w.:]+)*)\) ?"  # vLLM: `(EngineCore_DP0 pid=151) `; Ray too
    r"|\[(?P<rank>rank\d+)\]:(?: |(?=\[))"  # torch: `[rank0]: Traceback`, `[rank0]:[E1120 ...`
)
_STAMP = re.compile(
    r"(?P<vlevel>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<vdate>\d\d-\d\d) (?P<vtime>\d\d:\d\d:\d\d)(?:\.\d+)?"
    r" \[?(?P<vfile>[^\s\[\]:]++)[^\s\[\]]*+\] ?"  # vLLM: `ERROR 11-20 15:53:40 [core.py:1100] `; V0: `... engine.py:144] `
    r"|\d{4}-(?P<ldate>\d\d-\d\d) (?P<ltime>\d\d:\d\d:\d\d)[,.]\d+ - [\w.]+ - (?P<llevel>[A-Z]+) - "
    r"(?:(?P<lfile>\S+):\d+ - )?"
    r"|\[\d{4}-(?P<sdate>\d\d-\d\d) (?P<stime>\d\d:\d\d:\d\d)(?:[.,]\d+)?"  # SGLang, routers in Python
    r"(?: (?P<swriter>[A-Z]+\d+(?: [A-Z]+\d+)*))?\] "
    r"|(?P<ulevel>DEBUG|INFO|WARNING|ERROR|CRITICAL): {1,4}(?:(?<=INFO:    ) )?"  # uvicorn, in ten columns
    r"|(?P<gtime>\d{1,9}\.\d\d\.\d{3})\.\d{3} (?P<glevel>[DIWE]) "  # llama.cpp: minutes.seconds.ms.us since the start
    r"|\d{4}-(?P<rdate>\d\d-\d\d) (?P<rtime>\d\d:\d\d:\d\d)(?:\.\d+)? +"  # Rust's tracing
    r"(?P<rlevel>TRACE|DEBUG|INFO|WARN|ERROR) "
    r"|time=\S+ level=(?P<olevel>[A-Z]+) (?:source=(?P<ofile>[^\s:]+):\d+ )?"  # Ollama and other programs in Go
    r"|\d\d:\d\d:\d\d - LiteLLM[\w ]*:(?P<clevel>[A-Z]+): (?P<cfile>[^\s:]+):\d+ - "
    r"|\[(?P<tdate>\d\d/\d\d)/\d{4}-(?P<ttime>\d\d:\d\d:\d\d)\] \[TRT-LLM\] "
    r"(?:\[RANK (?P<trank>\d+)\] )?\[(?P<tlevel>[A-Z])\] (?:\[_torch\](?:\[RANK \d+\])? )?"
    r"|\d{4}/(?P<ndate>\d\d/\d\d) (?P<ntime>\d\d:\d\d:\d\d) \[(?P<nlevel>[a-z]+)\] \d+#\d+: (?:\*\d+ )?"  # nginx
    r"|nginx: \[(?P<blevel>[a-z]+)\] "  # the same, before it reads its configuration
    r"|\[\d{4}-(?P<edate>\d\d-\d\d) (?P<etime>\d\d:\d\d:\d\d)\.\d+\]"  # Envoy
    r"\[\d+\]\[(?P<elevel>[a-z]+)\]\[\w+\] \[[^\s\]]++\] "
    r"|\[(?P<hlevel>ALERT|WARNING|NOTICE)\] +(?:\d+/\d+ )?\(\d+\) : "  # HAProxy
    r"|\[(?P<alevel>ERR|WARN|INFO|SYS|FATAL)\] \d{4}/(?P<adate>\d\d/\d\d) - (?P<atime>\d\d:\d\d:\d\d) \| "  # new-api
    r"(?:\S+ \| )?"
    r"|(?P<ylevel>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d{4}-(?P<ydate>\d\d-\d\d) (?P<ytime>\d\d:\d\d:\d\d),\d+ "
    r"(?:[\w.:-]++ ){1,3}+(?:/ |-- )?(?:(?P<yfile>[\w.]++\.py):\d+ - )?"  # Ray Serve
    r"|(?P<zlevel>DEBUG|INFO|WARN|ERROR|FATAL|PANIC|debug|info|warn(?:ing)?|error|critical|fatal|panic)\t"  # zap
    r"|(?P<xlevel>TRACE|DEBUG|INFO|WARN|ERROR) (?=\w+(?:::|\{|: \w+::))"  # Rust's tracing, behind an ISO time
    r"|(?:\d{4}-(?P<kdate>\d\d-\d\d) (?P<ktime>\d\d:\d\d:\d\d)\.\d+ \| )?(?P<klevel>DEBUG|INFO|WARNING|ERROR|CRITICAL) +"
    r"(?:\| [\w.]++:\w+:\d+ - |\[[\w.]++\] )"  # loguru; Open WebUI
    r"|\[ *\d+\.\d{4,6}\] "  # dmesg
)
_LEVELS = {word: word for word in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")}
_LEVELS |= {"D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
_LEVELS |= {"TRACE": "DEBUG", "WARN": "WARNING", "FATAL": "CRITICAL", "NOTICE": "INFO", "SYS": "INFO", "ERR": "ERROR"}
_LEVELS |= {"50": "ERROR", "60": "CRITICAL"}  # pino, bunyan
_LEVELS |= {"PANIC": "CRITICAL", "CRIT": "CRITICAL", "ALERT": "CRITICAL", "EMERG": "CRITICAL"}
_LEVEL_GROUPS = [name for name in _STAMP.groupindex if name.endswith("level")]
_DATE_GROUPS = [name for name in _STAMP.groupindex if name.endswith("date")]
_TIME_GROUPS = [name for name in _STAMP.groupindex if name.endswith("time") and name != "gtime"]
_GROUP_BAR = re.compile(r"^ *[|+](?: |-\+-+ .*$|-+$)")  # the margin Python draws beside an ExceptionGroup
TIME_KEYS = (
    "timestamp", "@timestamp", "time", "ts", "timeUnixNano", "observedTimeUnixNano", "receiveTimestamp", "eventTime",
    "start_time", "date", "Time", "Timestamp", "@t",
)  # fmt: skip
"""Keys of the time of a JSON log record."""
PREFIX_CHARS = 160  # at the begin of a line: prefixes of several transports
ISO_STAMP = re.compile(r"\b(?P<year>\d{4})-(?P<day>\d\d-\d\d)[T ](?P<time>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d+))?")
ERROR_LEVELS = ("ERROR", "CRITICAL")
TEXT_KEYS = (
    "log", "message", "msg", "MESSAGE", "text", "event", "detail", "textPayload", "line", "@message", "stringValue",
)  # fmt: skip
"""Keys of the text of a JSON log record."""
_JSON_INSIDE = ("jsonPayload", "body", "Body", "fields")
_JSON_TRACES = ("exc_info", "exception", "stack", "stack_trace", "traceback")
_JSON_LEVELS = (
    "level",
    "levelname",
    "lvl",
)  # of programs: log stores call all of stderr an error, in keys of their own
_ENDING_LEVELS = ("FATAL", "PANIC")  # a logger of Go ends its program with this
_SAYS_ERROR = re.compile(r"[Ee]rror\b.{0,60}\brequest\b")  # of a gateway that warns of failed requests
_JSON_LIMIT = 1 << 20
_FLAT_BREAK = re.compile(r"\\r?\\n|(?<!\s)\s*+(?=\bFile \"[^\"]+\", line \d+)")
_FLAT_FRAME = re.compile(r'File "[^"]+", line \d+(?:, in (?:<\w+>|\w+))?')
_FLAT_EXCEPTION = re.compile(rf"\s(?={EXCEPTION_NAME}(?::\s|$))")


class LogLine(NamedTuple):
    """A log line without its prefixes: text, writer, level, clock, file. The text keeps its indentation; writer, level
    and file (the source file that logged it) are "" where unknown. `clock_s` counts seconds from the start of some year
    (for llama.cpp, of the server) by the log's own timestamp, None without one. It is only good for differences inside one
    log.
    """

    text: str
    writer: str = ""
    level: str = ""
    clock_s: float | None = None
    file: str = ""


_FIRST_DAY_S = 32 * 24 * 3600.0  # `clock` of 01-01 00:00:00


@lru_cache(maxsize=256)  # the lines of a second share their stamp
def clock(month_day: str, time: str) -> float:
    """Seconds of `11-20`, `15:53:40`. Months count 31 days, which keeps the order and nearly every difference."""
    month, day = month_day.split("-")
    hour, minute, second = time.split(":")
    return float(((int(month) * 31 + int(day)) * 24 + int(hour)) * 3600 + int(minute) * 60 + int(second))


def format_clock(clock_s: float) -> str:
    """The stamp that `clock` read: `11-20 15:53:40`; `12.3 s after the start` for llama.cpp, which has no date."""
    if clock_s < _FIRST_DAY_S:
        return f"{clock_s:.1f} s after the start"
    minutes, second = divmod(round(clock_s), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    month, day = divmod(days - 1, 31)  # days count from 1
    return f"{month:02d}-{day + 1:02d} {hour:02d}:{minute:02d}:{second:02d}"


def expand(raw: str) -> list[str]:
    raw = raw.rstrip("\r\n")
    if "\x1b" in raw:
        raw = _ANSI.sub("", raw)
    if HEADER in raw and (lines := _unflattened(raw)):
        return lines
    start = raw.find("{")
    if start < 0 or not raw.endswith("}") or len(raw) > _JSON_LIMIT or (start and not _is_prefix(raw[:start])):
        return [raw]
    try:
        record = json.loads(raw[start:])
    except (ValueError, RecursionError):  # no JSON: a line that happens to end so
        return [raw]
    texts = [_ANSI.sub("", text) if "\x1b" in text else text for text in record_texts(record)]
    return [line for text in texts for line in text.splitlines() if line] or [raw]


def _is_prefix(text: str) -> bool:
    """True for what transports put before a record, and nothing else."""
    at = 0
    while (found := _OUTER.match(text, at)) is not None:
        at = found.end()
    return not text[at:].strip()


def _unflattened(raw: str) -> list[str]:
    """Split a traceback that a logger wrote in one line; [] if it is none.

    Its line breaks are written as `\\n`, or are spaces.
    """
    end = raw.index(HEADER) + len(HEADER)
    if 'File "' not in raw[end:] or raw.lstrip().startswith("{") or len(raw) > _JSON_LIMIT:
        return []
    literal = "\\n" in raw[end:]
    lines = [raw[:end].rstrip() + ":"]
    for part in _FLAT_BREAK.split(raw[end:].lstrip(":")):
        if literal or not part.strip():
            lines += [part] if part.strip() else []
            continue
        frame = _FLAT_FRAME.match(part)
        code, *exception = _FLAT_EXCEPTION.split(part[frame.end() :] if frame else part, maxsplit=1)
        lines += [f"  {frame[0]}"] if frame else []
        lines += [f"    {code.strip()}"] if code.strip() else []
        lines += [text.strip() for text in exception]
    return lines


def record_texts(record: object) -> list[str]:
    """Messages in a JSON log record or HTTP error body. That of a record at an error's level begins with the level."""
    if not isinstance(record, dict):
        return []
    error = record.get("error") or record.get("err")
    if isinstance(error, dict):
        inner = record_texts(error)
        if not isinstance(record.get("msg"), str):
            return inner
        error = inner[0] if inner else ""  # pino
    found = [error] if error and isinstance(error, str) else []
    found += [record[k] for k in TEXT_KEYS if isinstance(record.get(k), str)]
    found += [record[k] for k in _JSON_TRACES if isinstance(record.get(k), str)]
    if not found:
        level = record.get("level")  # of Rust's tracing, beside its fields
        insides = [i for k in _JSON_INSIDE if isinstance(i := record.get(k), dict)]
        found = [text for i in insides for text in record_texts(i if level is None else {"level": level, **i})]
    own = "logger" in record or "msg" in record  # of a program in Go, and of no log store
    keys = (*_JSON_LEVELS, "severity") if own else _JSON_LEVELS
    level = next((str(record[k]).upper() for k in keys if record.get(k)), "")
    loud = _LEVELS.get(level, level) in ERROR_LEVELS
    loud |= bool(found) and level.startswith("WARN") and _SAYS_ERROR.match(found[0]) is not None
    if found and loud and not begins_record(found[0]):
        if isinstance(error, str) and len(found) > 1 and error not in found[1] and HEADER not in found[1]:
            what, *rest = found[1].splitlines() or [""]
            found[:2] = [f"{what}: {error}", *rest]  # zap, slog: what failed, and why
        found[0] = f"{'FATAL' if level in _ENDING_LEVELS else 'ERROR'}: {found[0]}"
    return found


def strip_prefixes(text: str) -> LogLine:
    writer = level = file = ""
    when: float | None = None
    at = 0
    for _ in range(6):  # nesting deeper than this is not a prefix any more
        found = _OUTER.match(text, at)
        if found is None:
            break
        at = found.end()
    for _ in range(3):
        found = _WRITER.match(text, at)
        if found is not None:
            named = found["process"] or found["rank"]
            # The API server passes no lines of others on: its own line broke off here.
            torn = writer.startswith("APIServer ") and " pid=" in named
            writer = named if torn or not writer else writer
            at = found.end()
            continue
        found = _STAMP.match(text, at)
        if found is None:
            break
        at = found.end()
        writer = writer or found["swriter"] or ""
        file = file or found["vfile"] or found["lfile"] or found["ofile"] or found["cfile"] or found["yfile"] or ""
        level = level or next((_LEVELS.get(found[name].upper(), "") for name in _LEVEL_GROUPS if found[name]), "")
        if found["trank"] is not None:
            writer = writer or f"RANK {found['trank']}"
        date = next((found[name].replace("/", "-") for name in _DATE_GROUPS if found[name]), "")
        time = next((found[name] for name in _TIME_GROUPS if found[name]), "")
        if found["gtime"] is not None and when is None:
            minutes, seconds, thousandths = map(int, found["gtime"].split("."))
            when = minutes * 60 + seconds + thousandths / 1000
        if date and when is None:
            when = clock(date, time)
    return LogLine(text[at:], writer, level, when, file)


def begins_record(raw: str) -> bool:
    """True for a raw line that begins a record, by its prefixes."""
    if "\x1b" in raw:
        raw = _ANSI.sub("", raw)
    return bool(_OUTER.match(raw) or _WRITER.match(raw) or _STAMP.match(raw) or raw.startswith(("Traceback (", "{")))


def without_margin(text: str) -> str:
    """Strip the margin of bars in an ExceptionGroup's traceback. Other lines stay as they are."""
    return _GROUP_BAR.sub("", text, count=1)

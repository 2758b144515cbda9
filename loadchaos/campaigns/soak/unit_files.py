"""Write a schedule for systemd, cron or Kubernetes. Each starts `loadchaos soak PROFILE --once`, which locks the
folder, notes the run and deletes old ones. A comment names options of the schedule that one of them does not have; an
option that would change start times is an error.
"""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from cronsim import CronSim
from cronsim.cronsim import Field
from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import LiteralScalarString

from loadchaos.core.errors import OptionError
from loadchaos.profile.cron import Schedule

_DAYS = ("Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat")
_YEARS = 5
_SECRET = "loadchaos-keys"  # noqa: S105 - a name
_USER = 10001
_END_S = 900
"""Time of a run beyond its load: start of a server, drain, verdict, report."""


@dataclass(frozen=True)
class Job:
    """Scheduled command with its schedule, folders and profile text."""

    name: str
    schedule: Schedule
    command: tuple[str, ...]
    folder: Path
    home: Path
    profile: str
    profile_file: str
    version: str
    variables: tuple[str, ...] = ()
    """Names of environment variables that hold keys."""

    @property
    def unit(self) -> str:
        return "loadchaos-" + (re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")[:40] or "soak")


def emit(job: Job, kind: str) -> str:
    """Return the text for `systemd`, `cron` or `k8s`. Raises OptionError where it cannot express the schedule."""
    return _KINDS[kind](job)


def _plain(schedule: Schedule, who: str, way_out: str) -> None:
    """Refuse syntax that only cronsim has. It has the last day, and the last or second Monday."""
    day, _, weekday = schedule.cron.upper().split()[2:]
    if re.search(r"[L#W]", day + weekday.replace("WED", "")):
        raise OptionError(f"{who} cannot express {schedule.cron!r} (L, W or #): {way_out}")


def _moved(schedule: Schedule, now: datetime) -> datetime | None:
    """Next start that a clock change skips; None within five years."""
    zone = ZoneInfo(schedule.timezone)
    for days in range(_YEARS * 366):
        begin = datetime.combine(now.astimezone(zone).date() + timedelta(days), time(), zone)
        end = datetime.combine(begin.date() + timedelta(1), time(), zone)
        if (end.utcoffset() or timedelta()) <= (begin.utcoffset() or timedelta()):
            continue
        for tick in schedule.ticks(begin.astimezone(UTC) - timedelta(minutes=1)):
            if tick >= end:
                break
            wall = tick.astimezone(zone).replace(tzinfo=None)
            if next(CronSim(schedule.cron, wall - timedelta(minutes=1)), None) != wall:
                return tick.astimezone(zone)
    return None


def _skips(schedule: Schedule, who: str) -> str:
    moved = _moved(schedule, datetime.now(UTC))
    if moved is None:
        return ""
    return (
        f"# On {moved:%Y-%m-%d} a clock change skips the time of a start: {who} skips the run, "
        f"`loadchaos soak` starts it at {moved:%H:%M}.\n"
    )


def _systemd(job: Job) -> str:
    s = job.schedule
    times = "\n".join(f"OnCalendar={t}" for t in on_calendar(s))
    jitter = f"RandomizedDelaySec={s.jitter:g}\nFixedRandomDelay=true\n" if s.jitter else ""
    most = f"TimeoutStartSec={s.max_duration + _END_S:g}" if s.max_duration else "TimeoutStartSec=infinity"
    queue = "# systemd has no overlap: queue: it skips a start during a run.\n" if s.overlap == "queue" else ""
    keys = "".join(f"# Write {v}=... into this file, readable only by you:\n" for v in job.variables)
    if keys:
        keys += f"EnvironmentFile=-%h/.config/{job.unit}.env\n"
    skips = _skips(s, "systemd")
    catch_up = "true" if s.catch_up == "once" else "false"
    return f"""\
# ~/.config/systemd/user/{job.unit}.service
[Unit]
Description=loadchaos run of {job.name}

[Service]
Type=oneshot
WorkingDirectory={_specifiers(str(job.folder))}
{keys}ExecStart={" ".join(_unit_word(w) for w in job.command)}
{most}
KillSignal=SIGTERM
KillMode=mixed
TimeoutStopSec=180

# ~/.config/systemd/user/{job.unit}.timer
[Unit]
Description=loadchaos run of {job.name}: {_specifiers(s.describe_times())}

[Timer]
{queue}{skips}{times}
{jitter}AccuracySec=1s
Persistent={catch_up}

[Install]
WantedBy=timers.target

# systemctl --user daemon-reload && systemctl --user enable --now {job.unit}.timer && loginctl enable-linger
"""


def _specifiers(text: str) -> str:
    return text.replace("%", "%%")


def _unit_word(word: str) -> str:
    """Quote a word of ExecStart where needed, with systemd's % and $ doubled."""
    safe = _specifiers(word).replace("$", "$$")
    if re.fullmatch(r"[A-Za-z0-9_@%+=:,./$-]+", safe):
        return safe
    return '"' + safe.replace("\\", "\\\\").replace('"', '\\"') + '"'


def on_calendar(schedule: Schedule) -> list[str]:
    """OnCalendar lines: two where cron means "this day of the month or that weekday"."""
    _plain(schedule, "systemd", "run `loadchaos soak` without --emit")
    minute, hour, day, month, weekday = schedule.cron.upper().split()
    clock = f"{_numbers(Field.HOUR, hour)}:{_numbers(Field.MINUTE, minute)}:00"
    zone = schedule.timezone
    months = _numbers(Field.MONTH, month)
    weekdays = _weekdays(weekday)
    days = "" if len(weekdays) == 7 else ",".join(_DAYS[d] for d in weekdays)
    by_day = f"*-{months}-{_numbers(Field.DAY, day)} {clock} {zone}"
    by_weekday = f"{days} *-{months}-* {clock} {zone}"
    if weekday.startswith("*") and days == "":
        return [by_day]
    if day == "*":
        return [by_weekday]
    # As Debian's cron: a field that begins with a star narrows the other, two without one add up.
    if day.startswith("*") or weekday.startswith("*"):
        return [f"{days} {by_day}".strip()]
    return [by_day, by_weekday]


def _values(kind: Field, field: str) -> set[int]:
    return {value for value in kind.parse(field.upper()) if isinstance(value, int)}  # `_plain` refuses the others


def _numbers(kind: Field, field: str) -> str:
    return "*" if field == "*" else ",".join(f"{value:02}" for value in sorted(_values(kind, field)))


def _weekdays(field: str) -> list[int]:
    """Days of the week, 0 for Sunday."""
    return sorted({day % 7 for day in _values(Field.DOW, field)})


def _cron(job: Job) -> str:
    s = job.schedule
    _plain(s, "cron", "run `loadchaos soak` without --emit")
    lock = shlex.quote(str(job.home / ".soak.cron"))
    # In addition to our own lock, so that a start during a run is skipped without an error, or waits.
    flock = f"flock {lock}" if s.overlap == "queue" else f"flock -n -E 0 {lock}"
    jitter = f"sleep $(shuf -i 0-{int(s.jitter)} -n 1) && " if s.jitter >= 1 else ""
    most = f"timeout -k 120 {int(s.max_duration) + _END_S} " if s.max_duration else ""
    there = f"mkdir -p {shlex.quote(str(job.home))} && cd {shlex.quote(str(job.folder))}"
    command = f"{there} && {jitter}{flock} {most}{shlex.join(job.command)}"
    lines = ["# crontab -e, then:"]
    if s.timezone != "UTC":
        lines.append("# cronie uses CRON_TZ; Debian's cron ignores it and uses the machine's time zone.")
    if s.catch_up == "once":
        lines.append("# cron has no catch_up: once: missed starts are lost; systemd and `loadchaos soak` do not.")
    lines += [f"# Write {v}=... above the line: cron does not use the variables of your shell." for v in job.variables]
    lines += [f"CRON_TZ={s.timezone}", f"{s.cron} {command.replace('%', chr(92) + '%')}"]
    return "\n".join(lines) + "\n"


def _k8s(job: Job) -> str:
    s = job.schedule
    _plain(s, "a CronJob", "run `loadchaos soak` in a Deployment")
    minute, hour, day, month, weekday = s.cron.split()
    # A CronJob has Sunday as 0 only; it repeats missed and skipped starts until their deadline.
    weekday = (
        re.sub(r"\b7\b", "0", weekday) if not re.search(r"-7\b", weekday) else ",".join(map(str, _weekdays(weekday)))
    )
    wait_s = 86_400 if s.overlap == "queue" or s.catch_up == "once" else 120
    labels = {"app.kubernetes.io/name": "loadchaos", "app.kubernetes.io/instance": job.unit}
    command: list[str] = list(job.command)
    sleep = ["sh", "-c", f'sleep $(shuf -i 0-{int(s.jitter)} -n 1); exec "$@"', "sh"] if s.jitter >= 1 else []
    env = [{"name": v, "valueFrom": {"secretKeyRef": {"name": _SECRET, "key": v}}} for v in job.variables]
    # As deploy/base: the image's user may write into the claim.
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 180,
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": _USER, "fsGroup": _USER,
                            "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{
            "name": "loadchaos",
            "image": f"loadchaos:{job.version}",
            "command": [*sleep, *command],
            "workingDir": "/work",
            **({"env": env} if env else {}),
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            "volumeMounts": [{"name": "runs", "mountPath": "/work"},
                             {"name": "profile", "mountPath": "/profile", "readOnly": True}],
        }],
        "volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": job.unit}},
                    {"name": "profile", "configMap": {"name": job.unit}}],
    }  # fmt: skip
    inner: dict[str, object] = {"backoffLimit": 0, "template": {"metadata": {"labels": labels}, "spec": pod}}
    if s.max_duration:
        inner["activeDeadlineSeconds"] = int(s.max_duration + s.jitter) + _END_S
    documents: list[dict[str, object]] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": job.unit, "labels": labels},
         "data": {job.profile_file: LiteralScalarString(job.profile)}},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": job.unit, "labels": labels},
         "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "20Gi"}}}},
        {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": job.unit, "labels": labels},
         "spec": {"schedule": f"{minute} {hour} {day} {month} {weekday}", "timeZone": s.timezone,
                  "concurrencyPolicy": "Forbid", "startingDeadlineSeconds": wait_s,
                  "successfulJobsHistoryLimit": 3, "failedJobsHistoryLimit": 3, "jobTemplate": {"spec": inner}}},
    ]  # fmt: skip
    both = ""
    if (s.overlap == "queue") != (s.catch_up == "once"):
        both = "# A CronJob has one deadline for skipped and for missed starts: it repeats both.\n"
    keys = ""
    if job.variables:
        literals = " ".join(f'--from-literal={v}="${v}"' for v in job.variables)
        keys = f"# Create the Secret with the keys: kubectl create secret generic {_SECRET} {literals}\n"
    skips = _skips(s, "a CronJob")
    return f"# Build and push the image yourself, and adapt its name.\n{keys}{both}{skips}" + _documents(documents)


def _documents(documents: Sequence[Mapping[str, object]]) -> str:
    yaml = YAML()
    yaml.representer.ignore_aliases = lambda *_: True  # write labels in each place: anchors are hard to read
    yaml.explicit_start = True
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    out = io.StringIO()
    for document in documents:
        yaml.dump(document, out)
    return out.getvalue()


_KINDS: Mapping[str, Callable[[Job], str]] = {"systemd": _systemd, "cron": _cron, "k8s": _k8s}

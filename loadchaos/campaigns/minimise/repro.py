"""Write repro/. The script, its README, a profile and the page of the reduction."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from loadchaos.analysis.advisories.advisory import reproducer_of
from loadchaos.analysis.classify import signature_file
from loadchaos.analysis.classify.versions import with_standing
from loadchaos.campaigns.minimise import rewrite, script
from loadchaos.campaigns.minimise.candidate import Reduction
from loadchaos.campaigns.minimise.minimiser import Minimised
from loadchaos.campaigns.minimise.validate import ScriptRuns, facts_of
from loadchaos.campaigns.replay import bodies
from loadchaos.campaigns.replay.estimate import probability
from loadchaos.campaigns.replay.one_try import TryPlan, try_profile
from loadchaos.core.cores import usable_cores
from loadchaos.profile import request_trace
from loadchaos.profile.request_trace import BODIES, FILE
from loadchaos.profile.source import yaml_text
from loadchaos.report.formatting import plural
from loadchaos.report.html import templates
from loadchaos.report.phrases import known_text

_LOAD_FORMAT = re.compile(r"load[-_]format['\"]?[\s:=]+['\"]?(\w+)")
_MODEL = re.compile(r"'model': '([^']+)'")
_SAID = re.compile(r"(\d+) (.*)")
_NOT_OPTIONS = ("model", "messages", "prompt", "stream_options")


@dataclass(frozen=True)
class Reproducer:
    """A candidate that is written down as a reproducer."""

    candidate: Reduction
    plan: TryPlan
    version: str
    dialect: str

    def facts(self) -> script.ScriptFacts:
        return facts_of(self.plan.server, self.plan.expected, self.dialect)


def write_script(found: Reproducer, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return script.write(found.candidate, found.facts(), folder)


def finish(found: Reproducer, folder: Path, runs: ScriptRuns, result: Minimised, whole: Reduction) -> None:
    """Write README.md, profile.yaml with its trace, and reduction.html."""
    (folder / "README.md").write_text(readme(found, runs, whole))
    _write_profile(found, folder)
    page = templates.render(
        "reduction.html.j2",
        failure=found.plan.expected.describe(),
        levels=result.levels,
        steps=[step for *_, steps in result.levels for step in steps],
        requests=whole.requests,
        flags=len(whole.flags),
    )
    (folder / "reduction.html").write_text(page, encoding="utf-8")


def readme(found: Reproducer, runs: ScriptRuns, whole: Reduction) -> str:
    expected, candidate = found.plan.expected, found.candidate
    p, facts = probability(runs.reproduced, runs.runs), found.facts()
    searched = f", {runs.searched} of them in the search" if runs.searched else ""
    effect = "An answer breaks its schema" if facts.check else "The server dies" if facts.deadly else "A request fails"
    needs = "httpx and jsonschema" if "jsonschema" in facts.check else "httpx"
    rounds = f", sent up to {candidate.rounds} times" if candidate.rounds > 1 else ""
    frame = f"The guilty frame is `{expected.frame}`.\n" if expected.frame else ""
    attacks = [str(a.attack) for a in candidate.trace.attacks if "admin" not in a.attack]
    more = f"The script cannot make these attacks: {', '.join(attacks)}. Use profile.yaml.\n" if attacks else ""
    smaller = [f"- Made smaller than in the run: {flag}\n" for flag in candidate.resized(whole)]
    return f"""# {expected.title or expected.describe()}

{effect} after {plural(candidate.requests, "request")}{rounds}. Failure: `{expected.id or "any death"}`.
{frame}{more}
- Server: {found.dialect} {found.version or "(version unknown)"}
{_environment(found)}
{"".join(smaller)}- Reproduces in {runs.reproduced} of {runs.runs} runs of repro.py on a fresh server{searched} ({p})

## Steps

1. Start the server:

       {found.plan.server.describe()}

2. Run the script (Python 3 with {needs}):

       python repro.py {facts.url}

## Requests

{_table(candidate)}
## Output of the script

{_indented(_folded(runs.output))}
## {"Wrong answer" if facts.check else "Log of the server"}

{_indented(runs.line or expected.line)}
The same as a profile of loadchaos: `loadchaos run profile.yaml`. What was left out, and when: reduction.html.
"""


def _environment(found: Reproducer) -> str:
    """Model, versions, machine and known issues. The server's own words count: its command may be a script."""
    known, server = signature_file.load(), found.candidate.trace.header.server
    told = f"{found.plan.server.describe()} {server.get('flags') or ''}"
    model, load_format = _MODEL.search(told), _LOAD_FORMAT.search(told)
    served = found.candidate.trace.header.model or "unknown"
    system = server.get("system")
    versions = ", ".join(f"{k} {v}" for k, v in system.items()) if isinstance(system, Mapping) else ""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    signature = known.get(found.plan.expected.id)
    issues = with_standing(known.issues(signature.known), found.dialect, found.version) if signature is not None else ()
    own = _own_reproducer(found)
    weights = load_format[1] if load_format else "not told by the server"
    rows = [
        f"Model: {f'{model[1]} (served as {served})' if model else served}, load format {weights}",
        f"Versions: {versions or 'not told by the server'}",
        f"Machine: {usable_cores()} cores, {memory_gib:.0f} GiB of memory, {platform.platform()}",
        *(f"Known issue: {known_text(issue)}" for issue in issues),
        *([f"The same failure: docs/repros/{own} of loadchaos"] if own else []),
        *([] if issues or own else ["No issue of this failure is known to loadchaos"]),
    ]
    return "\n".join(f"- {row}" for row in rows)


def _own_reproducer(found: Reproducer) -> str | None:
    """Folder of our reproducer of the same failure, on this kind of server and with such requests."""
    own = reproducer_of(found.dialect, found.plan.expected.id)
    if own is None:
        return None
    calls = any("tools" in spec["body"] for spec in script.specifications(found.candidate.trace))
    return None if "tool-call" in own and not calls else own


def _folded(output: str) -> str:
    """Output of a script with one line for all requests whose answers are equal."""
    numbers: dict[str, list[str]] = {}
    for line in output.strip().splitlines():
        said = _SAID.fullmatch(line)
        numbers.setdefault(said[2] if said else line, []).extend([said[1]] if said else [])
    return "\n".join(f"{_shortened(of)} {text}" if of else text for text, of in numbers.items())


def _shortened(numbers: Sequence[str]) -> str:
    return ", ".join(numbers[:3]) + (f" and {len(numbers) - 3} more" if len(numbers) > 3 else "")


def _table(candidate: Reduction) -> str:
    rows = []
    for i, spec in enumerate(script.specifications(candidate.trace)):
        whole = orjson.loads(candidate.trace.body_file(candidate.trace.sends[i]).read_bytes())
        prompt = f"{rewrite.words(whole)} words"
        urls = [url for _, _, part in rewrite.parts(whole) if (url := rewrite.image_url(part)) is not None]
        images = ", ".join("x".join(map(str, rewrite.image_size(url) or ("unknown",))) for url in urls) or "none"
        options = ", ".join(f"{k} = {json.dumps(v)}" for k, v in spec["body"].items() if k not in _NOT_OPTIONS)
        after = f"after {', '.join(map(str, spec['after']))}" if "after" in spec else f"at {spec.get('at', 0)} s"
        rows.append(f"| {i} | {after} | {prompt} | {images} | {options} |")
    return "| | sent | prompt | images | options |\n|---|---|---|---|---|\n" + "\n".join(rows) + "\n"


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.strip().splitlines()[:40]) or "    (none)\n"


def _write_profile(found: Reproducer, folder: Path) -> None:
    trace = bodies.with_aborts(found.candidate.trace)
    (folder / BODIES).mkdir(exist_ok=True)
    for send in trace.sends:
        shutil.copyfile(trace.body_file(send), folder / BODIES / f"{send.body}.json")
    header = trace.header.model_copy(update={"failure": found.plan.expected.to_json()})
    file = request_trace.write(replace(trace, header=header), folder)
    data = try_profile(trace, file, found.plan).to_json()
    for traffic in data["traffic"]:
        traffic["payload"] = {"recorded": {"trace": FILE}}
    for phase in data["load"]:
        phase["replay"] = FILE
    data["about"] = f"Reproduces {found.plan.expected.describe()}"
    assert found.plan.server.launch is not None
    data["target"]["launch"]["command"] = shlex.split(shlex.join(found.plan.server.launch.argv))
    (folder / "profile.yaml").write_text(yaml_text(data), encoding="utf-8")

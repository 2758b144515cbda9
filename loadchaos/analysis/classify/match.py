"""Match: one signature found in one line."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from loadchaos.analysis.classify.normalise import normalise
from loadchaos.analysis.classify.prefixes import LogLine
from loadchaos.analysis.classify.python_stack import Frame, Trace
from loadchaos.analysis.classify.signature_file import Signature, Signatures, Variant, evaluate
from loadchaos.analysis.verdict.model import Evidence, KnownIssue
from loadchaos.core.model import Severity

_LINES_A_SECOND = 50  # where a log has no clock at all
TITLE_CHARS = 240
EVIDENCE_CHARS = 2_000
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_ENGINE_PATH = re.compile(r"(?:^|[/.])(vllm|sglang|lmdeploy|tensorrt_llm|text_generation_server|mlx_lm)/")
_ENGINES = {
    "vllm": "vLLM", "sglang": "SGLang", "lmdeploy": "LMDeploy", "tensorrt_llm": "TensorRT-LLM",
    "text_generation_server": "TGI", "mlx_lm": "MLX", "llamacpp": "llama.cpp", "transformers": "Transformers",
}  # fmt: skip
_OPTION = re.compile(r"--[a-z][\w-]+|\b(?:VLLM|SGLANG)_\w+")
_OF_OTHERS = re.compile(r" \((?:SGLang|LMDeploy): [^()]*\)")
_PYTHON = "--chat-template --tool-call-parser --reasoning-parser --trust-remote-code --quantization --max-lora-rank"
_OPTIONS = {
    name: frozenset(options.split())
    for name, options in {
        "": "--gpus --device --shm-size --ipc --previous --port --host",  # of Docker, kubectl or any server
        "SGLang": f"{_PYTHON} --attention-backend --grammar-backend --max-loras-per-batch --disable-custom-all-reduce"
        " --tensor-parallel-size --tokenizer-mode --disable-cuda-graph --mem-fraction-static --max-running-requests"
        " --speculative-algorithm --disable-radix-cache --enable-hierarchical-cache --disaggregation-ib-device"
        " --enable-metrics --chunked-prefill-size --cuda-graph-max-bs",
        "LMDeploy": f"{_PYTHON} --eager-mode --cache-max-entry-count --max-batch-size --session-len --server-name --tp",
    }.items()
}
"""Options that remedies name and an engine has."""
_CLAUSE_END = re.compile(r"(?<=[.;]) ")


@dataclass(slots=True, eq=False)
class Match:
    """One signature found in one line; group() turns matches into failures.

    `chain` is the number of its traceback (0: none). `warned`: a logger only warned of it, so that a deadly one is reported
    only where something died of it. `loud`: an exception that a logger reported as an error. `starting`: the server had
    not served yet. `logged`: a logger reported it, so that its process lived on. `survived`: requests were answered after
    that. `loading`: its stack is of a server that starts, and none was seen to serve before. `unknown`: an exception that
    no signature knows; a place may name the part of the server. `harmless`: one that a server answers with a 4xx, or that
    ends a task on purpose.
    """

    signature: Signature
    id: str
    severity: Severity
    role: str
    title: str
    alt: tuple[str, ...]
    remedy: str
    known: tuple[KnownIssue, ...]
    evidence: Evidence
    process: str | None
    clock_s: float | None
    frames: tuple[str, ...]
    chain: int
    engine_side: bool
    at_ns: int | None = None
    transport_s: float | None = None
    why: str = ""
    facts: Mapping[str, float | str] = field(default_factory=dict)
    repeats: int = 0
    frame: str = ""
    template: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    warned: bool = False
    harmless: bool = False
    loud: bool = False
    starting: bool = False
    loading: bool = False
    logged: bool = False
    survived: bool = False
    unknown: bool = False
    reported: bool = False

    @property
    def when_s(self) -> float | None:
        """Time to show: by the log's own clock, else by that of the transport. The two may be hours apart."""
        return self.clock_s if self.clock_s is not None else self.transport_s

    @property
    def line(self) -> int:
        return self.evidence.line or 0


def match_of(
    signature: Signature,
    groups: Mapping[str, str],
    line: LogLine,
    shown: Evidence,
    trace: Trace | None,
    signatures: Signatures,
) -> Match:
    """Make a match with its title, remedy and known issues filled in. `groups` are those of the pattern, with the facts
    of the log where the signature uses them; the frames of `trace` choose the variant.
    """
    frames = trace.frames if trace is not None else []
    variant = _variant(signature, frames) if signature.variants else None
    facts: dict[str, float | str] = {k: _number(v) for k, v in groups.items()}
    for key, expression in signature.derive.items():
        try:
            facts[key] = evaluate(expression, {k: v for k, v in facts.items() if isinstance(v, (int, float))})
        except (KeyError, ValueError):  # the log has not enough facts for this figure
            continue
    values = {k: _shown(v) for k, v in facts.items()}
    values["exception"] = (trace.exception if trace is not None else "") or "exception"
    values["message"] = normalise(trace.message)[:TITLE_CHARS] if trace is not None else ""
    values["process"] = line.writer
    # The stack of an asynchronous fault names the wrong place.
    blamed = trace.blamed if trace is not None and not signature.asynchronous else None
    if blamed is not None:
        values["frame"] = blamed.where
    issues = (variant.known if variant else ()) or signature.known
    template = variant.title if variant else signature.title
    return Match(
        signature=signature,
        id=signature.id,
        severity=signature.severity,
        role=signature.role,
        title=_fill(template, values),
        alt=tuple(_fill(a, values) for a in signature.alt),
        remedy=_clauses(variant.remedy if variant and variant.remedy else signature.remedy, values),
        known=signatures.issues(issues),
        evidence=shown,
        process=line.writer or None,
        clock_s=line.clock_s,
        frames=tuple(str(f) for f in frames),
        chain=trace.chain if trace is not None else 0,
        engine_side=trace is not None and trace.engine_side,
        why=_clauses(variant.why if variant and variant.why else signature.why, values),
        facts=facts if signature.derive else {},
        frame=str(blamed) if blamed is not None else "",
        template=template,
        values=values,
    )


def engine_of(signature: Signature, trace: Trace | None) -> str:
    """Engine that a match proves, as remedies call it; "" for none. Texts of vllm.toml are those of other engines, too."""
    for frame in reversed(trace.frames) if trace is not None else ():
        if (found := _ENGINE_PATH.search(frame.path)) is not None:
            return _ENGINES[found[1]]
    return _ENGINES.get(signature.speaker, "") if signature.speaker != "vllm" else ""


def for_engine(remedy: str, engine: str) -> str:
    """Remedy without the sentences that name options of another engine. Of `--x (SGLang: --y)` SGLang gets `--y`."""
    if not engine or not remedy:
        return remedy
    remedy = re.sub(rf"--[\w-]+ \((?:[^()]*; )?{re.escape(engine)}: ([^;()]*)(?:;[^()]*)?\)", r"\1", remedy)
    remedy = _OF_OTHERS.sub("", remedy)
    if engine == "vLLM":
        return remedy
    own = _OPTIONS[""] | _OPTIONS.get(engine, frozenset())
    parts = _CLAUSE_END.split(remedy)
    kept = [part for part in parts if own.issuperset(_OPTION.findall(part)) and not part.startswith("vLLM: ")]
    return " ".join(kept).rstrip(";") or f"No remedy is known for {engine}."


def _variant(signature: Signature, frames: Sequence[Frame]) -> Variant | None:
    where = [f"{f.path}:{f.function} {f.code}" for f in frames]
    return next((v for v in signature.variants if all(any(part in w for w in where) for part in v.frames)), None)


def put_stack(match: Match, frames: Sequence[Frame], blamed: Frame | None) -> None:
    match.frames = tuple(str(f) for f in frames)
    if blamed is None or match.signature.asynchronous:
        return
    match.frame = str(blamed)
    match.title = _fill(match.template, {**match.values, "frame": blamed.where})


def _number(text: str) -> float | str:
    try:
        number = float(text)
    except ValueError:  # a word is a fact too
        return text
    return number if math.isfinite(number) else text


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}" if value != int(value) else str(int(value))


def _fill(template: str, values: Mapping[str, str]) -> str:
    """Fill in a template. ` in {frame}` and `: {message}` are dropped where there is none."""
    for optional in (" in {frame}", ": {message}"):
        if not values.get(optional.split("{")[1][:-1]):
            template = template.replace(optional, "")
    return _PLACEHOLDER.sub(lambda m: values.get(m[1], "?"), template)


def _clauses(template: str, values: Mapping[str, str]) -> str:
    parts = [p for p in _CLAUSE_END.split(template) if all(m in values for m in _PLACEHOLDER.findall(p))]
    return _PLACEHOLDER.sub(lambda m: values[m[1]], " ".join(parts).rstrip(";"))


def near(a: Match, b: Match, seconds: float) -> bool:
    """True when two matches are at most `seconds` apart. By arrival, else by the log's clock, else by that of the
    transport, else by lines."""
    if a.at_ns is not None and b.at_ns is not None:
        return abs(a.at_ns - b.at_ns) <= seconds * 1e9
    if a.clock_s is not None and b.clock_s is not None:
        return abs(a.clock_s - b.clock_s) <= seconds
    if a.transport_s is not None and b.transport_s is not None:
        return abs(a.transport_s - b.transport_s) <= seconds
    return bool(abs(a.line - b.line) <= max(seconds, 10.0) * _LINES_A_SECOND)

"""Parse Python tracebacks line by line and find the guilty frame."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadchaos.analysis.classify.match import Match

HEADER = "Traceback (most recent call last)"
EXCEPTION_NAME = (
    r"(?:[A-Za-z_]\w*\.)*"
    r"(?:[A-Z]\w*(?:Error|Interrupt|Timeout|Exit|Failure|Fault|Abort|Warning)|(?:[A-Z]\w*)?Exception(?:Group)?)"
)
"""Name of a Python exception with its module, as a traceback ends with it, for use in a regular expression."""
FRAME = re.compile(r'\s*File "(?P<path>[^"]+)", line (?P<line>\d{1,9})(?:, in (?P<function>.+?))?\s*$')
_EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: ?(?P<message>.*))?$")
_CHAIN = ("The above exception was the direct cause", "During handling of the above exception")
_CARETS = re.compile(r"\s*[\^~]+[\^~ ]*$")
_GROUP_MEMBER = re.compile(r" *\+[-+]+ (?:\d+|\.\.\.) -+$")  # the next exception of an ExceptionGroup
_GROUP_MARGIN = re.compile(r"^ *\| *")
_PROCESS_STARTS = ("multiprocessing/process.py", "multiprocessing/spawn.py", "multiprocessing/popen_fork.py")
_OF_START = re.compile(
    r"(?:.*::)?(?:__init__|_?init_\w+|_?initialize\w*|_?load_?[Mm]odel\w*|load_weights|_?build_model|create(?:Model|_engine\w*)"
    r"|deserialize\w*|lifespan|startup|\w*warm_?up\w*|_?capture\w*|from_(?:pretrained|engine_args)|profile_run)$"
)
_OF_SERVICE = re.compile(r"event_loop|_loop$|handle_|run_asgi|::execute|::enqueue|forward_step")
_SCRIPT = re.compile(r"/s?bin/[^/]+$|/__main__\.py$|<frozen runpy>|<string>$")
_EVENT_LOOPS = ("asyncio/runners.py", "uvloop/__init__.py")
_MOST_FRAMES = 200  # a recursion error has a thousand; the innermost ones say what matters


@dataclass(slots=True)
class Frame:
    """One stack frame, with path and source line as in the log."""

    path: str
    line: int
    function: str
    line_no: int
    code: str = ""

    @property
    def file(self) -> str:
        """`/opt/venv/lib/.../gpu_model_runner.py` -> `gpu_model_runner.py`."""
        return self.path.replace("\\", "/").rsplit("/", 1)[-1]

    @property
    def where(self) -> str:
        """`gpu_model_runner.py _gather_mm_embeddings`. The function alone for native code without a file."""
        return f"{self.file} {self.function}".strip()

    @property
    def text(self) -> str:
        return f'File "{self.path}", line {self.line}, in {self.function} {self.code}'

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}" if self.line else self.where


@dataclass(slots=True)
class Trace:
    """A traceback, open until its exception line.

    Chained tracebacks share `chain`. `logged`: a logger reported it, and the process went on. `warned`: it was only a
    warning. `may_be_uncaught`: the line before it may be of another record. `loud`: it was an error. `named`: a
    signature knows it or one that it follows from, and what is raised from that adds nothing. `introduced_by`: matches
    of the lines right before it. `blame` sets the guilty frame, and whether the engine is in the stack.
    """

    chain: int
    level: str = ""
    frames: list[Frame] = field(default_factory=list)
    exception: str = ""
    message: str = ""
    logged: bool = False
    warned: bool = False
    may_be_uncaught: bool = False
    named: bool = False
    loud: bool = False
    introduced_by: list[Match] = field(default_factory=list)
    blamed: Frame | None = None
    engine_side: bool = False

    @property
    def ends_its_process(self) -> bool:
        """True where nothing above the outermost frame could catch the exception: a script, or a process's main function."""
        outermost = self.frames[0] if self.frames else None
        return outermost is not None and (
            outermost.function == "<module>"
            or outermost.path.endswith(_PROCESS_STARTS)
            or "<frozen runpy>" in outermost.path
        )

    @property
    def ends_its_program(self) -> bool:
        """True where it left a program's own script or its event loop, and not only a module that something imports."""
        if any(frame.function == "run" and frame.path.endswith(_EVENT_LOOPS) for frame in self.frames[:3]):
            return not any(_OF_SERVICE.search(frame.function) for frame in self.frames)
        return bool(self.frames) and _SCRIPT.search(self.frames[0].path) is not None and self.ends_its_process

    def blame(self, skip: Sequence[re.Pattern[str]], engine: Sequence[re.Pattern[str]]) -> None:
        self.blamed = guilty_frame(self.frames, skip)
        self.engine_side = any(p.search(f.path) for p in engine for f in self.frames)

    def chained(self, level: str) -> Trace:
        """The traceback that follows this one in its chain."""
        return replace(self, level=level, frames=[], exception="", message="", introduced_by=[])

    def feed(self, text: str, line_no: int) -> bool:
        """Fold the next line of the same writer. True when it is part of this traceback and leaves it open."""
        found = FRAME.match(text)
        if found is not None:
            self.frames.append(Frame(found["path"], int(found["line"]), found["function"] or "<module>", line_no))
            if len(self.frames) > _MOST_FRAMES:
                del self.frames[0]
            return True
        if not text.strip() or text[0] in " \t":
            if self.frames and not self.frames[-1].code and text.strip() and not _CARETS.match(text):
                self.frames[-1].code = text.strip()
            return True
        exception = _EXCEPTION.match(text)
        if exception is not None and (exception["message"] is not None or exception["type"][0].isupper()):
            self.exception = exception["type"].rsplit(".", 1)[-1]
            self.message = exception["message"] or ""
        return False


def is_of_start(frames: Sequence[Frame]) -> bool:
    """True for a stack of a server that loads its model or opens its service, and of none that serves."""
    functions = [frame.function for frame in frames]
    return any(map(_OF_START.match, functions)) and not any(map(_OF_SERVICE.search, functions))


def begins_chained_traceback(text: str) -> bool:
    return _GROUP_MARGIN.sub("", text).startswith(_CHAIN) or _GROUP_MEMBER.match(text) is not None


def guilty_frame(frames: Sequence[Frame], skip: Sequence[re.Pattern[str]]) -> Frame | None:
    """The innermost frame that no skip pattern matches, else the innermost. Patterns are searched in `path:function`."""
    for frame in reversed(frames):
        where = f"{frame.path}:{frame.function}"
        if not any(p.search(where) for p in skip):
            return frame
    return frames[-1] if frames else None

"""Parse native and faulthandler stacks, and find the guilty frame.

They come after the line that names the fault, innermost frame first: torch's `frame #3:`, gdb's and the sanitizers'
`#3 0x...`, glibc's `lib.so(symbol+0x8f)[0x...]`, glog's `@ 0x...`, UCX's `14 0x... f()`, TensorRT-LLM's
`4 0x... f() + 204`, macOS's `4 lib.dylib  f() + 204`, Triton's `4# f() in /lib.so`, Python's faulthandler, and what
torch's own handler prints under `Segfault encountered`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadchaos.analysis.classify.python_stack import Frame

_HEX = r"0x[0-9a-fA-F]+"
_NATIVE = re.compile(
    rf"frame #\d+: (?P<torch>.+?)(?: \+ {_HEX})? \({_HEX} in (?P<torch_lib>[^)]+)\)\s*$"
    rf"|#\d+ +(?:{_HEX} (?:in )?)?(?P<gdb>.+?)(?: from (?P<gdb_lib>\S+)| at (?P<gdb_file>\S+?):(?P<gdb_line>\d{{1,9}})"
    rf"| (?P<asan_file>/\S+?):(?P<asan_line>\d{{1,9}})(?::\d+)?| \((?P<asan_lib>/[^)+]+)\+{_HEX}\).*)?\s*$"
    rf"|(?:\[ *\d+\] )?(?P<glibc_lib>/\S+?)\((?P<glibc>[^)]*?)(?:\+{_HEX})?\) ?\[{_HEX}\]\s*$"
    rf"|(?:PC: )?@ +{_HEX}(?: +(?:\d+|\(unknown\)))? +(?P<glog>\S.*?)\s*$"
    rf"|\d+ +{_HEX} (?P<ucx>.+?\)?) +(?P<ucx_lib>\S+):\d+\s*$"
    r"|\d+ +(?P<mac_lib>[A-Za-z_][\w.+-]*) {2,}(?P<mac>\S.*?) \+ \d+\s*$"
    r"|\d+# (?P<boost>\S.*?)(?: at \S+| in (?P<boost_lib>/\S+))\s*$"
    rf"|\d+ +{_HEX} (?P<trt>\S.*?)(?: \+ \d+|\(\+{_HEX}\) \[{_HEX}\])\s*$"
)
_GO_CALL = re.compile(
    r"(?:created by )?(?P<symbol>(?:[\w.-]+/)*[\w-]+\.(?:\(\*?\w+\)\.)?[\w.\[\]]+)(?:\(.*\)| in goroutine \d+)$"
)
_GO_PLACE = re.compile(r"(?P<path>/\S+\.(?:go|s)):(?P<line>\d{1,9})(?: \+0x[0-9a-f]+)?$")
_GO_HEAD = re.compile(
    r"goroutine \d+ .*\[[\w ,().-]+\]:$|\[signal SIG\w+: |PC=0x[0-9a-f]+ m=|signal arrived during cgo"
)
_GDB_FRAME = re.compile(rf"^#\d+ +{_HEX} |\) (?:at|from) \S+$")  # and not a list that happens to be numbered so
_PYTHON = re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d{1,9}),? in (?P<function>.+?)\s*$')
_THREAD = re.compile(r"(?P<current>Current thread|Stack|Thread) ?(?:0x[0-9a-fA-F]+)?.*\(most recent call first\):")
_OTHER_LOG = re.compile(
    r"\[\d{4}-\d\d-\d\d [\d:,]+ [A-Z] \d+ \d+\] \S+:\d+: "
)  # Ray says each line again through its own
_MPI = re.compile(r"\[[\w.-]+:\d+\] ")
_NAMELESS = frozenset({"", "??", "???", "(unknown)", "<unknown>", "??()", "???()", "?? ()"})
_ARGUMENTS = re.compile(r"\((?!anonymous namespace\))[^()]*\)")
_TEMPLATE = re.compile(r"<[^<>]*>")
_TAIL = re.compile(r"(?: const| noexcept| \[clone [^\]]*\])+$")
_MANGLED = re.compile(r"_Z(?:N[KVRO]*)?(?=\d)")
_MOST = 64


@dataclass(slots=True)
class NativeStack:
    """The stack printed after one fault, innermost frame first. Threads that did not crash are left out."""

    frames: list[Frame] = field(default_factory=list)
    python: list[Frame] = field(default_factory=list)
    _thread: bool = True
    _call: str = ""  # of Go: the place is in the next line
    _goroutines: int = 0

    def feed(self, text: str, line_no: int) -> bool:
        """Fold the next line; True when it is part of the stack."""
        text = _MPI.sub("", _OTHER_LOG.sub("", text, count=1), count=1).strip()
        thread = _THREAD.match(text)
        if thread is not None:
            self._thread = thread["current"] != "Thread"
            return True
        if self._fold_goroutine(text, line_no):
            return True
        found = _PYTHON.match(text)
        if found is not None:
            native = found["path"] == "<unknown>" or found["line"] == "0"
            frame = _frame(found["path"], found["line"], found["function"], line_no)
            if self._thread and frame is not None:
                self._keep(self.frames if native else self.python, frame)
            return True
        found = _NATIVE.match(text)
        if found is None or (found["gdb"] and not _GDB_FRAME.search(text)):
            return False
        symbol = found["torch"] or found["gdb"] or found["glibc"] or found["glog"] or found["ucx"] or found["trt"] or ""
        symbol = symbol or found["mac"] or found["boost"] or ""
        where = found["torch_lib"] or found["gdb_lib"] or found["gdb_file"] or found["asan_file"] or found["asan_lib"]
        where = where or found["glibc_lib"] or found["ucx_lib"] or found["mac_lib"] or found["boost_lib"] or ""
        frame = _frame(where, found["gdb_line"] or found["asan_line"] or "0", symbol, line_no)
        if frame is not None:
            self._keep(self.frames, frame)
        return True

    def _fold_goroutine(self, text: str, line_no: int) -> bool:
        """Fold a line of a goroutine; the first goroutine is the one that ended the program."""
        if _GO_HEAD.match(text):
            self._goroutines += text.startswith("goroutine")
            return True
        place = _GO_PLACE.match(text) if self._call else None
        call, self._call = self._call, ""
        if place is not None:
            if self._goroutines <= 1:
                self._keep(self.frames, Frame(place["path"], int(place["line"]), call, line_no))
            return True
        found = _GO_CALL.match(text) if self._goroutines else None
        if found is None:
            return bool(self._goroutines) and not text
        self._call = found["symbol"].rsplit("/", 1)[-1]
        return True

    def guilty_frame(self, skip: Sequence[re.Pattern[str]]) -> Frame | None:
        """The innermost frame that no skip pattern matches, native before Python. Patterns are searched in
        `path:function`.
        """
        for frame in (*self.frames, *self.python):
            if not any(p.search(f"{frame.path}:{frame.function}") for p in skip):
                return frame
        return None

    def outermost_first(self) -> list[Frame]:
        return [*reversed(self.python), *reversed(self.frames)]

    @staticmethod
    def _keep(frames: list[Frame], frame: Frame) -> None:
        if len(frames) < _MOST:
            frames.append(frame)


def _frame(path: str, line: str, symbol: str, line_no: int) -> Frame | None:
    name = symbol_name(symbol)
    if name in _NAMELESS or re.fullmatch(_HEX, name):
        return None
    return Frame("" if path in _NAMELESS or path.startswith("??") else path, int(line), name, line_no)


def symbol_name(symbol: str) -> str:
    """Function name of a symbol, mangled or not. `at::native::f<float>(at::Tensor const&) const` gives `at::native::f`."""
    mangled = _MANGLED.match(symbol)
    if mangled is not None:
        return _demangled(symbol[mangled.end() :]) or symbol
    for pattern in (_TEMPLATE, _ARGUMENTS):
        before = ""
        while before != symbol:
            before, symbol = symbol, pattern.sub("", symbol)
    name = _TAIL.sub("", symbol).strip()
    return name.rsplit(" ", 1)[-1] if "(anonymous namespace)" not in name else name  # without the type it returns


def _demangled(rest: str) -> str:
    names: list[str] = []
    while (length := re.match(r"\d+", rest)) is not None:
        end = length.end() + int(length[0][:6])
        names.append(rest[length.end() : end])
        rest = rest[end:]
    return "::".join("(anonymous namespace)" if n.startswith("_GLOBAL__N_") else n for n in names if n)

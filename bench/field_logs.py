"""Measure how well field failures are shown and named: python -m bench.field_logs

The cases of tests/analysis/classify/field_lines.toml are wrapped into realistic logs and classified. Printed for both
halves: the share of logs whose decisive line is shown, that is named, that is named by the part of the server only (a place), and
whose severity is right; and healthy logs that
stay silent; and the same by engine. Cases for which no rule was ever written are a row of their own. `--missed` lists the cases of the known half that
are not shown, not named or of another severity; `--round N` measures one round of collection alone.
"""

# ruff: noqa: E501, ISC004 - log lines are as long as they are

from __future__ import annotations

import hashlib
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadchaos.analysis.classify.diagnosis import Diagnosis
from loadchaos.analysis.classify.signature_file import load as load_signatures
from loadchaos.analysis.failure import Failure
from loadchaos.core.whole_lines import WholeLine

TESTS = Path(__file__).parents[1] / "tests"
CASES = TESTS / "analysis" / "classify" / "field_lines.toml"
BENIGN = TESTS / "crashes" / "benign"
_ORDER = ("engine_death", "startup", "hang", "node", "request", "degraded")
_UNNAMED = (
    "unexplained_warning",
    "unknown_exception",
    "unexplained_exception",
    "unexplained_error",
    "unexplained_end",
    "uncaught_exception",
)
PLACES = frozenset(place.id for place in load_signatures().places)
_FRAME = re.compile(r"(?P<path>\S+?):(?P<line>\d+) (?P<function>[\w<>]+): (?P<code>.*)")
_ROOT = "/usr/local/lib/python3.12/dist-packages/"


@dataclass(frozen=True)
class Case:
    """One field failure."""

    source: str
    engine: str
    kind: str
    form: str
    severity: str
    lines: tuple[str, ...]
    decisive: str
    frame: str = ""
    round: int = 1  # of collection


@dataclass(frozen=True)
class Score:
    """Result of one case."""

    case: Case
    shown: bool
    named: bool
    severity: bool
    placed: bool  # named by the part of the server only
    found: Sequence[Failure]


def load(path: Path = CASES) -> list[Case]:
    """Load the cases."""
    return [Case(**{**c, "lines": tuple(c["lines"])}) for c in tomllib.loads(path.read_text("utf-8"))["case"]]


HALVES = ("known", "held out", "unseen")
UNSEEN_ROUND = 4  # no rule was written for one of its cases
ENGINE_CASES = 10  # an engine with fewer has no row of its own


def half(case: Case) -> str:
    """Half of a case by a hash of its source; one round is unseen as a whole."""
    if case.round == UNSEEN_ROUND:
        return "unseen"
    return "known" if hashlib.sha256(case.source.encode()).digest()[0] % 2 == 0 else "held out"


# --- realistic logs


def _vllm(process: str, where: str, level: str = "ERROR", second: int = 31) -> str:
    return f"({process}) {level} 06-14 11:20:{second:02d} [{where}] "


def _access(status: int, port: int) -> str:
    reason = {200: "OK", 400: "Bad Request", 500: "Internal Server Error"}[status]
    return f'(APIServer pid=1) INFO:     10.0.0.7:{port} - "POST /v1/chat/completions HTTP/1.1" {status} {reason}'


_VLLM_START = [
    "(APIServer pid=1) INFO 06-14 11:18:01 [api_server.py:1351] vLLM API server version 0.24.0",
    "(APIServer pid=1) INFO 06-14 11:18:01 [utils.py:253] non-default args: {'model': 'org/model', 'tensor_parallel_size': 2}",
    "(APIServer pid=1) WARNING 06-14 11:18:02 [model.py:2010] Casting torch.float32 to torch.bfloat16.",
    "(EngineCore pid=151) INFO 06-14 11:18:20 [core.py:116] Initializing a V1 LLM engine (v0.24.0) with config: model='org/model'",
    "(EngineCore pid=151) INFO 06-14 11:18:31 [gpu_model_runner.py:4881] Starting to load model org/model...",
]
_VLLM_SERVES = [
    *_VLLM_START,
    "(EngineCore pid=151) INFO 06-14 11:19:31 [kv_cache_utils.py:1229] GPU KV cache size: 261,344 tokens",
    "(APIServer pid=1) INFO:     Started server process [1]",
    "(APIServer pid=1) INFO:     Waiting for application startup.",
    "(APIServer pid=1) INFO:     Application startup complete.",
    *(_access(200, 41000 + n) for n in range(6)),
    "(APIServer pid=1) INFO 06-14 11:20:11 [loggers.py:273] Engine 000: Avg prompt throughput: 816.1 tokens/s, Avg generation "
    "throughput: 120.4 tokens/s, Running: 3 reqs, Waiting: 0 reqs, GPU KV cache usage: 4.7%, Prefix cache hit rate: 49.2%",
    *(_access(200, 42000 + n) for n in range(4)),
]
_VLLM_GOES_ON = [
    *(_access(200, 43000 + n) for n in range(8)),
    "(APIServer pid=1) INFO 06-14 11:20:51 [loggers.py:273] Engine 000: Avg prompt throughput: 716.1 tokens/s, Avg generation "
    "throughput: 110.4 tokens/s, Running: 2 reqs, Waiting: 0 reqs, GPU KV cache usage: 3.9%, Prefix cache hit rate: 49.9%",
    *(_access(200, 44000 + n) for n in range(4)),
]
_SGLANG_START = [
    "[2026-06-14 11:18:01] server_args=ServerArgs(model_path='org/model', tp_size=2, watchdog_timeout=300, random_seed=12)",
    "[2026-06-14 11:18:21 TP0] Init torch distributed begin.",
    "[2026-06-14 11:18:31 TP0] Load weight begin. avail mem=78.51 GB",
]
_SGLANG_SERVES = [
    *_SGLANG_START,
    "[2026-06-14 11:19:12] INFO:     Started server process [4100]",
    "[2026-06-14 11:19:19] The server is fired up and ready to roll!",
    *(
        f'[2026-06-14 11:19:4{n}] INFO:     127.0.0.1:5034{n} - "POST /v1/chat/completions HTTP/1.1" 200 OK'
        for n in range(6)
    ),
    "[2026-06-14 11:20:10 TP0] Prefill batch, #new-seq: 3, #new-token: 4096, #cached-token: 12, token usage: 0.33, #queue-req: 0",
    "[2026-06-14 11:20:21 TP0] Decode batch, #running-req: 12, #token: 26001, token usage: 0.32, gen throughput (token/s): 1104.7",
]
_LMDEPLOY_SERVES = [
    "2026-06-14 11:18:01,350 - lmdeploy - INFO - async_engine.py:133 - input backend=pytorch, backend_config=PytorchEngineConfig()",
    "INFO:     Started server process [29606]",
    "INFO:     Application startup complete.",
    *(f'INFO:     127.0.0.1:5134{n} - "POST /v1/chat/completions HTTP/1.1" 200 OK' for n in range(6)),
]
_TRTLLM_START = [
    "[TensorRT-LLM] TensorRT LLM version: 1.0.0",
    "[06/14/2026-11:18:11] [TRT-LLM] [I] Using LLM with PyTorch backend",
    "[06/14/2026-11:18:20] [TRT-LLM] [RANK 0] [I] Use 5.71 GB for model weights.",
]
_TRTLLM_SERVES = [
    *_TRTLLM_START,
    "INFO:     Started server process [71]",
    "INFO:     Application startup complete.",
    *(f'INFO:     10.0.0.7:5166{n} - "POST /v1/chat/completions HTTP/1.1" 200 OK' for n in range(6)),
]
_SERVER_START = [
    "INFO: loading the model org/model",
    "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01]",
]


def _trace(case: Case, outer: Sequence[str] = ()) -> list[str]:
    """Traceback of a case, from its header to its message."""
    rows = ["Traceback (most recent call last):"]
    for frame in (*outer, case.frame):
        if (found := _FRAME.fullmatch(frame)) is not None:
            rows.append(f'  File "{_ROOT}{found["path"]}", line {found["line"]}, in {found["function"]}')
            rows.append(f"    {found['code']}")
    return [*rows, *case.lines]


def _with(prefix: str, rows: Sequence[str]) -> list[str]:
    return [prefix + row for row in rows]


_BUSY = ("vllm/v1/engine/core.py:1133 run_engine_core: engine_core.run_busy_loop()",)
_INIT = (
    "vllm/v1/engine/core.py:1082 run_engine_core: engine_core = EngineCoreProc(*args, engine_index=dp_rank, **kwargs)",
)
_API_DEAD = _with(
    _vllm("APIServer pid=1", "async_llm.py:704"),
    [
        "AsyncLLM output_handler failed.",
        "Traceback (most recent call last):",
        f'  File "{_ROOT}vllm/v1/engine/core_client.py", line 998, in get_output_async',
        "    raise self._format_exception(outputs) from None",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
    ],
)
_API_NOT_STARTED = _with(
    "(APIServer pid=1) ",
    [
        "Traceback (most recent call last):",
        f'  File "{_ROOT}vllm/v1/engine/utils.py", line 1187, in wait_for_engine_startup',
        "    raise RuntimeError(",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    ],
)
_SIGQUIT = ["[2026-06-14 11:20:33] SIGQUIT received. signum=None, frame=None. It usually means one child failed."]


def _vllm_engine(case: Case) -> tuple[list[str], list[str], list[str]]:
    engine = _vllm("EngineCore pid=151", "core.py:1142")
    return (
        [*_VLLM_SERVES, engine + "EngineCore encountered a fatal error."],
        _with(engine, _trace(case, _BUSY)),
        _API_DEAD,
    )


def _vllm_worker(case: Case) -> tuple[list[str], list[str], list[str]]:
    worker, engine = (
        _vllm("Worker_TP1 pid=322", "multiproc_executor.py:863"),
        _vllm("EngineCore pid=151", "core.py:1142"),
    )
    message = case.lines[-1].partition(": ")[2]
    echo = f"RuntimeError: Worker failed with error '{message}', please check the stack trace above for the root cause"
    after = [
        engine + "EngineCore encountered a fatal error.",
        *_with(engine, _trace(_case(case, echo), _BUSY)),
        *_API_DEAD,
    ]
    return [*_VLLM_SERVES, worker + "WorkerProc hit an exception."], _with(worker, _trace(case)), after


def _case(case: Case, line: str) -> Case:
    return Case(case.source, case.engine, case.kind, case.form, case.severity, (line,), case.decisive)


def _vllm_start(case: Case) -> tuple[list[str], list[str], list[str]]:
    engine = _vllm("EngineCore pid=151", "core.py:1108", second=2)
    process = ["(EngineCore pid=151) Process EngineCore:", *_with("(EngineCore pid=151) ", _trace(case, _INIT))]
    rows = [*_with(engine, _trace(case, _INIT)), *process] if case.frame else _with("(EngineCore pid=151) ", case.lines)
    return [*_VLLM_START, engine + "EngineCore failed to start."], rows, _API_NOT_STARTED


def _vllm_worker_start(case: Case) -> tuple[list[str], list[str], list[str]]:
    worker, engine = (
        _vllm("Worker_TP1 pid=322", "multiproc_executor.py:783"),
        _vllm("EngineCore pid=151", "core.py:1108"),
    )
    echo = "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause."
    after = [
        engine + "EngineCore failed to start.",
        *_with(engine, _trace(_case(case, echo), _INIT)),
        *_API_NOT_STARTED,
    ]
    rows = _with(worker, _trace(case)) if case.frame else list(case.lines)
    return [*_VLLM_START, worker + "WorkerProc failed to start."], rows, after


def _vllm_api_start(case: Case) -> tuple[list[str], list[str], list[str]]:
    outer = (
        "vllm/entrypoints/openai/api_server.py:471 run_server: await run_server_worker(listen_address, sock, args)",
    )
    return _VLLM_START[:2], _with("(APIServer pid=1) ", _trace(case, outer)), []


def _vllm_call(case: Case) -> tuple[list[str], list[str], list[str]]:
    engine = _vllm("EngineCore pid=151", "core.py:1341")
    rows = _with(engine, _trace(case))
    return [*_VLLM_SERVES, engine + "Invocation of add_lora method failed"], rows, [_access(400, 45000), *_VLLM_GOES_ON]


def _vllm_stream(case: Case) -> tuple[list[str], list[str], list[str]]:
    api = _vllm("APIServer pid=1", "serving.py:882")
    return [*_VLLM_SERVES, api + "Error in chat completion stream generator."], _with(api, _trace(case)), _VLLM_GOES_ON


def _vllm_logged(case: Case) -> tuple[list[str], list[str], list[str]]:
    return _VLLM_SERVES, _with(_vllm("Worker_TP0 pid=322", "nixl_connector.py:1263"), case.lines), _VLLM_GOES_ON


def _vllm_raw(case: Case) -> tuple[list[str], list[str], list[str]]:
    return _VLLM_SERVES, list(case.lines), _VLLM_GOES_ON


def _vllm_template(case: Case) -> tuple[list[str], list[str], list[str]]:
    api = _vllm("APIServer pid=1", "hf.py:484")
    intro = api + "An error occurred in `transformers` while applying chat template"
    return [*_VLLM_SERVES, intro], _with(api, _trace(case)), [_access(400, 45001), *_VLLM_GOES_ON]


def _vllm_api_dead(case: Case) -> tuple[list[str], list[str], list[str]]:
    api = _vllm("APIServer pid=1", "async_llm.py:704")
    outer = ("vllm/v1/engine/async_llm.py:697 output_handler: logger_ref[0].record(",)
    after = ["(APIServer pid=1) INFO:     Shutting down", _access(500, 45002)]
    return [*_VLLM_SERVES, api + "AsyncLLM output_handler failed."], _with(api, _trace(case, outer)), after


def _vllm_v0(case: Case) -> tuple[list[str], list[str], list[str]]:
    engine = "ERROR 06-14 11:20:31 [engine.py:244] "
    end = ["CRITICAL 06-14 11:20:32 [launcher.py:116] MQLLMEngine is already dead, terminating server process"]
    return _VLLM_SERVES, [engine + repr(case.lines[-1]), *_with(engine, _trace(case))], end


def _vllm_v0_start(case: Case) -> tuple[list[str], list[str], list[str]]:
    engine = "ERROR 06-14 11:18:41 [engine.py:448] "
    end = ["RuntimeError: Engine process failed to start. See stack trace for the root cause."]
    return _VLLM_START, [engine + case.lines[-1].partition(": ")[2], *_with(engine, _trace(case))], end


def _sglang(case: Case) -> tuple[list[str], list[str], list[str]]:
    return _SGLANG_SERVES, _hit("[2026-06-14 11:20:31 TP1] ", case), _SIGQUIT


def _hit(stamp: str, case: Case) -> list[str]:
    outer = ("sglang/srt/managers/scheduler.py:4001 run_scheduler_process: scheduler.run_event_loop()",)
    rows = _trace(case, outer)
    return [f"{stamp}Scheduler hit an exception: {rows[0]}", *rows[1:], ""]


def _sglang_start(case: Case) -> tuple[list[str], list[str], list[str]]:
    return _SGLANG_START, _hit("[2026-06-14 11:20:31 TP1] ", case), _SIGQUIT


def _sglang_request(case: Case) -> tuple[list[str], list[str], list[str]]:
    rows = [line if line.startswith("[") else f"[2026-06-14 11:20:31 TP0] {line}" for line in case.lines]
    answers = [
        '[2026-06-14 11:20:31] INFO:     127.0.0.1:50399 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error'
    ]
    return _SGLANG_SERVES, rows, [*answers, *_SGLANG_SERVES[5:]]


def _asgi(case: Case) -> tuple[list[str], list[str], list[str]]:
    answer = 'INFO:     127.0.0.1:51399 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error'
    outer = ("fastapi/routing.py:212 run_endpoint_function: return await dependant.call(**values)",)
    return (
        [*_LMDEPLOY_SERVES, answer, "ERROR:    Exception in ASGI application"],
        _trace(case, outer),
        _LMDEPLOY_SERVES[3:],
    )


def _sglang_detokenizer(case: Case) -> tuple[list[str], list[str], list[str]]:
    outer = ("sglang/srt/managers/detokenizer_manager.py:440 run_detokenizer_process: manager.event_loop()",)
    rows = _trace(case, outer)
    return (
        _SGLANG_SERVES,
        [f"[2026-06-14 11:20:31] DetokenizerManager hit an exception: {rows[0]}", *rows[1:]],
        _SIGQUIT,
    )


def _lmdeploy_engine(case: Case) -> tuple[list[str], list[str], list[str]]:
    intro = "2026-06-14 11:20:31,298 - lmdeploy - ERROR - model_agent.py:498 - Task <ModelAgentLoop> failed"
    after = [
        f'2026-06-14 11:20:31,3{n}2 - lmdeploy - ERROR - async_engine.py:789 - session {n} finished, reason "error"'
        for n in range(3)
    ]
    return [*_LMDEPLOY_SERVES, intro], _trace(case), after


def _lmdeploy_session(case: Case) -> tuple[list[str], list[str], list[str]]:
    return _LMDEPLOY_SERVES, list(case.lines), _LMDEPLOY_SERVES[3:]


def _kernel(case: Case) -> tuple[list[str], list[str], list[str]]:
    before = [
        "[    1.204411] pci 0000:b3:00.0: [10de:26b5] type 00 class 0x030200",
        "[ 1840.100200] docker0: port 1 up",
    ]
    return before, list(case.lines), ["[ 1850.100200] docker0: port 1 down"]


def _vllm_preprocess(case: Case) -> tuple[list[str], list[str], list[str]]:
    engine = _vllm("EngineCore pid=151", "core.py:1616")
    outer = ("vllm/v1/engine/core.py:1528 process_input_sockets: request = self.preprocess_add_request(req)",)
    intro = engine + "Unexpected error pre-processing request chatcmpl-94dc8c1c7237533e-8c79b414"
    return [*_VLLM_SERVES, intro], _with(engine, _trace(case, outer)), [_access(500, 45000), *_VLLM_GOES_ON]


def _vllm_thread(case: Case) -> tuple[list[str], list[str], list[str]]:
    outer = ("vllm/v1/engine/core.py:1053 process_input_sockets: request = self.preprocess_add_request(request)",)
    intro = "(EngineCore pid=151) Exception in thread Thread-5 (process_input_sockets):"
    return [*_VLLM_SERVES, intro], _with("(EngineCore pid=151) ", _trace(case, outer)), []


def _vllm_tool_parser(case: Case) -> tuple[list[str], list[str], list[str]]:
    api = _vllm("APIServer pid=1", "hermes_tool_parser.py:157")
    outer = ("vllm/entrypoints/openai/tool_parsers/hermes_tool_parser.py:134 extract_tool_calls: json.loads(match[0])",)
    return (
        [*_VLLM_SERVES, api + "Error in extracting tool call from response."],
        _with(api, _trace(case, outer)),
        _VLLM_GOES_ON,
    )


def _vllm_api_logged(case: Case) -> tuple[list[str], list[str], list[str]]:
    return _VLLM_SERVES, _with(_vllm("APIServer pid=1", "serving_chat.py:898"), case.lines), _VLLM_GOES_ON


def _plain_start(case: Case) -> tuple[list[str], list[str], list[str]]:
    return _SERVER_START, _trace(case), []


def _trtllm(case: Case) -> tuple[list[str], list[str], list[str]]:
    end = ["[06/14/2026-11:20:31] [TRT-LLM] [RANK 0] [I] shutting down", "Aborted (core dumped)"]
    return _TRTLLM_SERVES, list(case.lines), end


def _trtllm_start(case: Case) -> tuple[list[str], list[str], list[str]]:
    end = [
        "Traceback (most recent call last):",
        '  File "/x/tensorrt_llm/executor/proxy.py", line 332, in _start_executor_workers',
    ]
    return (
        _TRTLLM_START,
        list(case.lines),
        [*end, "    raise RuntimeError(", "RuntimeError: Executor worker returned error"],
    )


def _native(case: Case) -> tuple[list[str], list[str], list[str]]:
    serves = _VLLM_SERVES if case.engine == "vllm" else _LMDEPLOY_SERVES
    return (serves if case.severity == "engine_death" else _SERVER_START), list(case.lines), []


_GIN = '[GIN] 2026/06/14 - 11:{} | 200 |  3.112505127s |       10.0.0.7 | POST     "/v1/chat/completions"'
_SPEAKERS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "llamacpp": (
        [
            "0.00.013.676 I srv  llama_server: initializing ...",
            "0.00.031.704 I srv    load_model: loading model '/models/m.gguf'",
        ],
        [
            "0.00.088.681 I srv  llama_server: model loaded",
            "0.00.104.287 I srv  llama_server: listening on http://127.0.0.1:8080",
            "0.07.000.001 I slot launch_slot_: id  0 | task 4 | processing task, is_child = 0",
            "0.07.411.201 I slot      release: id  0 | task 4 | stop processing: n_tokens = 96, truncated = 0",
            "0.07.411.240 I srv  log_server_r: done request: POST /v1/chat/completions 127.0.0.1 200",
        ],
    ),
    "ollama": (
        [
            'time=2026-06-14T11:18:01.100Z level=INFO source=routes.go:1752 msg="Listening on 127.0.0.1:11434 (version 0.18.1)"',
            'time=2026-06-14T11:18:20.100Z level=INFO source=server.go:431 msg="starting runner" cmd="/usr/bin/ollama runner --port 41231"',
            'time=2026-06-14T11:18:20.351Z level=INFO source=server.go:1272 msg="waiting for llama runner to start responding"',
        ],
        [
            'time=2026-06-14T11:18:22.100Z level=INFO source=server.go:1310 msg="llama runner started in 2.00 seconds"',
            _GIN.format("18:24"),
            _GIN.format("19:04"),
        ],
    ),
    "litellm": (
        [
            "LiteLLM: Proxy initialized with Config, Set models:",
            "    m",
        ],
        [
            "INFO:     Started server process [1]",
            "INFO:     Application startup complete.",
            "11:19:00 - LiteLLM:INFO: utils.py:3100 - LiteLLM completion() model= m; provider = hosted_vllm",
            *(f'INFO:     10.0.0.9:5100{n} - "POST /v1/chat/completions HTTP/1.1" 200 OK' for n in range(4)),
        ],
    ),
    "mlx": (
        ["2026-06-14 11:18:01,100 - INFO - Starting httpd at 127.0.0.1 on port 8080..."],
        [f'127.0.0.1 - - [14/Jun/2026 11:19:0{n}] "POST /v1/chat/completions HTTP/1.1" 200 -' for n in range(3)],
    ),
    "ai_gateway": (
        ['time=2026-06-14T11:18:01.100Z level=INFO msg="starting external processor" version=v0.5.0 address=:1063'],
        ['time=2026-06-14T11:19:01.100Z level=INFO msg="Selected backend" backend=m.default'],
    ),
    "epp": (
        ['{"level":"info","ts":"2026-06-14T11:18:01Z","logger":"setup","msg":"Starting runner"}'],
        ['{"level":"info","ts":"2026-06-14T11:19:02Z","logger":"ext-proc","msg":"Request handled","model":"m","endpoint":"10.1.4.3:8000"}'],
    ),
    "aibrix": (
        ["I0614 11:18:01.100000       1 main.go:63] using in-cluster configuration"],
        ['I0614 11:19:01.100000       1 gateway.go:210] "request end" requestID="7b2f" model="m" status=200'],
    ),
    "dynamo": (
        ["2026-06-14T11:18:00.100000Z  INFO dynamo_runtime::transports::etcd: connected to etcd server"],
        ["2026-06-14T11:18:01.100000Z  INFO dynamo_llm::http::service: listening on 0.0.0.0:8000"],
    ),
    "router": (
        ["2026-06-14 11:18:01  INFO sglang_router_rs::server: src/server.rs:830: Starting router on 0.0.0.0:30000"],
        ["2026-06-14 11:19:01  INFO sglang_router_rs::routers: src/router.rs:88: request routed to http://10.0.0.4:8000"],
    ),
    "vllm_router": (
        ["[2026-06-14 11:18:01,605] INFO: Initializing round-robin routing logic (routing_logic.py:468:vllm_router.routers.routing_logic)"],
        [f'INFO:     10.0.0.9:5100{n} - "POST /v1/chat/completions HTTP/1.1" 200 OK' for n in range(3)],
    ),
    "kserve": (
        ["INFO:root:Copying contents of /mnt/models to local"],
        [f'INFO:     10.0.0.9:5100{n} - "POST /openai/v1/chat/completions HTTP/1.1" 200 OK' for n in range(3)],
    ),
    "nginx": (
        ['2026/06/14 11:18:01 [notice] 1#1: start worker processes'],
        [f'10.0.0.9 - - [14/Jun/2026:11:19:0{n} +0000] "POST /v1/chat/completions HTTP/1.1" 200 1184 "-" "python-httpx/0.28"' for n in range(3)],
    ),
    "haproxy": (
        ["[NOTICE] 165/111801 (1) : New worker #1 (8) forked"],
        [
            'Jun 14 11:19:01 lb haproxy[8]: 10.0.0.9:51003 [14/Jun/2026:11:19:00.100] llm vllm/a 0/0/1/702/741 200 1184 - - ---- 3/3/2/1/0 0/0 "POST /v1/chat/completions HTTP/1.1"',
        ],
    ),
    "traefik": (
        ['time="2026-06-14T11:18:01Z" level=info msg="Traefik version 2.11.20 built on 2026-01-31"'],
        ['10.0.0.9 - - [14/Jun/2026:11:19:01 +0000] "POST /v1/chat/completions HTTP/1.1" 200 1184 "-" "-" 12 "llm@docker" "http://10.0.0.4:8000" 741ms'],
    ),
    "caddy": (
        ['{"level":"info","ts":1781435881.1,"logger":"http.log","msg":"server running","name":"srv0","protocols":["h1","h2","h3"]}'],
        ['{"level":"info","ts":1781435941.1,"logger":"http.log.access","msg":"handled request","request":{"method":"POST","uri":"/v1/chat/completions"},"duration":0.7,"status":200}'],
    ),
    "envoy": (
        ["[2026-06-14 11:18:01.100][1][info][main] [source/server/server.cc:1000] starting main dispatch loop"],
        [
            f'[2026-06-14T11:19:0{n}.216Z] "POST /v1/chat/completions HTTP/1.1" 200 - via_upstream - "-" 812 1184 741 740 "-" "python-httpx/0.28" "3f2c" "m.local" "10.1.4.2:8000"'
            for n in range(3)
        ],
    ),
    "ray_serve": (
        ["INFO 2026-06-14 11:18:01,383 controller 300 -- Deploying new version of Deployment(name='LLM', app='llm')"],
        ["(ServeReplica:llm:LLM pid=310) INFO 2026-06-14 11:19:01,462 llm_LLM 7tdn -- POST /v1/chat/completions 200 741.2ms"],
    ),
    "new_api": (
        ["[SYS] 2026/06/14 - 11:18:01 | New API v0.10.8 started"],
        ["[GIN] 2026/06/14 - 11:19:01 | 2026061411 | 200 |  741.2ms |       10.0.0.9 |    POST /v1/chat/completions"],
    ),
    "llama_swap": (
        ["[INFO] llama-swap listening on http://0.0.0.0:8080"],
        [f'[INFO] Request 10.0.0.9 "POST /v1/chat/completions HTTP/1.1" 200 1184 "python-httpx/0.28" 74{n}.2ms' for n in range(3)],
    ),
    "cloudflared": (
        ["2026-06-14T11:18:01Z INF Starting metrics server on 127.0.0.1:20241/metrics"],
        ["2026-06-14T11:18:03Z INF Registered tunnel connection connIndex=0 connection=6b41f4fa location=sea01 protocol=quic"],
    ),
    "istio_proxy": (
        ["2026-06-14T11:18:01.100000Z\tinfo\tEpoch 0 starting"],
        ["2026-06-14T11:18:03.100000Z\tinfo\tReadiness succeeded in 2.01s"],
    ),
    "bifrost": (
        ['{"level":"info","time":"2026-06-14T11:18:01Z","message":"successfully started bifrost, serving UI on http://localhost:8080"}'],
        ['{"level":"debug","time":"2026-06-14T11:19:01Z","message":"request for provider vllm completed"}'],
    ),
    "python_proxy": (
        ["2026-06-14 11:18:01,100 [INFO] app.main – Starting up Ollama Proxy Server"],
        [f'2026-06-14 11:19:0{n},239 [INFO] uvicorn.access – 10.0.0.9:5100{n} - "POST /api/generate HTTP/1.1" 200' for n in range(3)],
    ),
    "triton": (
        [
            'I0614 11:18:01.100000 1 model_lifecycle.cc:472] "loading: tensorrt_llm:1"',
            "[TensorRT-LLM][INFO] TRTGptModel maxBatchSize: 64",
        ],
        [
            "I0614 11:18:30.100000 1 model_lifecycle.cc:839] \"successfully loaded 'tensorrt_llm'\"",
            'I0614 11:18:31.100000 1 http_server.cc:4725] "Started HTTPService at 0.0.0.0:8000"',
        ],
    ),
    "localai": (
        ["11:18AM INF Starting LocalAI using 8 threads, with models path: /models"],
        [
            "11:18AM INF LocalAI API is listening! Please connect to the endpoint for API documentation. endpoint=http://0.0.0.0:8080",
            *(f"11:19AM INF Success ip=10.0.0.9 latency=74{n}.2ms method=POST status=200 url=/v1/chat/completions" for n in range(3)),
        ],
    ),
    "bentoml": (
        ['2026-06-14T11:18:01+0000 [INFO] [cli] Starting production HTTP BentoServer from "_service:svc" listening on http://0.0.0.0:3000 (Press CTRL+C to quit)'],
        [
            f"2026-06-14T11:19:0{n}+0000 [INFO] [api_server:llm-service:1] 10.0.0.9:51003 (scheme=http,method=POST,path=/v1/generate,type=application/json,length=212) (status=200,type=application/json,length=1184) 741.212ms (trace=8a5f,span=66b2,sampled=0,service.name=llm-service)"
            for n in range(3)
        ],
    ),
    "envoy_gateway": (
        ['2026-06-14T11:18:01.986Z\tINFO\trunner/runner.go:44\tstarted\t{"runner": "infrastructure"}'],
        ['2026-06-14T11:18:04.986Z\tINFO\trunner/runner.go:131\treceived an update\t{"runner": "xds-translator"}'],
    ),
    "portkey": (
        ["Your AI Gateway is running at: http://localhost:8787"],
        ["<-- POST /v1/chat/completions", "--> POST /v1/chat/completions 200 741ms"],
    ),
    "openclaw": (
        ["11:18:01 [gateway] listening on ws://127.0.0.1:18789 (PID 4410)"],
        ["11:19:02 [ws] res ok agent 741ms"],
    ),
    "supergateway": (
        ["[supergateway] Starting...", "[supergateway]   - port: 8000"],
        ["[supergateway] Listening on port 8000", "[supergateway] New SSE connection from 10.0.0.9"],
    ),
    "agentgateway": (
        ["2026-06-14T11:18:01.100000Z\tinfo\tapp\tserving UI at http://localhost:15000/ui"],
        [
            "2026-06-14T11:19:01.636226Z\tinfo\trequest gateway=g/gateway-agentgateway listener=http route=g/llms-routes endpoint=10.1.4.2:8000 src.addr=10.0.0.9:28489 http.method=POST http.host=llm.example.org http.path=/v1/chat/completions http.version=HTTP/1.1 http.status=200 protocol=llm duration=741ms"
        ],
    ),
    "sglang_raw": (_SGLANG_START, _SGLANG_SERVES[len(_SGLANG_START) :]),
    "lmdeploy_raw": (_LMDEPLOY_SERVES[:1], _LMDEPLOY_SERVES[1:]),
    "trtllm_raw": (_TRTLLM_START, _TRTLLM_SERVES[len(_TRTLLM_START) :]),
}  # fmt: skip
"""Lines of a program that starts, and of one that serves. Each has three forms: it dies, it does not start (`_start`), or a request
fails and it goes on (`_request`). The lines of these cases are complete, with the prefixes and tracebacks of their logs.
"""


def _spoken(
    start: Sequence[str], serves: Sequence[str], after: Sequence[str]
) -> Callable[[Case], tuple[list[str], list[str], list[str]]]:
    return lambda case: ([*start, *serves], list(case.lines), list(after))


FORMS: Mapping[str, Callable[[Case], tuple[list[str], list[str], list[str]]]] = {
    name[1:]: function for name, function in list(globals().items())
    if name in (
        "_vllm_engine", "_vllm_worker", "_vllm_start", "_vllm_worker_start", "_vllm_api_start", "_vllm_call", "_vllm_stream",
        "_vllm_logged", "_vllm_raw", "_vllm_template", "_vllm_api_dead", "_vllm_v0", "_vllm_v0_start", "_sglang", "_sglang_start", "_sglang_request", "_asgi", "_plain_start",
        "_sglang_detokenizer", "_lmdeploy_engine", "_lmdeploy_session", "_kernel", "_vllm_preprocess", "_vllm_thread", "_vllm_tool_parser", "_vllm_api_logged",
        "_trtllm", "_trtllm_start", "_native",
    )
} | {
    name + suffix: _spoken(start, () if suffix == "_start" else serves, serves if suffix == "_request" else ())
    for name, (start, serves) in _SPEAKERS.items() for suffix in ("", "_start", "_request")
}  # fmt: skip


# --- scores


def _diagnose(lines: Sequence[str]) -> list[Failure]:
    """Failures of a log, as `loadchaos classify` finds them."""
    diagnosis = Diagnosis()
    for n, line in enumerate(lines, 1):
        diagnosis.feed(WholeLine(line, n))
    return diagnosis.finish()


def score(case: Case) -> Score:
    """Classify the log of a case."""
    before, rows, after = FORMS[case.form](case)
    found = _diagnose([*before, *rows, *after])
    first, last = len(before) + 1, len(before) + len(rows)
    texts = [str(t) for f in found for t in (f.title, f.evidence.text, *(c.text for c in f.candidates))]
    ids = [
        f.id for f in found
        if f.role == "cause" and f.id not in _UNNAMED and first <= (f.evidence.line or 0) <= last
    ]  # fmt: skip
    placed = bool(ids) and all(i in PLACES for i in ids)
    worst = min((_ORDER.index(f.severity) for f in found), default=-1)
    right = worst >= 0 and _ORDER[worst] == case.severity
    return Score(case, any(case.decisive in t for t in texts), bool(ids), right, placed, found)


def healthy() -> dict[str, list[str]]:
    """Findings of each healthy log; all should have none."""
    logs = {path.stem: path.read_text("utf-8").partition("\n\n")[2] for path in sorted(BENIGN.glob("*.log"))}
    logs["made: vllm"] = "\n".join(_VLLM_SERVES)
    logs |= {f"made: {name}": "\n".join([*start, *serves]) for name, (start, serves) in _SPEAKERS.items()}
    return {name: [f.id for f in _diagnose(text.splitlines())] for name, text in logs.items()}


def table(scores: Sequence[Score]) -> dict[str, dict[str, Any]]:
    """Shares for each half."""
    return {name: _shares([s for s in scores if half(s.case) == name]) for name in HALVES}


def by_engine(scores: Sequence[Score]) -> dict[str, dict[str, Any]]:
    """Shares for each half of each engine with enough cases; what is not known is held out."""
    found: dict[str, dict[str, Any]] = {}
    for engine, cases in Counter(s.case.engine for s in scores).most_common():
        if cases >= ENGINE_CASES:
            of = [s for s in scores if s.case.engine == engine]
            found[f"{engine}, known"] = _shares([s for s in of if half(s.case) == "known"])
            found[f"{engine}, held out"] = _shares([s for s in of if half(s.case) != "known"])
    return found


def _shares(of: Sequence[Score]) -> dict[str, Any]:
    return {"cases": len(of), "most": max((len(s.found) for s in of), default=0)} | {
        key: sum(getattr(s, key) for s in of) / max(1, len(of)) for key in ("shown", "named", "placed", "severity")
    }


def main() -> None:
    only = int(sys.argv[sys.argv.index("--round") + 1]) if "--round" in sys.argv else 0
    scores = [score(case) for case in load() if only in (0, case.round)]
    print(f"{'half':20}{'cases':>7}{'shown':>9}{'named':>9}{'place only':>12}{'severity':>10}{'most findings':>15}")
    for name, row in (table(scores) | by_engine(scores)).items():
        shares = "".join(f"{row[k]:>{w}.0%}" for k, w in (("shown", 9), ("named", 9), ("placed", 12), ("severity", 10)))
        print(f"{name:20}{row['cases']:>7}{shares}{row['most']:>15}")
    logs = healthy()
    print(f"healthy logs silent: {sum(not f for f in logs.values())} of {len(logs)}")
    if "--missed" in sys.argv:
        for s in scores:
            if half(s.case) == "known" and not (s.shown and s.named and s.severity):
                marks = "".join(
                    m if getattr(s, k) else "-" for m, k in (("s", "shown"), ("n", "named"), ("v", "severity"))
                )
                print(
                    f"{marks} {s.case.source} {s.case.severity}: {[(f.id, f.severity, f.title[:80]) for f in s.found]}"
                )


if __name__ == "__main__":
    main()

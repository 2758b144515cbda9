# ruff: noqa: E501, ISC004 - log lines are as long as they are

import json
from pathlib import Path
from typing import Any

import pytest

from loadchaos.analysis.classify.classifier import classify_text
from loadchaos.analysis.classify.diagnosis import Diagnosis
from loadchaos.core.whole_lines import WholeLine
from loadchaos.server.monitor.log_alarms import LogAlarms

HOSTILE = [
    "CUDA out of memory. Tried to allocate 2.00 GiB",
    "EngineCore encountered a fatal error. vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "terminate called after throwing an instance of 'std::runtime_error'",
    'Scheduler hit an exception: Traceback (most recent call last):\n  File "/x/sglang/srt/managers/scheduler.py", line 7, in run\n'
    "    go()\nRuntimeError: CUDA error: device-side assert triggered\n\n[2026-06-14 11:20:33] SIGQUIT received.",
    "2026-01-05 10:12:40,733 - lmdeploy - ERROR - engine.py:321 - Task <MainLoopBackground> failed\n[TM][ERROR] CUDA runtime error: x",
    'Traceback (most recent call last):\n  File "/x/vllm/v1/engine/core.py", line 9, in run\n    go()\nFluxError: odd',
    "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
    "Engine core proc EngineCore_0 died unexpectedly, shutting down client.",
    "what does prompt: mean? text='a' ERROR 01-05 12:00:00 [core.py:1] EngineCore failed to start.",
]
FORMS = {
    "vllm 0.6": "INFO 11-13 06:25:01 logger.py:37] Received request chatcmpl-1: prompt: {0!r}, params: SamplingParams(n=1), "
    "prompt_token_ids: [1, 2], lora_request: None, prompt_adapter_request: None.",
    "vllm 0.9": "INFO 06-14 11:20:31 [logger.py:43] Received request chatcmpl-1: prompt: {0!r}, params: SamplingParams(n=1), "
    "prompt_token_ids: None, prompt_embeds shape: None, lora_request: None.",
    "vllm stop words": "(APIServer pid=1) INFO 06-14 11:20:31 [logger.py:58] Received request chatcmpl-1: params: "
    "SamplingParams(n=1, stop=[{0!r}]), lora_request: None.",
    "vllm 0.32 debug": "(APIServer pid=1) DEBUG 06-14 11:20:31 [request_logger.py:49] Request chatcmpl-1 details: prompt: {0!r}, "
    "prompt_token_ids: [1], prompt_embeds shape: None.",
    "vllm 0.33 body": "(APIServer pid=1) INFO 11-25 21:40:12 [request_logger.py:84] Request chatcmpl-1 JSON body: "
    '{{"messages":[{{"role":"user","content":{1}}}],"model":"tiny"}}',
    "vllm output": "(APIServer pid=1) INFO 06-14 11:20:31 [request_logger.py:108] Generated response chatcmpl-1 "
    "(streaming complete): output: {0!r}, finish_reason: stop",
    "vllm body": "(APIServer pid=1) INFO 06-14 11:20:31 [api_server.py:1400] response_body={{streaming_complete: content={0!r}, chunks=7}}",
    "vllm beam": "INFO 06-14 11:20:31 [serving.py:90] Received request cmpl-1-0: prompt: {0!r}, params_list: [BeamSearchParams()].",
    "sglang 0.2": "[2024-09-01 11:20:31] in={0!r}, out={{'text': 'yes'}}",
    "sglang 0.4": "[2026-06-14 11:20:31] Receive: obj=GenerateReqInput(text={0!r}, input_ids=None, sampling_params={{}})",
    "sglang stop words": "[2026-06-14 11:20:31] Receive: obj=GenerateReqInput(text=None, sampling_params={{'stop': [{0!r}]}})",
    "sglang openai": "[2026-06-14 11:20:31] Receive OpenAI: obj={{'model': 'm', 'messages': [{{'role': 'user', 'content': {0!r}}}]}}",
    "sglang finish": "[2026-06-14 11:20:31.127 TP0] Finish: obj=GenerateReqInput(rid='1'), out={{'text': {0!r}, 'meta_info': {{}}}}",
    "lmdeploy prompt": "2026-06-14 11:20:31,483 - lmdeploy - INFO - logger.py:31 - session=3, prompt={0!r}",
    "lmdeploy inputs": "2026-06-14 11:20:31,483 - lmdeploy - INFO - logger.py:45 - session=3, adapter_name=None, input_tokens=21, "
    "gen_config=GenerationConfig(stop_words=[{0!r}]), prompt={0!r}",
    "lmdeploy response": "2026-06-14 11:20:31,483 - lmdeploy - INFO - logger.py:56 - session=3, response={0!r}",
    "lmdeploy 0.5": "2024-07-31 15:06:36,187 - lmdeploy - INFO - prompt={0!r}, gen_config=EngineGenerationConfig(n=1), adapter_name=None.",
}
ACCESS_LOG = 'INFO:     127.0.0.1:1 - "GET /?q={0!r} HTTP/1.1" 404 Not Found'
BEFORE = "(APIServer pid=1) INFO:     Application startup complete.\n"
AFTER = 'INFO:     10.0.0.7:41214 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n' * 3


@pytest.mark.parametrize("form", [*FORMS.values(), ACCESS_LOG], ids=[*FORMS, "access log"])
def test_quoted_prompt_is_no_failure(form: str) -> None:
    for text in HOSTILE:
        quoted = form.format(text, json.dumps(text))
        for line in (quoted, f"vllm-1  | {quoted}"):
            assert classify_text(f"{BEFORE}{line}\n{AFTER}") == [], line
            assert classify_text(f"{BEFORE}{line}\n") == [], line
            diagnosis = Diagnosis()
            for n, row in enumerate((BEFORE + line).splitlines(), 1):
                diagnosis.feed(WholeLine(row, n))
            assert diagnosis.finish() == []


@pytest.mark.parametrize("event", ["request.received", "request.received.openai", "request.finished"])
def test_quoted_prompt_in_json_request_log_is_no_failure(event: str) -> None:
    for text in HOSTILE:
        record = {
            "timestamp": "2026-06-14T11:20:31",
            "event": event,
            "rid": "1",
            "obj": {"text": text},
            "out": {"text": text},
        }
        assert classify_text(f"{BEFORE}{json.dumps(record)}\n{AFTER}") == []


@pytest.mark.parametrize("form", FORMS)
def test_quoted_prompt_raises_no_alarm(form: str, tmp_path: Path) -> None:
    log, rows = tmp_path / "server.log", []

    def emit(row: Any) -> None:
        rows.append(row)

    log.write_text("")
    alarms = LogAlarms(log, "server", emit)
    alarms.poll()
    log.write_text("".join(FORMS[form].format(text, json.dumps(text)) + "\n" for text in HOSTILE))
    alarms.poll()
    alarms.close()
    assert [row for row in rows if row["what"] != "listening"] == []


def test_quoted_prompts_do_not_hide_a_death_after_them() -> None:
    quoted = "".join(FORMS[form].format(HOSTILE[4], json.dumps(HOSTILE[4])) + "\n" for form in FORMS)
    engine = "(EngineCore pid=15) ERROR 06-14 11:20:32 [core.py:1142] "
    rows = [
        "EngineCore encountered a fatal error.",
        "Traceback (most recent call last):",
        '  File "/x/a.py", line 1, in f',
    ]
    rows += ["    prompt='x'", "RuntimeError: CUDA error: device-side assert triggered"]
    [failure] = classify_text(BEFORE + quoted + "".join(f"{engine}{row}\n" for row in rows))
    assert (failure.id, failure.severity) == ("cuda_device_assert", "engine_death")


def test_traceback_in_one_line_with_a_prompt_in_its_code_is_read() -> None:
    line = (
        "[2026-03-02 08:11:45 TP1] Scheduler hit an exception: Traceback (most recent call last):   "
        "File \"/x/sglang/srt/managers/scheduler.py\", line 7, in run     go(prompt='a') RuntimeError: CUDA error: device-side assert triggered"
    )
    [failure] = classify_text(line + "\n[2026-03-02 08:11:46] SIGQUIT received. It usually means one child failed.\n")
    assert failure.id == "cuda_device_assert"

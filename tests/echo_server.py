"""A server that repeats the API key of its callers in every text that it can fill: pages, heads, errors, answers, labels,
metrics and its log. `python tests/echo_server.py --port N --deadly` prints its log and dies of a long prompt whose
answer is a stream.
"""

import argparse
import base64
import itertools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # where it is started as a program

from tests.core.test_redact import writings_of
from tests.http_server import Asked, Handler, serving

KEY = 's3cr3t-Val&ue/with+odd=chars<x>"q"'
WRITINGS = writings_of(KEY) | {"Basic": base64.b64encode(f"user:{KEY}".encode()).decode()}
OTHER = "abcDEF123456"
OTHERS = [
    f"Authorization: ApiKey {OTHER}",
    f"map[Authorization:[Bearer {OTHER}]]",
    f"postgres://user:p@{OTHER}@host/db",
    f'{{"body": "{{\\"api_key\\": \\"{OTHER}\\"}}"}}',
    f"api_key=SecretStr('{OTHER}')",
    f"vllm serve m --hf_token {OTHER}",
]
SECRETS = {**WRITINGS, "a secret of another": OTHER}
_HEAD = "11-20 15:53:40 [core.py:1]"
_DEATH = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
_DEADLY_WORDS = 60
_CALM = 24
"""Chat requests with a right answer at the begin, so that the load begins."""


def handler_of(log: Callable[[str], object], *, deadly: bool) -> type[Handler]:
    numbers, chats = itertools.count(), itertools.count()
    forms = list(WRITINGS.values())

    class EchoHandler(Handler):
        def _head(self, status: int, headers: dict[str, str]) -> None:
            form = self.form(0)
            echoes = dict.fromkeys(("X-Request-Id", "Via", "X-Served-By", "Retry-After"), form)
            self.send_response(status, f"so {form}")
            for name, value in ({} if status == 200 else echoes | headers).items():
                self.send_header(name, value)
            if status == 200:
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("X-Request-Id", form)
            self.end_headers()

        def form(self, more: int) -> str:
            return forms[(self.n + more) % len(forms)]

        def reply(self, asked: Asked) -> None:
            self.n = next(numbers)
            self.said = f"{self.form(1)} and {OTHERS[self.n % len(OTHERS)]}"
            path = asked.path.partition("?")[0]
            if path == "/health":
                self.answer(200 if self.n % 7 else 503, self.said)
            elif path == "/version":
                self.answer(200, {"version": f"0.18.0+{self.form(1)}"})
            elif path == "/v1/models":
                card = {"id": "m", "object": "model", "owned_by": "vllm", "root": self.form(1), "max_model_len": 2048}
                other = {**card, "id": self.form(2), "parent": "m"}
                self.answer(200, {"object": "list", "data": [card, other]})
            elif path == "/metrics":
                self.answer(200, self._metrics())
            elif path == "/server_info":
                config = {"api_key": KEY, "max_num_seqs": 8, "method": self.said}
                self.answer(200, {"vllm_config": config, "system_env": {"nvidia_gpu_models": self.said}})
            elif path == "/v1/chat/completions":
                self._chat(asked.json(), next(chats))
            else:
                error = {"message": self.said, "type": self.form(2), "code": self.form(3)}
                self.answer(404, {"error": error})

        def _metrics(self) -> str:
            quoted = [form.replace("\\", "\\\\").replace('"', '\\"') for form in forms[self.n % 10 :][:3]]
            lines = [f'vllm:num_requests_running{{engine="{quoted[0]}",model_name="{quoted[1]}"}} 0']
            lines += [f'vllm:cache_config_info{{block_size="{quoted[2]}",num_gpu_blocks="100"}} 1']
            return "\n".join([*lines, f'vllm:request_success_total{{finished_reason="{quoted[1]}"}} {self.n}', ""])

        def _chat(self, body: dict[str, Any], n: int) -> None:
            words = 5 + len(str(body["messages"][-1]["content"]).split())
            if deadly and body.get("stream") and words > _DEADLY_WORDS:
                log(f"ERROR {_HEAD} EngineCore encountered a fatal error.\n{_traceback(self.said, _DEATH)}")
                time.sleep(0.2)
                os._exit(1)
            if n % 5 == 0:
                raised = "" if deadly else _traceback(self.said, f"RuntimeError: {self.said}")
                log(f"INFO {_HEAD} a request of {self.said}\nERROR {_HEAD} it failed: {self.form(2)}\n{raised}")
            way = n % 11 if n > _CALM and not deadly else -1
            error = {"message": self.said, "type": self.form(2), "code": self.form(3), "param": self.form(4)}
            if way == 1:
                return self.answer(500, {"error": error})
            if way == 2:
                return self.answer(502, f"<html><title>{self.said}</title>")
            if way == 3:
                return self.answer(200, f'{{"broken": "{self.said}')
            if way == 4:
                return self.answer(429, {"error": error})
            usage = {"prompt_tokens": words, "completion_tokens": 2, "total_tokens": words + 2}
            head = {"id": self.form(2), "model": self.form(3) if way == 5 else body.get("model", "m")}
            head |= {"service_tier": self.form(4), "system_fingerprint": self.form(5)}
            message = {"role": "assistant", "content": self.said if n > _CALM else "well done"}
            finish = self.form(6) if way == 6 else "stop"
            if not body.get("stream"):
                choice = {"index": 0, "message": message, "finish_reason": finish}
                return self.answer(200, {**head, "choices": [choice], "usage": usage})
            self.begin_stream()
            if way == 7:
                self.event({"error": error})
            elif way == 8:
                self.event(f"{{broken {self.said}")
            call = {"index": 0, "id": self.form(1), "type": "function"}
            call["function"] = {"name": self.form(2), "arguments": self.said}
            if way == 9:
                self.event({**head, "choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]})
            self.event({**head, "choices": [{"index": 0, "delta": message, "finish_reason": None}]})
            self.event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}], "usage": usage})
            return self.end_stream()

    return EchoHandler


def _traceback(said: str, error: str) -> str:
    """A traceback whose failure has one name, whatever it says, so that it is found again."""
    frames = f'  File "/x/core.py", line 7, in step\n    step({said})\n'
    return f"Traceback (most recent call last):\n{frames}{error}\n"


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--port", type=int)
    options.add_argument("--deadly", action="store_true")
    given, _ = options.parse_known_args()

    def log(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    with serving(handler_of(log, deadly=given.deadly), given.port):
        log(f"INFO {_HEAD} args: {{'api_key': ['{KEY}'], 'port': {given.port}}}\n")
        while True:
            time.sleep(1)


if __name__ == "__main__":
    main()

import base64
import json
import re
import sys
from pathlib import Path

from tests.core.test_redact import writings_of
from tests.run.conftest import Start

# A server that tells its secrets: on its command line, in its log (once in two pieces), in /server_info, in error bodies.
TALKS = """
import http.server, json, os, sys, threading, time
port, argv_key = int(sys.argv[1]), sys.argv[3]
say = lambda text: (sys.stdout.write(text), sys.stdout.flush())
say("INFO 11-20 15:53:40 [utils.py:1] non-default args: {'api_key': ['%s'], 'port': 1}\\n" % argv_key)
say("INFO env INTERNAL_SIGNING_KEY=%s HF_TOKEN=%s\\n" % (os.environ["INTERNAL_SIGNING_KEY"], os.environ["HF_TOKEN"]))
say("INFO the setting is %s\\n" % os.environ["A_PLAIN_NAME"])
say("GET https://b.s3.amazonaws.com/i.png?X-Amz-Expires=60&X-Amz-Signature=SECRETurl7777777\\n")
forms = json.load(open(sys.argv[4]))
for way, form in forms.items(): say("INFO the caller wrote %s as %s\\n" % (way, form))
say("client sent Authorization: Bearer SECRETsp")
time.sleep(0.3)
say("lit888888888\\n")
n = 0
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *a): pass
    def answer(self, status, body, kind="application/json"):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        p = self.path.partition("?")[0]
        if p == "/health": self.answer(200, b"")
        elif p == "/version": self.answer(200, {"version": "0.18.0"})
        elif p == "/v1/models":
            card = {"id": "m", "object": "model", "owned_by": "vllm", "max_model_len": 2048}
            self.answer(200, {"object": "list", "data": [card]})
        elif p == "/metrics": self.answer(200, b"vllm:num_requests_running{engine=\\"0\\"} 0\\n", "text/plain")
        elif p == "/reset_mm_cache": self.answer(405, {"detail": "Method Not Allowed"})
        elif p == "/server_info":
            config = {"api_key": "SECRETinfo5555555", "max_num_seqs": 8, "method": "Bearer SECRETinfo5555555"}
            system = {"nvidia_gpu_models": "GPU 0: H200 https://x:SECRETinfo5555555@gpu/"}
            self.answer(200, {"vllm_config": config, "system_env": system})
        else: self.answer(404, {"error": {"message": "no"}})
    def do_POST(self):
        global n
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        if self.path != "/v1/chat/completions": return self.answer(404, {"error": {"message": "no"}})
        n += 1
        if n > 8 and n % 2:
            say("ERROR 11-20 15:53:40 [x.py:1] request failed, headers: %s\\n" % dict(self.headers))
            said = "upstream refused: %s, headers: %s" % (os.environ["A_PLAIN_NAME"], dict(self.headers))
            said = "%s was the key; %s" % (list(forms.values())[n // 2 % len(forms)], said)
            return self.answer(500, {"error": {"message": said, "code": 500}})
        words = 5 + len(str(asked["messages"][-1]["content"]).split())
        usage = {"prompt_tokens": words, "completion_tokens": 1, "total_tokens": words + 1}
        message = {"role": "assistant", "content": "ok"}
        if not asked.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return self.answer(200, {"id": "x", "model": "m", "choices": [choice], "usage": usage})
        choice = {"index": 0, "delta": message, "finish_reason": "stop"}
        chunk = {"id": "x", "model": "m", "choices": [choice], "usage": usage}
        self.answer(200, b"data: " + json.dumps(chunk).encode() + b"\\n\\ndata: [DONE]\\n\\n", "text/event-stream")
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""

KEY = 's3cr3t-Val&ue/with+odd=chars<x>"q"'
PLANTED = {
    "SECREToption1111111": "a header option",
    "SECRETlaunch3333333": "launch.env, under a name of its own",
    "SECRETlaunch4444444": "launch.env, under a well-known name",
    "SECRETplain999999999": "launch.env, under a name that denotes no secret",
    "SECRETinfo5555555": "/server_info",
    "SECRETargv6666666": "the server's command line",
    "SECRETurl7777777": "a signed URL in the log",
    "SECRETsplit888888888": "a log line that came in two reads",
}


def test_secrets_are_in_no_file_of_the_run(start: Start, unused_port: int, tmp_path: Path) -> None:
    script = tmp_path / "talks.py"
    script.write_text(TALKS)
    written = writings_of(KEY) | {"Basic": base64.b64encode(f"user:{KEY}".encode()).decode()}
    (tmp_path / "forms.json").write_text(json.dumps(written))
    forms = str(tmp_path / "forms.json")
    command = [sys.executable, str(script), str(unused_port), "--api-key", "SECRETargv6666666", forms]
    environment = {
        "INTERNAL_SIGNING_KEY": "SECRETlaunch3333333",
        "A_PLAIN_NAME": "SECRETplain999999999",
        "HF_TOKEN": "SECRETlaunch4444444",
    }
    launch = {"command": command, "env": environment, "url": f"http://127.0.0.1:{unused_port}", "ready_within": "20s"}
    run = start(
        "--header",
        "X-Tenant-Auth=SECREToption1111111",
        "--api-key-env",
        "THE_KEY",
        env={"THE_KEY": KEY},
        target={"launch": launch},
    )
    assert run.ends() == 1, run.output  # the 500s
    assert run.verdict()["outcomes"]["http_error"] > 3
    exported = run.again("export", "--openmetrics", "--csv", "--parquet", "--vllm-bench")
    assert exported.returncode == 0, exported.stderr
    leaks = [
        f"{where}: {path.relative_to(run.folder)}"
        for path in sorted(run.folder.rglob("*"))
        if path.is_file()
        for secret, where in (PLANTED | {form: f"the API key, {way}" for way, form in written.items()}).items()
        if secret.encode() in path.read_bytes()
    ]
    assert leaks == []
    assert [secret for secret in [*PLANTED, *written.values()] if secret in run.output + exported.stdout] == []
    log = (run.folder / "server.log").read_text()
    assert log.count("[redacted]") >= 6
    assert "request failed" in log
    assert [way for way in written if not re.search(rf"the caller wrote {way} as \S*\[redacted\]", log)] == []
    (configuration,) = run.rows(row="configuration")
    assert (configuration["settings"]["max_num_seqs"], "GPU 0: H200" in configuration["system"]["GPU"]) == (8, True)
    page = next(run.folder.glob("incidents/0*/incident.md")).read_text()
    assert "flags (from its log)" in page

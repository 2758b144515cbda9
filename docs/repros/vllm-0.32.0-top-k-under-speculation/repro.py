"""spec_sampler_top_k: python repro.py [URL]; exits 1 when the server died."""
import json, os, pathlib, sys, threading, time
import httpx
URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8563"
sys.excepthook = lambda *e: (sys.__excepthook__(*e), sys.stdout.flush(), os._exit(2))  # 1 is the failure
MODEL = httpx.get(URL + "/v1/models").json()["data"][0]["id"]
REQUESTS = json.loads(pathlib.Path(__file__).with_name("requests.json").read_text())

def send(i, r):
    body = {**r["body"], "model": MODEL}
    try:
        with httpx.stream("POST", URL + r.get("path", "/v1/chat/completions"), json=body, timeout=600) as answer:
            for n, line in enumerate(filter(None, answer.iter_lines()), 1):
                if answer.status_code >= 400 or line.startswith('data: {"error"'):
                    raise httpx.HTTPError(line)
            print(i, answer.status_code)
    except httpx.HTTPError as e:
        BAD.append(print(i, repr(e)[:200]))

def alive():
    try:
        return httpx.get(URL + "/health", timeout=30).status_code < 500
    except httpx.HTTPError:
        return False

for number in range(1):
    BAD = []
    threads = [threading.Thread(target=send, args=pair) for pair in enumerate(REQUESTS)]
    [t.start() for t in threads], [t.join() for t in threads]
    if BAD and (time.sleep(3) or not alive()):
        sys.exit(f"the server died in round {number + 1}")
if BAD:
    raise RuntimeError("the server lives, and it did not answer each request: nothing is decided")

"""A prompt longer than the KV cache is answered with 500: python repro.py [URL]; exits 1 when a request failed."""
import os, sys, threading
import httpx
URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:23344"
sys.excepthook = lambda *e: (sys.__excepthook__(*e), sys.stdout.flush(), os._exit(2))  # 1 is the failure
MODEL = httpx.get(URL + "/v1/models").json()["data"][0]["id"]
REQUESTS = [{"words": 323, "body": {"max_tokens": 1}}]

def send(i, r):
    body = {"model": MODEL, "messages": [{"role": "user", "content": "time " * r["words"]}], **r["body"]}
    try:
        with httpx.stream("POST", URL + r.get("path", "/v1/chat/completions"), json=body, timeout=600) as answer:
            for n, line in enumerate(filter(None, answer.iter_lines()), 1):
                if answer.status_code >= 400 or line.startswith('data: {"error"'):
                    raise httpx.HTTPError(line)
            print(i, answer.status_code)
    except httpx.HTTPError as e:
        BAD.append(print(i, repr(e)[:200]))

for number in range(1):
    BAD = []
    threads = [threading.Thread(target=send, args=pair) for pair in enumerate(REQUESTS)]
    [t.start() for t in threads], [t.join() for t in threads]
    if BAD:
        sys.exit(f"a request failed in round {number + 1}")

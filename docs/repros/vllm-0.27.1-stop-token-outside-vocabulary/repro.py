"""Name a stop token that the vocabulary does not have, with min_tokens: python repro.py [URL]; exits 1 when the server died."""
import os, sys, time
import httpx
URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8541"
sys.excepthook = lambda *e: (sys.__excepthook__(*e), sys.stdout.flush(), os._exit(2))  # 1 is the failure
MODEL = httpx.get(URL + "/v1/models", timeout=30).json()["data"][0]["id"]

def ask(name, **more):
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, **more}
    answer = httpx.post(URL + "/v1/chat/completions", json=body, timeout=120)
    print(f"{name}: {answer.status_code} {answer.text[:200]}")
    return answer.status_code

def alive():
    try:
        return httpx.get(URL + "/health", timeout=30).status_code < 500
    except httpx.HTTPError:
        return False

if ask("a request") != 200:
    raise RuntimeError("the server does not answer: nothing is decided")
try:
    ask("the same with a stop token outside the vocabulary", min_tokens=1, stop_token_ids=[10_000_000])
except httpx.HTTPError as e:
    print(repr(e))
if not all(time.sleep(0.5) or alive() for _ in range(6)):
    sys.exit("the server died")

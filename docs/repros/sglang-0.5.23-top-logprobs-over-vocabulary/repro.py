"""Ask for more top_logprobs than the vocabulary has: python repro.py [URL]; exits 1 when the server died."""
import os, sys, time
import httpx
URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8542"
sys.excepthook = lambda *e: (sys.__excepthook__(*e), sys.stdout.flush(), os._exit(2))  # 1 is the failure
MODEL = httpx.get(URL + "/v1/models", timeout=30).json()["data"][0]["id"]

def ask(name, **more):
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, **more}
    try:
        answer = httpx.post(URL + "/v1/chat/completions", json=body, timeout=60)
    except httpx.HTTPError as e:
        print(f"{name}: {e!r}")
        return None
    print(f"{name}: {answer.status_code} {answer.text[:200]}")
    return answer.status_code

if ask("a request") != 200:
    raise RuntimeError("the server does not answer: nothing is decided")
refused = ask("the same with 10,000,000 top_logprobs", logprobs=True, top_logprobs=10_000_000)
time.sleep(3)
if ask("a request") != 200:
    sys.exit("the server died")
sys.exit(0 if refused is not None else 2)

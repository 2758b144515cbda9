"""Ask for streamed and whole answers that end within a character: python repro.py [URL] [MAX_TOKENS]; exits 1 when a pair differs."""
import json, os, sys
import httpx
URL = sys.argv[1].rstrip("/") if len(sys.argv) > 1 else "http://127.0.0.1:8528"
MOST = int(sys.argv[2]) if len(sys.argv) > 2 else 24
sys.excepthook = lambda *e: (sys.__excepthook__(*e), sys.stdout.flush(), os._exit(2))  # 1 is the failure

def ask(limit, stream):
    """Return the text, the finish reason and the number of tokens of one greedy answer."""
    body = {"model": "tiny-text", "messages": [{"role": "user", "content": "Hello river"}], "max_tokens": limit, "temperature": 0, "stream": stream}
    answer = httpx.post(f"{URL}/v1/chat/completions", json=body, timeout=120).raise_for_status()
    parts = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")] if stream else [answer.text]
    parts = [json.loads(part) for part in parts]
    choices = [choice for part in parts for choice in part["choices"]]
    text = "".join(choice["delta" if stream else "message"].get("content") or "" for choice in choices)
    return text, choices[-1]["finish_reason"], parts[-1]["usage"]["completion_tokens"]

differ = other = 0
for limit in range(1, MOST + 1):
    (streamed, *ends), (whole, *same_ends) = ask(limit, True), ask(limit, False)
    if streamed != whole:
        differ += 1
        other += not (whole.startswith(streamed) and whole.endswith("\ufffd")) or ends != same_ends
        print(f"max_tokens {limit}: streamed {streamed[-20:]!r}, whole {whole[-20:]!r}, {ends[1]} tokens, {ends[0]}")
print(f"{differ} of {MOST} pairs differ, {other} of them in more than the end of a stream")
sys.exit(1 if differ else 0)

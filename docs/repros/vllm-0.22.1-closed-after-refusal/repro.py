"""Send a refused request, then a good one on its connection: python repro.py [URL]; exits 1 when the good one is lost."""
import http.client, json, os, sys
from urllib.parse import urlsplit
import httpx

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8530"
TRIES = 20
sys.excepthook = lambda *e: (sys.__excepthook__(*e), sys.stdout.flush(), os._exit(2))  # 1 is the failure


def post(connection, content):
    body = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": content}]}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    return answer


MODEL = httpx.get(f"{URL}/v1/models", timeout=30).json()["data"][0]["id"]
lost, seen = 0, {}
for _ in range(TRIES):
    client = http.client.HTTPConnection(urlsplit(URL).netloc, timeout=120)
    post(client, "hello")
    refused = post(client, "word " * 5000)
    if refused.status != 400:
        raise RuntimeError(f"not refused ({refused.status}): nothing is decided")
    said = f"{refused.status}, Connection: {refused.headers['Connection'] or 'not told'}"
    try:
        text = f"refused ({said}), then answered ({post(client, 'hello').status})"
    except (ConnectionError, http.client.BadStatusLine) as e:
        lost, text = lost + 1, f"refused ({said}), then {type(e).__name__}"
    seen[text] = seen.get(text, 0) + 1
    client.close()
print(*(f"{n} of {TRIES}: {text}" for text, n in seen.items()), sep="\n")
sys.exit(f"{lost} of {TRIES} good requests after a refusal were lost" if lost else 0)

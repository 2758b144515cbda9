"""Send a request that is refused, then a good one on the same connection: python repro.py [URL]; exits 1 if the connection is lost."""
import http.client, json, sys
from urllib.parse import urlsplit

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8530"
TRIES = 20


def post(connection, content):
    body = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": content}]}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    return answer


try:
    client = http.client.HTTPConnection(urlsplit(URL).netloc, timeout=120)
    client.request("GET", "/v1/models")
    MODEL = json.loads(client.getresponse().read())["data"][0]["id"]
    post(client, "hello")
    lost, seen = 0, {}
    for _ in range(TRIES):
        client = http.client.HTTPConnection(urlsplit(URL).netloc, timeout=120)
        refused = post(client, "word " * 5000)
        said = f"{refused.status}, Connection: {refused.headers['Connection'] or 'not told'}"
        try:
            text = f"refused ({said}), then answered ({post(client, 'hello').status})"
        except (ConnectionError, http.client.BadStatusLine) as e:
            lost, text = lost + 1, f"refused ({said}), then {type(e).__name__}"
        seen[text] = seen.get(text, 0) + 1
        client.close()
except OSError as e:
    print(e)
    sys.exit(2)
print(*(f"{n} of {TRIES}: {text}" for text, n in seen.items()), sep="\n")
sys.exit(f"{lost} of {TRIES} good requests after a refusal were lost" if lost else 0)

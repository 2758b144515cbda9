"""Send one request with four new images that do not fit into the processor cache together, then a request without images.

python repro.py http://127.0.0.1:8526
"""

import base64
import struct
import sys
import zlib

import httpx

URL = sys.argv[1].rstrip("/")
SIDE = 448
WAIT_S = 30


def png(colour):
    """PNG of one colour."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    rows = (b"\0" + bytes(colour) * SIDE) * SIDE
    head = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def ask(name, model, content):
    """Send a request. Returns True if an answer came."""
    body = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 1, "temperature": 0}
    try:
        answer = httpx.post(f"{URL}/v1/chat/completions", json=body, timeout=WAIT_S)
    except httpx.TimeoutException:
        health = httpx.get(f"{URL}/health", timeout=30).status_code
        print(f"{name}: no answer in {WAIT_S} s; /health says {health}")
        return False
    print(f"{name}: {answer.status_code} {answer.text[:100]}")
    return True


def image(colour):
    """Part of a message."""
    url = "data:image/png;base64," + base64.b64encode(png(colour)).decode()
    return {"type": "image_url", "image_url": {"url": url}}


model = httpx.get(f"{URL}/v1/models", timeout=30).json()["data"][0]["id"]
text = {"type": "text", "text": "Hello"}
ask("text", model, [text])
ask("one image", model, [text, image((1, 2, 3))])
first = ask("four new images", model, [text, *(image((n, n, n)) for n in range(4, 8))])
second = ask("text", model, [text])
print("the server lives" if first and second else "the server hangs")
sys.exit(0 if first and second else 1)

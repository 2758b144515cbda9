"""Encoder cache miss in the drafter: python repro.py [URL [TOKENS [MOVE]]]; exits 1 when the server died.

TOKENS is --max-num-batched-tokens. MOVE shifts the image by so many tokens: with 1 or -1 the server lives.
"""
import base64, os, random, struct, sys, time, zlib
import httpx
URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8523"
TOKENS = int(sys.argv[2]) if len(sys.argv) > 2 else 2048
MOVE = int(sys.argv[3]) if len(sys.argv) > 3 else 0
sys.excepthook = lambda *e: (sys.__excepthook__(*e), sys.stdout.flush(), os._exit(2))  # 1 is the failure
MODEL = httpx.get(URL + "/v1/models").json()["data"][0]["id"]

def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

def image(size=256):  # a new colour each time: an image that is in the encoder cache does no harm
    row = b"\0" + random.randbytes(3) * size
    head = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(row * size)) + chunk(b"IEND", b"")
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(png).decode()}}

def body(digits):  # each digit is one token
    text = ("12" * digits)[:digits]
    return {"model": MODEL, "messages": [{"role": "system", "content": text}, {"role": "user", "content": [IMAGE]}]}

def image_begins(digits):
    tokens = httpx.post(URL + "/tokenize", json=body(digits), timeout=60).json()["tokens"]
    return next(i for i in range(len(tokens)) if len(set(tokens[i : i + 16])) == 1)

IMAGE = image()
digits = 16 + TOKENS + MOVE - image_begins(16)
print(f"the image begins at token {image_begins(digits)}; a part of the prefill has {TOKENS} tokens")
try:
    answer = httpx.post(URL + "/v1/chat/completions", json={**body(digits), "max_tokens": 1}, timeout=600)
    print(answer.status_code, answer.text[:200])
    time.sleep(3)
    if httpx.get(URL + "/health", timeout=30).status_code >= 500:
        sys.exit("the server died")
    sys.exit(0 if answer.status_code == 200 else 2)
except httpx.HTTPError:
    sys.exit("the server died")

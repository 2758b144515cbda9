"""The engine core loops forever in its image cache: python repro.py [URL]; exits 1 when the server hangs."""
import base64, os, random, struct, sys, zlib
import httpx
URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8524"
sys.excepthook = lambda *e: (sys.__excepthook__(*e), sys.stdout.flush(), os._exit(2))  # 1 is the failure
INFO = httpx.get(URL + "/v1/models").json()["data"][0]

def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

def image(size=256):
    row = b"\0" + random.randbytes(3) * size
    head = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(row * size)) + chunk(b"IEND", b"")
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(png).decode()}}

def send(name, picture, digits=10):
    text = {"type": "text", "text": ("12" * digits)[:digits]}
    body = {"model": INFO["id"], "max_tokens": 1, "messages": [{"role": "user", "content": [picture, text]}]}
    try:
        answer = httpx.post(URL + "/v1/chat/completions", json=body, timeout=60)
        print(name, answer.status_code, answer.text[:120])
        return answer.status_code
    except httpx.ReadTimeout:
        health = httpx.get(URL + "/health", timeout=10).status_code
        sys.exit(f"{name} got no answer in 60 s, and /health says {health}: the server hangs")

first = image()
send("image A, too long with its image:", first, INFO["max_model_len"] - 30)
send("image A again:", first)
others = [send(f"another image ({i + 1}):", image()) for i in range(6)]
sys.exit(0 if others == [200] * 6 else 2)  # 2: nothing is decided

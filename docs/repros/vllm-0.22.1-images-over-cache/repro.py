"""Send four new images that do not fit into the processor cache together: python repro.py http://127.0.0.1:8526"""
import base64, os, struct, sys, zlib
import httpx
URL = sys.argv[1].rstrip("/") if len(sys.argv) > 1 else "http://127.0.0.1:8526"
SIDE, WAIT_S = 448, 30
sys.excepthook = lambda *e: (sys.__excepthook__(*e), sys.stdout.flush(), os._exit(2))  # 1 is the failure

def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

def image(number):
    rows = (b"\0" + bytes([number] * 3) * SIDE) * SIDE
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0))
    png = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(png).decode()}}

def ask(name, *images):
    """Send a request. Returns True if an answer came."""
    content = [{"type": "text", "text": "Hello"}, *images]
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 1, "temperature": 0}
    try:
        answer = httpx.post(f"{URL}/v1/chat/completions", json=body, timeout=WAIT_S)
    except httpx.TimeoutException:
        try:
            health = httpx.get(f"{URL}/health", timeout=30).status_code
        except httpx.TimeoutException:
            health = "nothing in 30 s"
        print(f"{name}: no answer in {WAIT_S} s; /health says {health}")
        return False
    print(f"{name}: {answer.raise_for_status().status_code} {answer.text[:100]}")
    return True

MODEL = httpx.get(f"{URL}/v1/models", timeout=30).json()["data"][0]["id"]
ask("text"), ask("one image", image(1))
answered = [ask("four new images", *(image(n) for n in range(4, 8))), ask("text")]
print("the server lives" if all(answered) else "the server hangs")
sys.exit(0 if all(answered) else 1)

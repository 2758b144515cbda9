"""Send an image in a request that is refused, then alone: python repro.py [URL]; exits 1 when the engine lacks it."""
import base64, os, struct, sys, zlib
import httpx

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8529"
sys.excepthook = lambda *e: (sys.__excepthook__(*e), sys.stdout.flush(), os._exit(2))  # 1 is the failure


def png(colour, size=448):
    rows = (b"\0" + bytes(colour) * size) * size
    parts = (b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    data = b"".join(struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts)
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + data).decode()


def ask(what, words, *images):
    content = [{"type": "text", "text": "word " * words}, *({"type": "image_url", "image_url": {"url": i}} for i in images)]
    body = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": content}]}
    answer = httpx.post(f"{URL}/v1/chat/completions", json=body, timeout=120)
    print(f"{what}: {answer.status_code} {answer.text[:150]}")
    return answer.status_code


MODEL = httpx.get(f"{URL}/v1/models", timeout=30).json()["data"][0]["id"]
ask("a short prompt with image A", 1, png((200, 0, 0)))
if ask("images B to E, over the context with the words", 150, *(png((0, 200, n)) for n in (0, 50, 100, 150))) != 400:
    raise RuntimeError("it was not refused: nothing is decided")
failed = ask("a short prompt with image B", 1, png((0, 200, 0))) == 500
ask("the same again", 1, png((0, 200, 0)))
sys.exit("the image of the refused request is missing in the engine" if failed else 0)

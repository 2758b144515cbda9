"""An adapter changes nothing, and nothing says so: python repro.py [URL]; exits 1 then."""

import os
import sys

import httpx

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8593"
sys.excepthook = lambda *e: (sys.__excepthook__(*e), sys.stdout.flush(), os._exit(2))  # 1 is the failure
CLIENT = httpx.Client(timeout=600)
BASE = next(m["id"] for m in CLIENT.get(URL + "/v1/models").json()["data"] if not m.get("parent"))


def first_logprobs(model: str) -> list[tuple[str, float]]:
    """Most likely first tokens of a greedy answer."""
    body = {"model": model, "prompt": "The river and the house", "max_tokens": 1, "temperature": 0, "logprobs": 5}
    answer = CLIENT.post(URL + "/v1/completions", json=body)
    answer.raise_for_status()
    return sorted(answer.json()["choices"][0]["logprobs"]["top_logprobs"][0].items())


found = {model: first_logprobs(model) for model in (BASE, "whole", "text")}
for model, logprobs in found.items():
    print(model, *(f"{token!r} {value:.4f}" for token, value in logprobs))
assert found["whole"] != found[BASE], "the adapter with the other names has no effect, either: nothing is decided"
print("the adapter `text` has no effect" if (same := found["text"] == found[BASE]) else "both adapters have an effect")
sys.exit(1 if same else 0)

"""Answers under a schema with maxLength hold raw control characters: python repro.py [URL [MAXLENGTH]]; exits 1 then.

Without MAXLENGTH the bound is 12; with 0 the schema has no bound.
"""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import httpx

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8591"
BOUND = int(sys.argv[2]) if len(sys.argv) > 2 else 12
sys.excepthook = lambda *e: (sys.__excepthook__(*e), sys.stdout.flush(), os._exit(2))  # 1 is the failure
CLIENT = httpx.Client(timeout=600)
MODEL = CLIENT.get(URL + "/v1/models").json()["data"][0]["id"]
NAME = {"type": "string", **({"maxLength": BOUND} if BOUND else {})}
SCHEMA = {"type": "object", "properties": {"name": NAME}, "required": ["name"], "additionalProperties": False}


def answer(number: int) -> tuple[str, str]:
    """Return finish_reason and text of one answer."""
    body = {
        "model": MODEL, "messages": [{"role": "user", "content": f"Name {number}"}], "max_tokens": 200, "temperature": 0.8,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
    }  # fmt: skip
    choice = CLIENT.post(URL + "/v1/chat/completions", json=body).json()["choices"][0]
    return choice["finish_reason"], choice["message"]["content"]


with ThreadPoolExecutor(4) as threads:
    complete = [text for finish, text in threads.map(answer, range(100)) if finish == "stop"]
bad = []
for text in complete:
    try:
        json.loads(text)
    except ValueError as e:
        bad.append(print(f"{e}: {text!r}"))
print(f"{len(bad)} of {len(complete)} complete answers are no JSON")
sys.exit(2 if not complete else 1 if bad else 0)

"""`watch` beside a foreign client: wrong answers that loadchaos-vllm makes inside a real vLLM.

The client is the `openai` package of vLLM's own environment. It counts what it takes for a success.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.conftest import RunOutput, Server, at, running, skipping
from tests.real.servers import installed, vllm_copy
from tests.warm_command import outside_ci

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]
CLIENT = """
import random, string, sys, threading
from openai import OpenAI

client, ok = OpenAI(api_key="none"), []

def ask(n):
    chance = random.Random(n)
    names = ["".join(chance.choices("bcdfghjklmnpqrstvwxz23456789", k=12)) for _ in range(4)]
    text = " ".join(names)
    asked = [{"role": "user", "content": f"Repeat exactly: {text}"}]
    stream = client.chat.completions.create(
        model="tiny", messages=asked, stream=True, max_tokens=64, temperature=0, stream_options={"include_usage": True}
    )
    got = "".join(c.choices[0].delta.content or "" for c in stream if c.choices)
    ok.append(bool(got))

for first in range(0, 160, 8):
    threads = [threading.Thread(target=ask, args=(first + n,)) for n in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
print(f"{sum(ok)} of 160 answers have a text")
"""

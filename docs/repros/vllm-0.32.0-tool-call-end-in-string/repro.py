"""Demand a tool call whose argument contains the end mark of a call: python repro.py http://127.0.0.1:8527 [TEXT]"""
import json, os, sys
import httpx
URL = sys.argv[1].rstrip("/") if len(sys.argv) > 1 else "http://127.0.0.1:8527"
TEXT = sys.argv[2] if len(sys.argv) > 2 else "before </tool_call> after"
sys.excepthook = lambda *e: (sys.__excepthook__(*e), sys.stdout.flush(), os._exit(2))  # 1 is the failure
PARAMETERS = {"type": "object", "properties": {"text": {"type": "string", "enum": [TEXT]}}, "required": ["text"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "note", "strict": True, "parameters": PARAMETERS}}

def ask(seed, stream):
    """Return the finish reason, the arguments of the first call, and the text beside it."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "tools": [TOOL], "tool_choice": "required",
            "max_tokens": 300, "temperature": 1, "seed": seed, "stream": stream}
    answer = httpx.post(f"{URL}/v1/chat/completions", json=body, timeout=60).raise_for_status()
    parts = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")] if stream else [answer.text]
    choices = [choice for part in parts for choice in json.loads(part)["choices"]]
    messages = [choice["delta" if stream else "message"] for choice in choices]
    calls = [call for message in messages for call in message.get("tool_calls") or [] if not call.get("index")][: None if stream else 1]
    arguments = "".join(call["function"].get("arguments") or "" for call in calls)
    return choices[-1]["finish_reason"], arguments, "".join(message.get("content") or "" for message in messages)

def right(arguments):
    try:
        return json.loads(arguments) == {"text": TEXT}
    except ValueError:
        return False

MODEL = httpx.get(f"{URL}/v1/models", timeout=30).json()["data"][0]["id"]
ended = wrong = 0
for seed in range(6):
    for stream in (True, False):
        reason, arguments, text = ask(seed, stream)
        if reason != "length":  # a model with random weights may write white space up to the limit
            ended, wrong = ended + 1, wrong + (not right(arguments))
            print(f"seed {seed} {'streamed' if stream else 'whole'}: {reason}, arguments {arguments!r}, text {text!r}")
print(f"{wrong} of {ended} answers have wrong arguments")
sys.exit(2 if not ended else 1 if wrong else 0)

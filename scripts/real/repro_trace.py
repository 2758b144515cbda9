#!/usr/bin/env python
"""Make a trace of a reproducer in docs/repros, for `loadchaos replay` and `loadchaos bisect`.

.venv/bin/python scripts/real/repro_trace.py docs/repros/NAME FAILURE_ID OUTDIR
"""

import json
import sys
from pathlib import Path

import orjson

from loadchaos.campaigns.replay import bodies
from loadchaos.campaigns.replay.expected import ExpectedFailure
from loadchaos.profile import request_trace
from loadchaos.profile.request_trace import BODIES, CHAT_PATH, VERSION, Cause, RequestTrace, TraceHeader, TraceSend


def main() -> None:
    """Write trace.jsonl and its bodies."""
    repro, failure, out = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    sends = []
    for i, request in enumerate(json.loads((repro / "requests.json").read_text())):
        name, at_s = bodies.store(out / BODIES, orjson.dumps(request["body"])), request.get("at", 0.0)
        after = tuple(Cause(request=str(j), delay_s=at_s) for j in request.get("after", ()))
        sends.append(
            TraceSend(
                id=str(i),
                at_s=0.0 if after else at_s,
                after=after,
                path=request.get("path", CHAT_PATH),
                body=name,
                stream=bool(request["body"].get("stream")),
                max_tokens=request["body"].get("max_tokens"),
            )
        )
    expected = ExpectedFailure(failure, severity="engine_death").to_json()
    header = TraceHeader(event="trace", version=VERSION, source=str(repro), model="tiny", failure=expected)
    print(request_trace.write(RequestTrace(header, tuple(sends), folder=out), out))


if __name__ == "__main__":
    main()

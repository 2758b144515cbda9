"""Headless Chromium driven through its debugging pipe, without a library."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

LIMIT_S = 60.0


def program() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One tab of one browser."""

    def __init__(self, home: Path, width: int = 1280, height: int = 1000) -> None:
        found = program()
        assert found is not None
        theirs_in, self._out = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in os.pipe())
        self._in, theirs_out = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in os.pipe())

        def pipes() -> None:
            os.dup2(theirs_in, 3)
            os.dup2(theirs_out, 4)

        self.log = home / "chromium.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [found, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                 "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
                 "--disable-dev-shm-usage", f"--user-data-dir={home}/chromium", f"--window-size={width},{height}",
                 "--remote-debugging-pipe"],
                preexec_fn=pipes, pass_fds=(3, 4), stdout=log, stderr=log,
            )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._rest, self._n, self._session = b"", 0, ""
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def close(self) -> None:
        self._process.kill()
        self._process.wait(LIMIT_S)
        os.close(self._in)
        os.close(self._out)

    def ask(self, method: str, **params: Any) -> Any:
        """Send a command and return its result.

        Errors and requests of the page in the meantime are in `errors` and `requests`.
        """
        self._n += 1
        message = {"id": self._n, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._n:
            self._on_event(answer)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + LIMIT_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"Chromium does not answer; see {self.log}"
            data = os.read(self._in, 1 << 20)
            assert data, f"Chromium has ended; see {self.log}"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        parsed: dict[str, Any] = json.loads(message)
        return parsed

    def _on_event(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(event["params"]["exceptionDetails"])[:500])
        elif event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            entry = event["params"]["entry"]
            self.errors.append(f"{entry['text']} {entry.get('url', '')}")
        elif event.get("method") == "Network.requestWillBeSent":
            self.requests.append(event["params"]["request"]["url"])

    # -- what a person does ------------------------------------------------------------------------------------------

    def open(self, url: str) -> None:
        self.ask("Page.navigate", url=url)
        self.until("document.readyState === 'complete'", f"{url} is loaded")

    def js(self, expression: str) -> Any:
        got = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in got, got["exceptionDetails"]
        return got["result"].get("value")

    def until(self, expression: str, what: str, timeout_s: float = LIMIT_S) -> Any:
        """Wait for an expression to be true and return its value.

        A page that is still loading has none.
        """
        deadline = time.monotonic() + timeout_s
        found = f"const v = {expression}; return v instanceof Node || v"
        tried = f"(() => {{ try {{ {found} }} catch (e) {{ return null }} }})()"
        while not (value := self.js(tried)):
            assert time.monotonic() < deadline, f"waited in vain for: {what}\n{self.js('document.body.innerText')}"
            time.sleep(0.1)
        return value

    def click(self, element: str, what: str) -> None:
        box = self.until(
            f"(e => {{ if (!e || e.disabled) return null; e.scrollIntoView({{block: 'center'}}); "
            f"const r = e.getBoundingClientRect(); return r.width && [r.x + r.width / 2, r.y + r.height / 2] }})({element})",
            what,
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def fill(self, element: str, text: str, what: str) -> None:
        self.click(element, what)
        self.js(f"{element}.select()")
        self.ask("Input.insertText", text=text)

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))

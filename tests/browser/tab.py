"""A tab of a headless Chromium, driven over a pipe by the DevTools protocol: open, run, wait, look, hear its log."""

import base64
import json
import os
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import F_DUPFD, fcntl
from itertools import count
from pathlib import Path
from select import select
from time import monotonic
from typing import Any

from tests.browser.chromium import FLAGS, chromium_path

TIMEOUT_S = 60.0
LOOK_S = 0.05
PHONE = (390, 844)
DESK = (1440, 1000)
UNTIMED = tuple(flag for flag in FLAGS if not flag.startswith("--virtual-time"))


class Tab:
    """`log` has what the page and the browser complained about, oldest first."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._ids = count(1)
        self._pending = b""
        self._ready: deque[dict[str, Any]] = deque()
        self.log: list[str] = []
        target = self._call("Target.createTarget", {"url": "about:blank"}, in_tab=False)["targetId"]
        attached = self._call("Target.attachToTarget", {"targetId": target, "flatten": True}, in_tab=False)
        self._session: str = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def open(self, url: str) -> None:
        self._call("Page.navigate", {"url": url})

    def run(self, script: str) -> Any:
        """The value of an expression; a promise is waited for."""
        asked = {"expression": script, "awaitPromise": True, "returnByValue": True}
        found = self._call("Runtime.evaluate", asked)
        assert "exceptionDetails" not in found, f"{script}: {found['exceptionDetails']}"
        return found["result"].get("value")

    def until(self, script: str, what: str) -> Any:
        """Wait until an expression is true."""
        deadline = monotonic() + TIMEOUT_S
        while True:
            found = self.run(f"(() => {{ try {{ return Boolean({script}); }} catch (error) {{ return false; }} }})()")
            if found:
                return found
            page = self.run("document.body.innerText") if monotonic() > deadline else ""
            assert monotonic() < deadline, f"{what}: not within {TIMEOUT_S} s\n{page}\n{self.log}"
            self._listen(LOOK_S)

    def size(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._call("Emulation.setDeviceMetricsOverride", metrics)

    def prefers(self, theme: str) -> None:
        features = [
            {"name": "prefers-color-scheme", "value": theme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self._call("Emulation.setEmulatedMedia", {"features": features})

    def press(self, key: str) -> None:
        codes = {"Enter": (13, "\r"), "Tab": (9, ""), "Escape": (27, "")}
        code, text = codes[key]
        pressed = {"key": key, "code": key, "windowsVirtualKeyCode": code, **({"text": text} if text else {})}
        self._call("Input.dispatchKeyEvent", {"type": "keyDown", **pressed})
        self._call("Input.dispatchKeyEvent", {"type": "keyUp", **pressed})

    def picture(self, path: Path, *, whole: bool = True) -> None:
        taken = self._call("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole})
        path.write_bytes(base64.b64decode(taken["data"]))

    # ---- the protocol

    def _call(self, method: str, parameters: dict[str, Any] | None = None, *, in_tab: bool = True) -> Any:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters or {}}
        if in_tab:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = monotonic() + TIMEOUT_S
        while True:
            for _ in range(len(self._ready)):
                answer = self._ready.popleft()
                if answer.get("id") == number:
                    assert "error" not in answer, f"{method}: {answer['error']}"
                    return answer["result"]
            assert monotonic() < deadline, f"{method}: Chromium does not answer"
            self._listen(LOOK_S)

    def _listen(self, timeout_s: float) -> None:
        if select([self._read], [], [], timeout_s)[0]:
            taken = os.read(self._read, 1 << 20)
            assert taken, "Chromium has ended"
            *whole, self._pending = (self._pending + taken).split(b"\0")
            for message in map(json.loads, whole):
                if "id" in message:
                    self._ready.append(message)
                else:
                    self.log += _complaints(message["method"], message["params"])


def _complaints(method: str, about: dict[str, Any]) -> Iterator[str]:
    match method:
        case "Runtime.exceptionThrown":
            yield json.dumps(about["exceptionDetails"])
        case "Runtime.consoleAPICalled" if about["type"] in ("error", "warning", "assert"):
            yield json.dumps(about["args"])
        case "Log.entryAdded" if about["entry"]["level"] in ("error", "warning"):
            yield f"{about['entry']['source']}: {about['entry']['text']} {about['entry'].get('url', '')}"


def _moved(descriptor: int) -> int:
    """The same file under a number that is out of the way of 3 and 4."""
    moved = fcntl(descriptor, F_DUPFD, 100)
    os.close(descriptor)
    return moved


@contextmanager
def new_tab() -> Iterator[Tab]:
    """Chromium reads commands from its file descriptor 3 and writes to 4."""
    (reads, ours_out), (ours_in, writes) = os.pipe(), os.pipe()
    theirs_in, theirs_out = _moved(reads), _moved(writes)
    with tempfile.TemporaryDirectory(prefix="m4cast-browser-", ignore_cleanup_errors=True) as folder:
        command = [chromium_path(), *UNTIMED, "--remote-debugging-pipe", f"--user-data-dir={folder}/profile"]
        wrapped = ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", *command]
        browser = subprocess.Popen(wrapped, pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Tab(ours_out, ours_in)
        finally:
            browser.terminate()
            browser.wait(TIMEOUT_S)
            os.close(ours_out)
            os.close(ours_in)

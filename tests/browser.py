"""A headless Chromium, driven over the pipes of the DevTools protocol; no other package is needed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

import pytest

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")


def browser_path() -> str | None:
    """Returns the first browser that is installed."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def skip_without_browser() -> None:
    """Skips the test if no browser is installed and SSBROKER_WITHOUT_BROWSER is 1; fails if the variable is not set."""
    if browser_path() is None:
        assert os.environ.get("SSBROKER_WITHOUT_BROWSER") == "1", (
            f"no browser is installed ({', '.join(NAMES)}): install chromium, or set SSBROKER_WITHOUT_BROWSER=1 to skip the tests that need one"
        )
        pytest.skip("SSBROKER_WITHOUT_BROWSER=1")


class Page:
    """An open page."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to_browser: Final = to_browser
        self._from_browser: Final = from_browser
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self._events: deque[dict[str, Any]] = deque()
        self.messages: Final[list[str]] = []
        """Errors, warnings and violations of the content security policy."""
        self.requests: Final[list[str]] = []
        """The addresses that the page asks for, its own included."""

    def attach(self) -> Self:
        """Attaches to the first page of the browser."""
        targets = self("Target.getTargets")["targetInfos"]
        target = next(each["targetId"] for each in targets if each["type"] == "page")
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")
        return self

    def __call__(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Calls a method of the protocol and returns its result."""
        self._number += 1
        call = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            call["sessionId"] = self._session
        os.write(self._to_browser, json.dumps(call).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])
            self._note(answer)

    def open(self, page: Path | str, *, width: int, height: int = 1000, dark: bool = False) -> None:
        """Opens a file or a URL in a window of a size in pixels, and waits until its scripts have run."""
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self("Page.navigate", url=page.as_uri() if isinstance(page, Path) else page)
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._note(self._read())

    def evaluate(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression; waits for a promise."""
        result = self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Waits until a JavaScript condition holds; it is evaluated before each frame that the page draws."""
        self.evaluate(
            f"new Promise((done) => {{ const check = () => {{ if ({condition}) done(true); else requestAnimationFrame(check); }}; check(); }})"
        )

    def click(self, x: float, y: float) -> None:
        """Clicks on a point of the window."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def click_on(self, selector: str) -> None:
        """Scrolls to an element and clicks on its centre."""
        x, y = self.evaluate(
            f"(() => {{ const found = document.querySelector({json.dumps(selector)}); found.scrollIntoView({{block: 'center', behavior: 'instant'}});"
            "const box = found.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        self.click(x, y)

    def press(self, key: str) -> None:
        """Presses a key, such as `ArrowRight`; Enter activates the focused element, and Escape closes a dialog."""
        codes: dict[str, Any] = {
            "Enter": {"windowsVirtualKeyCode": 13, "text": "\r"},
            "Escape": {"windowsVirtualKeyCode": 27},
        }
        code = codes.get(key, {})
        self("Input.dispatchKeyEvent", type="keyDown", key=key, **code)
        self("Input.dispatchKeyEvent", type="keyUp", key=key)

    def type(self, text: str) -> None:
        """Types text into the focused element."""
        self("Input.insertText", text=text)

    def picture(self, *, whole: bool = False) -> bytes:
        """Returns the window, or the whole page, as PNG."""
        options: dict[str, Any] = {"format": "png", "captureBeyondViewport": whole}
        if whole:
            size = self("Page.getLayoutMetrics")["cssContentSize"]
            options["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        return base64.b64decode(self("Page.captureScreenshot", **options)["data"])

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.messages.append(json.dumps(parameters["exceptionDetails"]))
            case "Log.entryAdded":
                self.messages.append(parameters["entry"]["text"])
            case "Runtime.consoleAPICalled":
                self.messages.append(json.dumps(parameters["args"]))
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
        self._events.append(event)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._from_browser, 1 << 16)
            assert part, "the browser has ended"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))


# The browser reads commands from the file descriptor 3 and writes answers to 4.
_LAUNCHER: Final = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(ends[0], 3), os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


@contextmanager
def browser() -> Iterator[Page]:
    """Starts a browser that reaches no host but 127.0.0.1."""
    path = browser_path()
    assert path is not None, "no Chromium is installed"
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        reading, to_browser = os.pipe()
        from_browser, writing = os.pipe()
        command = [
            sys.executable, "-c", _LAUNCHER, str(reading), str(writing),
            path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
            "--remote-debugging-pipe", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", f"--user-data-dir={profile}", "about:blank",
        ]  # fmt: skip
        with subprocess.Popen(command, pass_fds=(reading, writing), stderr=subprocess.DEVNULL) as process:
            os.close(reading)
            os.close(writing)
            try:
                yield Page(to_browser, from_browser).attach()
            finally:
                process.terminate()
                process.wait()
                os.close(to_browser)
                os.close(from_browser)

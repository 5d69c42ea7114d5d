"""Debian's Chromium, headless, driven through its DevTools."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.helpers import PATIENCE_S

PROGRAM = "/usr/bin/chromium"


class Page:
    """One tab.

    Attributes:
        complaints: Errors and warnings of the console, and exceptions, so far.
        asked: The addresses requested so far.
    """

    def __init__(self, socket: Any) -> None:
        self._socket, self._last = socket, 0
        self.complaints: list[str] = []
        self.asked: list[str] = []

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Responses of DevTools."""
        self._last += 1
        self._socket.send(json.dumps({"id": self._last, "method": method, "params": arguments}))
        while (message := json.loads(self._socket.recv(timeout=PATIENCE_S))).get(
            "id"
        ) != self._last:
            self._hear(message)
        assert "error" not in message, message
        return dict(message["result"])

    def _hear(self, message: dict[str, Any]) -> None:
        found = message.get("params", {})
        match message["method"]:
            case "Page.loadEventFired":
                self._is_loaded = True
            case "Network.requestWillBeSent":
                self.asked.append(found["request"]["url"])
            case "Runtime.exceptionThrown" | "Log.entryAdded" | "Runtime.consoleAPICalled":
                self.complaints.append(json.dumps(found)[:500])

    def open(self, path: Path, *, width: int, is_dark: bool = False) -> None:
        """Shows a file in a window of this width, and waits until its charts are drawn."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=800,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}],
        )
        self._is_loaded = False
        self.call("Page.navigate", url=path.as_uri())
        while not self._is_loaded:
            self._hear(json.loads(self._socket.recv(timeout=PATIENCE_S)))

    def run(self, script: str) -> Any:
        """Returns the value of an expression, or the result of a promise."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        return found["result"].get("value")


@contextmanager
def chromium(profile: Path) -> Iterator[Page]:
    """Starts Chromium. Skips the test if it is not installed, which CI forbids."""
    if not os.path.exists(PROGRAM):
        assert not os.environ.get("CI"), f"CI has {PROGRAM}"
        pytest.skip(f"needs {PROGRAM}: apt-get install chromium")
    browser = subprocess.Popen(
        [
            PROGRAM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-extensions",
            "--hide-scrollbars",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            "about:blank",
        ],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        address = (
            next(line for line in browser.stderr if "DevTools listening on " in line)
            .rpartition(" ")[2]
            .strip()
        )
        with connect(address, max_size=None) as socket:
            page = Page(socket)
            targets = page.call("Target.getTargets")["targetInfos"]
            target = next(one["targetId"] for one in targets if one["type"] == "page")
        with connect(
            address.replace(address[address.index("/devtools") :], f"/devtools/page/{target}"),
            max_size=None,
        ) as socket:
            yield Page(socket)
    finally:
        browser.terminate()
        browser.wait(PATIENCE_S)
        browser.stderr.close()

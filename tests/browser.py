"""A headless Chromium through chromedriver's own HTTP interface (W3C WebDriver): no package is
needed for it.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

DRIVER = shutil.which("chromedriver")
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


class Browser:
    """One window. ``js`` runs a function body in the page and returns its value; ``errors`` is what
    the console reported.
    """

    def __init__(self, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        assert DRIVER
        assert CHROMIUM
        # Port 0: chromedriver picks a free one and prints it.
        self._driver = subprocess.Popen(
            [DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._session = ""
        try:
            self._root = f"http://127.0.0.1:{self._port()}"
            arguments = [
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-background-networking",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                f"--window-size={width},{height}",
                *(["--blink-settings=preferredColorScheme=0"] if dark else []),
            ]
            capabilities = {
                "browserName": "chrome",
                "goog:loggingPrefs": {"browser": "ALL"},
                "goog:chromeOptions": {"binary": CHROMIUM, "args": arguments},
            }
            session = self._call(
                "POST", "/session", {"capabilities": {"alwaysMatch": capabilities}}
            )
            self._session = f"/session/{session['sessionId']}"
            self.size(width, height)
            # Phone-wide windows are narrower than Chromium allows a window to be, and colours
            # follow the system: both are emulated.
            self.devtools(
                "Emulation.setEmulatedMedia",
                features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
            )
        except BaseException:
            self.close()
            raise

    def _port(self) -> int:
        assert self._driver.stdout
        for line in self._driver.stdout:
            if "successfully on port" in line:
                return int(line.split("port")[-1].strip(" .\n"))
        raise RuntimeError("chromedriver did not start")

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            self._root + self._session + path,
            method=method,
            headers={"Content-Type": "application/json"},
            data=json.dumps(body).encode() if body is not None else None,
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from None

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def size(self, width: int, height: int) -> None:
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def open(self, address: str) -> None:
        self._call("POST", "/url", {"url": address})

    def js(self, body: str, *arguments: Any) -> Any:
        return self._call("POST", "/execute/sync", {"script": body, "args": list(arguments)})

    def until(self, body: str, *arguments: Any, seconds: float = 60) -> Any:
        """Poll the page until the answer is true."""
        end = time.monotonic() + seconds
        while not (value := self.js(body, *arguments)):
            if time.monotonic() > end:
                raise AssertionError(f"after {seconds} s still not: {body}")
            time.sleep(0.1)
        return value

    def errors(self) -> list[str]:
        """Console messages that are errors or warnings, since the last look."""
        return [
            entry["message"]
            for entry in self._call("POST", "/se/log", {"type": "browser"})
            if entry["level"] in ("SEVERE", "WARNING")
        ]

    def screenshot(self, path: Path, whole: bool = False) -> None:
        if whole:
            self.size(
                self.js("return innerWidth"),
                self.js("return document.documentElement.scrollHeight"),
            )
        path.write_bytes(base64.b64decode(self._call("GET", "/screenshot")))

    def close(self) -> None:
        try:
            if self._session:
                self._call("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.communicate()

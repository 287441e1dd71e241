"""A headless Chromium, spoken to through two pipes (its own protocol, one JSON object between zero bytes)."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BINARY = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page. `evaluate` gives the value of a JavaScript expression."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._in, self._out = os.fdopen(read_fd, "rb"), os.fdopen(write_fd, "wb")
        self._numbers = itertools.count(1)
        self._rest = b""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Page.enable")

    _session = ""

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        while True:
            reply = self._next()
            if reply.get("id") == number:
                assert "error" not in reply, reply
                return dict(reply["result"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._in.fileno(), 1 << 20)
            assert data, "the browser is gone"
            self._rest += data
        one, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(one))

    def open(self, url: str, width: int, height: int) -> None:
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self._call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        result = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, expression: str, timeout_s: float = 60.0) -> None:
        """Until it is true."""
        deadline = time.monotonic() + timeout_s
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, f"never true: {expression}"

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        self._in.close()
        self._out.close()


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own in `folder`."""
    assert BINARY is not None
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    flags = f"--headless=new --no-sandbox --disable-gpu --no-first-run --user-data-dir={folder} --remote-debugging-pipe"
    command = f'exec "{BINARY}" {flags} 3<&{to_read} 4>&{from_write}'
    process = subprocess.Popen(
        ["bash", "-c", command],
        pass_fds=(to_read, from_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    os.close(to_read)
    os.close(from_write)
    page = Browser(from_read, to_write)
    try:
        yield page
    finally:
        page.close()
        os.killpg(process.pid, 9)
        process.wait()

"""The same comparison with `llama-server`: one server, one request, and what it reports of it (see `peer.py`)."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

START_S = 300.0


def server_answer(command: Sequence[str], prompt: str) -> dict[str, Any]:
    """In the shape of `outrider run --json`. command: the server with all flags but its address. Its rate leaves the
    first token out, as ours does."""
    with _running(command) as address:
        body = json.dumps({"prompt": prompt, "cache_prompt": False}).encode()
        request = urllib.request.Request(f"{address}/completion", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as reply:
            return shaped(json.load(reply))


def shaped(reply: dict[str, Any]) -> dict[str, Any]:
    """Counts of drafts are missing where nothing was drafted; rounds are tokens that no draft brought."""
    timings = {"draft_n": 0, "draft_n_accepted": 0, **reply["timings"]}
    timings["rounds"] = timings["predicted_n"] - timings["draft_n_accepted"]
    return {"text": reply["content"], "prompt_tokens": reply["tokens_evaluated"], "timings": timings}


@contextmanager
def _running(command: Sequence[str]) -> Iterator[str]:
    """The server's address, once it can be asked; the server ends with the block."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen([*command, "--host", "127.0.0.1", "--port", str(port)], stdout=log, stderr=log)
        try:
            _wait(server, f"http://127.0.0.1:{port}", log)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait()


def _wait(server: subprocess.Popen[bytes], address: str, log: IO[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urllib.request.urlopen(f"{address}/health").close()
            return
        except urllib.error.URLError:  # not listening yet, or still loading
            time.sleep(0.1)
    log.seek(0)
    sys.exit(f"{server.args!r} does not start:\n{log.read()[-2000:].decode(errors='replace')}")

"""What `outrider run` prints: the text as it comes, or one JSON object; statistics and explanations go to standard error."""

from __future__ import annotations

import sys
from typing import Any

from coordinator.explain import explain
from coordinator.result import summary, to_json
from outrider.config import Config
from outrider.errors import RequestError, WorkerLostError


class Output:
    """Streams text to standard output; a reader that went away closes it, without a traceback."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self.closed = False
        self._ends_with_newline = True

    def write(self, text: str) -> None:
        if self.enabled and not self.closed and text:
            self._ends_with_newline = text.endswith("\n")
            self._put(text)

    def end(self) -> None:
        if self.enabled and not self.closed and not self._ends_with_newline:
            self._put("\n")

    def _put(self, text: str) -> None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            self.closed = True
            sys.stdout = open("/dev/null", "w")  # noqa: SIM115 (so that the exit does not flush to the pipe again)


def report(config: Config, answer: dict[str, Any]) -> int:
    """Print what is left to print; the exit code. Raises RequestError if the request can never be served as asked, and
    WorkerLostError if it failed otherwise."""
    out = Output(enabled=True)
    if config.generation.json:
        out.write(to_json(answer) + "\n")
    elif not config.generation.stream:
        out.write(answer["text"])
        out.end()
    if answer.get("error_code") == "bad_request":
        raise RequestError(answer["error"])
    if answer["finish_reason"] == "error":
        raise WorkerLostError(answer["error"])
    if not config.generation.json:
        print("\n" + summary(answer), file=sys.stderr)
    if config.generation.explain:
        print("\n" + explain(answer), file=sys.stderr)
    return 0

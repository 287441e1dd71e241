"""The process that runs chat templates: `python -m outrider.engine.template_child`, started by `template_process.py`.

Standard input and output are one socket. A request is a line of JSON, [template, values, seconds of processor time]; the
answer is one too, {"text": …} or {"error": …}. The system ends the process where a template takes more time, and refuses it
more memory. It ends by itself when the socket closes.
"""

from __future__ import annotations

import json
import resource
import signal
import sys

from outrider.engine.jinja_sandbox import render_template
from outrider.errors import RequestError

MAX_MEMORY = 1 << 30  # bytes of address space


def main() -> None:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(json.dumps(answer(line)).encode() + b"\n")
        sys.stdout.buffer.flush()


def answer(line: bytes) -> dict[str, str]:
    source, values, cpu_s = json.loads(line)
    # SIGPROF ends the process, also inside one long operation of the interpreter; other processes' load does not count.
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        return {"text": render_template(source, values)}
    except RequestError as error:
        return {"error": str(error)}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    main()

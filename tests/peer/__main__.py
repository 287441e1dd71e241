"""Run llama.cpp's server tests: `python -m tests.peer [--tests DIR] [--engine numpy] [FILE...]`.

DIR is `tools/server/tests` of llama.cpp's source, which is part of llama-cpp-python's source package
(`vendor/llama.cpp`); the environment variable LLAMA_SERVER_TESTS names it, too. The tests need the packages openai,
requests, wget, filelock and aiohttp. Nothing is written there: they run in a copy.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.peer.models import write_pair
from tests.peer.reasons import reason_of

CORE = ("tokenize", "security", "metrics", "speculative", "completion", "chat_completion", "basic")
ROOT = Path(__file__).parents[2]
#: What llama-server itself passes of the seven core files with a random pair, and of test_speculative.
BAR, BAR_SPECULATIVE = 109, 6


@dataclass(frozen=True, slots=True)
class Outcome:
    file: str
    name: str
    passed: bool
    skipped: bool
    message: str


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.peer", description=__doc__)
    parser.add_argument("--tests", default=os.environ.get("LLAMA_SERVER_TESTS"), type=Path)
    parser.add_argument("--engine", default="numpy")
    parser.add_argument("-k", default="", help="as of pytest")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the logs")
    parser.add_argument("files", nargs="*", default=CORE)
    options = parser.parse_args()
    if options.tests is None or not (options.tests / "utils.py").is_file():
        parser.error("--tests must name tools/server/tests of llama.cpp's source")
    folder = Path(tempfile.mkdtemp(prefix="outrider-peer-"))
    try:
        outcomes = run(options.tests, folder, options.engine, options.files, options.k)
    finally:
        print(f"kept: {folder}") if options.keep else shutil.rmtree(folder, ignore_errors=True)
    print(table(outcomes))
    n_passed = sum(outcome.passed for outcome in outcomes)
    return 0 if set(options.files) != set(CORE) or n_passed >= BAR else 1


def run(tests: Path, folder: Path, engine: str, files: list[str], selection: str) -> list[Outcome]:
    """Run the tests of `files` in a copy below `folder`."""
    copy = folder / "tools" / "server" / "tests"
    shutil.copytree(tests, copy, ignore=shutil.ignore_patterns("tmp", "__pycache__"))
    templates = tests.parents[2] / "models" / "templates"
    if templates.is_dir():
        shutil.copytree(templates, folder / "models" / "templates")
    (copy / "tmp").mkdir()
    draft = copy / "tmp" / "stories15M-q4_0.gguf"  # where test_speculative looks for it
    target = write_pair(folder, draft)
    shim = folder / "llama-server"
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tests.peer.shim "$@"\n')
    shim.chmod(0o755)
    environ = {
        **os.environ,
        "LLAMA_SERVER_BIN_PATH": str(shim),
        "PEER_TARGET": str(target),
        "PEER_DRAFT": str(draft),
        "PEER_FOLDER": str(folder),
        "PEER_ENGINE": engine,
        "PYTHONPATH": str(ROOT),
        "PORT": str(free_port()),
    }
    names = [f"unit/test_{name}.py" for name in files]
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", f"--junitxml={report}", "-k", selection, *names]
    subprocess.run(command, cwd=copy, env=environ, stdout=sys.stderr, check=False)
    return outcomes_of(report)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def outcomes_of(report: Path) -> list[Outcome]:
    cases = ElementTree.parse(report).iter("testcase")
    return [_outcome(case) for case in cases]


def _outcome(case: ElementTree.Element) -> Outcome:
    failed = next((child for child in case if child.tag in ("failure", "error")), None)
    skipped = any(child.tag == "skipped" for child in case)
    file = case.get("classname", "").rpartition("test_")[2]
    message = "" if failed is None else " ".join((failed.get("message") or "").split())
    return Outcome(file, case.get("name", ""), failed is None and not skipped, skipped, message)


def table(outcomes: list[Outcome]) -> str:
    """Passed of each file, then every miss with its reason."""
    lines = []
    for file in dict.fromkeys(outcome.file for outcome in outcomes):
        of_file = [outcome for outcome in outcomes if outcome.file == file]
        lines.append(f"{file:<18} {sum(outcome.passed for outcome in of_file):>3} of {len(of_file)}")
    n_passed = sum(outcome.passed for outcome in outcomes)
    lines += [f"{'all':<18} {n_passed:>3} of {len(outcomes)} (llama-server with random models: {BAR} of 148)", ""]
    missed = [outcome for outcome in outcomes if not outcome.passed]
    reasons = Counter(reason_of(outcome.name, outcome.message, outcome.skipped) for outcome in missed)
    lines += [f"{n:>3} × {reason}" for reason, n in reasons.most_common()] + [""]
    lines += [f"{o.file}: {o.name}: {reason_of(o.name, o.message, o.skipped)}: {o.message[:110]}" for o in missed]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

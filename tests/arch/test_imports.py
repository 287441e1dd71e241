"""Who may import whom. The rules keep the parts apart that run in different processes, and the core free of the world."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROCESSES = ("coordinator", "draft_worker", "target_worker")
SOURCES = [path for package in ("outrider", *PROCESSES) for path in sorted((ROOT / package).rglob("*.py"))]

#: Library -> the only file, or folder, that imports it.
OWNERS = {
    "zmq": "outrider/wire/transport",
    "msgpack": "outrider/wire/codec.py",
    "gguf": "outrider/engine/gguf_file.py",
    "llama_cpp": "outrider/engine/llama_cpp.py",
}
#: Packages of `outrider` that do not know one another.
SIBLINGS = ("wire", "engine", "decoding")
WORLD = {"time", "random", "secrets", "threading", "socket", "asyncio", "multiprocessing", "subprocess", "datetime"}
PURE = (
    "outrider/decoding/",
    "outrider/history.py",
    "coordinator/session.py",
    "coordinator/schedule.py",
    "coordinator/text.py",
)


def imports(path: Path) -> Iterator[str]:
    """Full names of all that a file imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def breaches(rule: str) -> list[str]:
    found = []
    for path in SOURCES:
        for imported in imports(path):
            if RULES[rule](name(path), imported):
                found.append(f"{name(path)} imports {imported}")
    return found


def _process_knows_process(file: str, imported: str) -> bool:
    own, other = file.split("/")[0], imported.split(".")[0]
    return own in PROCESSES and other in PROCESSES and own != other


def _shared_knows_process(file: str, imported: str) -> bool:
    # A worker process loads its own package by name; nothing else may.
    return file.startswith("outrider/") and imported.split(".")[0] in PROCESSES


def _library_elsewhere(file: str, imported: str) -> bool:
    owner = OWNERS.get(imported.split(".")[0])
    return owner is not None and not file.startswith(owner)


def _sibling(file: str, imported: str) -> bool:
    parts, target = file.split("/"), imported.split(".")
    return (
        parts[0] == target[0] == "outrider"
        and len(target) > 1
        and parts[1] in SIBLINGS
        and (target[1] in SIBLINGS and target[1] != parts[1])
    )


def _impure(file: str, imported: str) -> bool:
    return file.startswith(PURE) and imported.split(".")[0] in WORLD


def _coordinator_opens_model(file: str, imported: str) -> bool:
    return (
        file.startswith("coordinator/")
        and imported.startswith("outrider.engine.")
        and imported.split(".")[2] not in ("options",)
    )


RULES = {
    "process packages do not import one another": _process_knows_process,
    "outrider imports no process package": _shared_knows_process,
    "each library has one owner": _library_elsewhere,
    "wire, engine and decoding do not import one another": _sibling,
    "the pure core imports no clock, randomness, thread or socket": _impure,
    "the coordinator opens no model": _coordinator_opens_model,
}


@pytest.mark.parametrize("rule", RULES)
def test_rule(rule: str) -> None:
    assert breaches(rule) == []


@pytest.mark.parametrize("word", ["pickle", "marshal", "recv_pyobj", "send_pyobj", "eval(", "shell=True"])
def test_nothing_turns_bytes_into_code(word: str) -> None:
    assert [name(path) for path in SOURCES if word in path.read_text()] == []


def test_no_security_check_is_an_assert() -> None:
    """`python -O` drops asserts: the files that judge foreign bytes raise instead."""
    for file in ("outrider/wire/codec.py", "outrider/engine/gguf_header.py"):
        tree = ast.parse((ROOT / file).read_text())
        assert not [node for node in ast.walk(tree) if isinstance(node, ast.Assert)], file

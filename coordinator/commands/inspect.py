"""`outrider inspect FILE`: what a model file is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from coordinator.commands.reading import read_files
from coordinator.commands.units import bytes_text, count_text
from outrider.errors import ModelFileError


def execute(path: str, *, as_json: bool) -> int:
    """Print the facts of one file; the exit code. Raises ModelFileError if it is no model file."""
    (facts,) = read_files([path])["files"]
    if "error" in facts:
        raise ModelFileError(facts["error"])
    print(json.dumps(facts) if as_json else "\n".join(f"{name + ':':<15}{text}" for name, text in lines(facts)))
    return 0


def lines(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "file", f"{facts['path']} ({bytes_text(facts['n_bytes'])})"
    yield "model", f"{facts['name'] or 'no name'}, architecture {facts['architecture'] or 'not named'}"
    yield "parameters", f"{count_text(facts['n_params'])} in {facts['n_layers']} layers of width {facts['n_embd']}"
    for kind, (count, size) in facts["weights"].items():
        yield "weights", f"{kind}: {count} tensors, {bytes_text(size)}"
    yield "context", f"{facts['n_ctx_train']} positions{cache_text(facts)}"
    yield "vocabulary", f"{facts['n_vocab']} tokens, tokenizer {facts['tokenizer'] or 'none'}"
    yield "chat template", "yes" if facts["has_chat_template"] else "no"
    yield "can draft as", ", ".join(facts["speculates"]) or "nothing"
    yield "engine numpy", facts["numpy"] or "yes"
    yield "engine llama", facts["llama"] or "nothing speaks against it"


def cache_text(facts: dict[str, Any]) -> str:
    """Cache of one position, in the f16 that engine llama keeps by default."""
    return f", {bytes_text(2 * facts['kv_values'])} of f16 cache each" if facts["kv_values"] else ""

"""Texts that are kept in files become the text of the key that they stand for, so that only text travels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from outrider.config.merge import DEFAULT, Merged, get
from outrider.errors import ConfigError

#: Key of the file -> key of its text.
GRAMMAR_FILES = {
    "generation.grammar_file": "generation.grammar",
    "generation.json_schema_file": "generation.json_schema",
    "generation.prediction_file": "generation.prediction",
}


def read_grammar_files(merged: Merged) -> Merged:
    """Raises ConfigError, naming the key and the file, for one that cannot be read, is empty or is no UTF-8."""
    generation, origins = merged.config.generation, dict(merged.origins)
    for key, text_key in GRAMMAR_FILES.items():
        path = get(merged.config, key)
        if path:
            names = {key.partition(".")[2]: "", text_key.partition(".")[2]: _read(key, Path(path))}
            generation = msgspec.structs.replace(generation, **names)
            origins[text_key], origins[key] = origins[key], DEFAULT
    return replace(merged, config=msgspec.structs.replace(merged.config, generation=generation), origins=origins)


def _read(key: str, path: Path) -> str:
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise ConfigError(f"{key}: {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{key}: {path}: byte {error.start} is not UTF-8; convert the file") from None
    if not text.strip():
        raise ConfigError(f"{key}: {path}: the file is empty")
    return text

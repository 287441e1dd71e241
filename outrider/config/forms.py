"""Forms of text that single options have of their own: CPU lists, biases, layer counts, types of speculation.

Each function reads one text and raises ValueError (or ConfigError with its own words) where it cannot.
"""

from __future__ import annotations

import math
import re

from outrider.config.schema import MAX_CPU
from outrider.config.spec_types import types_from_names
from outrider.config.values import parse_float, parse_int

_BIAS = re.compile(r"\s*([0-9]+)\s*([+-])(.*)", re.DOTALL)
_CPUS = re.compile(r"([0-9]+)(?:-([0-9]+))?")
#: Bounds of a bias: beyond them a token is forced or forbidden anyway, and infinity adds up to nothing sensible.
MAX_BIAS = 1e9


def cpu_list(text: str) -> list[int]:
    """`0-3,8`: CPU numbers and ranges, as `taskset -c` reads them; the result is sorted. Empty text: no pinning."""
    cpus: set[int] = set()
    for part in filter(None, (item.strip() for item in text.split(","))):
        match = _CPUS.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last <= MAX_CPU:
            raise ValueError("not a list of CPU numbers such as 0-3,8")
        cpus.update(range(first, last + 1))
    return sorted(cpus)


def gpu_layers(text: str) -> int:
    """A number of layers, `auto` (-1) or `all` (-2)."""
    return {"auto": -1, "all": -2}.get(text.strip()) or parse_int(text)


def flash_attention(text: str) -> str:
    """`on`, `off`, `auto`, and the other words that llama.cpp takes for them."""
    words = {"enabled": "on", "true": "on", "1": "on", "disabled": "off", "false": "off", "0": "off", "-1": "auto"}
    return words.get(text, text)


def logit_bias(text: str) -> list[tuple[int, float]]:
    """`15043+1.5` or `15043-inf`: one token id and what is added to its logit."""
    match = _BIAS.fullmatch(text)
    if not match:
        raise ValueError("not of the form TOKEN+BIAS or TOKEN-BIAS")
    bias = parse_float(match[3]) * (-1.0 if match[2] == "-" else 1.0)
    if math.isnan(bias):
        raise ValueError("not a number")
    return [(int(match[1]), max(-MAX_BIAS, min(bias, MAX_BIAS)))]


def stop_string(text: str) -> list[str]:
    """One stop string, exactly as given."""
    return [text]


def spec_types(text: str) -> list[str]:
    """A comma list of types of speculation; names are exact."""
    return types_from_names(text.split(","))


def synthetic_length(text: str) -> float:
    """A mean length; -1 is refused, since llama.cpp keeps it for "not given"."""
    value = parse_float(text)
    if value == -1.0:
        raise ValueError("-1 is not a length")
    return value


def synthetic_rates(text: str) -> list[float]:
    """A comma list of probabilities, none of them empty."""
    return [parse_float(item) for item in text.split(",")]

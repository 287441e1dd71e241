"""Numbers as people read them."""

from __future__ import annotations


def bytes_text(n: float) -> str:
    """`n` bytes in powers of 1024, three digits."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if n < 1024:
            return f"{_three(n)} {unit}"
        n /= 1024
    return f"{_three(n)} TiB"


def count_text(n: float) -> str:
    """`n` in thousands, three digits."""
    for unit in ("", " thousand", " million"):
        if n < 1000:
            return f"{_three(n)}{unit}"
        n /= 1000
    return f"{_three(n)} billion"


def _three(n: float) -> str:
    return f"{n:.0f}" if n >= 100 else f"{n:.3g}"

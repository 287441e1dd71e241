"""A rolling hash of a token prefix: how coordinator and worker find out that they speak of the same text.

The tokens t₁…tₙ are read as a polynomial over the integers modulo the Mersenne prime p = 2⁶¹ − 1:

    h₀ = 1        hᵢ = (hᵢ₋₁ · BASE + tᵢ + 1) mod p

so `extend(extend(h, a), b) == extend(h, a + b)`. Two different texts of n tokens collide for at most n of the p
possible bases (Karp and Rabin 1987): four in 10¹³ at a million tokens. It guards against mistakes, not against
forgers: a peer that lies about its own session gains nothing by it.
"""

from __future__ import annotations

from collections.abc import Iterable

MODULUS = 2**61 - 1
#: Drawn once at random. It is part of the protocol, like `EMPTY`.
BASE = 0xCB34D77FC9991FD
#: Hash of no tokens.
EMPTY = 1


def extend(h: int, tokens: Iterable[int]) -> int:
    """Hash of a prefix with hash `h` (0 ≤ h < 2⁶¹) followed by `tokens` (0 ≤ id < 2³¹)."""
    return (hashes(h, tokens) or [h])[-1]


def hashes(h: int, tokens: Iterable[int]) -> list[int]:
    """The hashes after each of the tokens; constant work per token."""
    after: list[int] = []
    for token in tokens:
        # The + 1 makes leading zeros count: [0] and [0, 0] differ even after an empty prefix.
        h = (h * BASE + token + 1) % MODULUS
        after.append(h)
    return after

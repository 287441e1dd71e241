"""Recorded rounds of real models against played ones: equal, or parting where the numbers are too close to call."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from tests.golden.model_loop import Round
from tests.golden.runner import NOTE, first_differences

#: A target's choice with a smaller gap between the two best logits may fall either way.
CLOSE_MARGIN = 0.05

#: So may a draw whose probability is as near to p_min, or whose two best are as near to each other.
CLOSE_PROBABILITY = 0.01

#: Probabilities further apart are not the same. (Several sequences in one cache are rounded otherwise than alone.)
_SAME_PROBABILITY = 0.08

_FIELDS = ("step", "seq", "n_past", "id_last", "n_max", "draft", "impl", "ids", "n_past_after")

Row = dict[str, Any]
Draw = list[float]  # id, probability, that of the second best


def compare_rounds(recorded: list[Row], played: list[Round], n_max: int, p_min: float) -> list[str]:
    """What differs, up to the first round that parts; only a note where they part because it is too close to call.

    `n_max` and `p_min` are the draft model's."""
    rows = with_draws(recorded, n_max, p_min)
    for i, (row, ours) in enumerate(zip(rows, played, strict=False)):
        differences = _differences(i, row, ours)
        if differences:
            close = _is_close(row, ours, p_min)
            return [f"{NOTE}too close to call, comparison ends: {differences[0]}"] if close else differences
    return first_differences("number of rounds", len(rows), len(played))


def with_draws(recorded: list[Row], n_max: int, p_min: float) -> list[Row]:
    """The rounds, each with the draws of its own sequence in `top`.

    Those of several sequences stand in a row per step: position by position, sequence by sequence."""
    rows = [row for row in recorded if "draft" in row]
    for step in recorded:
        if "top_all" in step:
            _share_out(step["top_all"], [row for row in rows if row["step"] == step["step"]], n_max, p_min)
    return rows


def _share_out(draws: list[Draw], rows: list[Row], n_max: int, p_min: float) -> None:
    for row in rows:
        row["top"] = []
    coming = iter(draws)
    drafting = [row for row in rows if row["impl"] in ("", "draft-simple")]
    while drafting:
        for row in drafting:
            row["top"] += [draw for draw in [next(coming, None)] if draw is not None]
        drafting = [row for row in drafting if _goes_on(row, len(drafting[0]["top"]), n_max, p_min)]


def _goes_on(row: Row, n_draws: int, n_max: int, p_min: float) -> bool:
    limit = min(n_max, row["n_max"]) if row["n_max"] > 0 else n_max
    return len(row["top"]) == n_draws and row["top"][-1][1] >= p_min and n_draws < limit


def _best(ours: Round) -> list[Draw]:
    return [[best[0], best[1], second[1]] for best, second, *_ in ours.draws]


def _differences(i: int, row: Row, ours: Round) -> list[str]:
    lines = [
        line
        for name in _FIELDS
        if name in row
        for line in first_differences(f"rounds[{i}].{name}", row[name], getattr(ours, name))
    ]
    theirs, mine = row["top"], _best(ours)
    ids = first_differences(f"rounds[{i}].draws", _ids(theirs), _ids(mine))
    far = [
        f"rounds[{i}].draws[{k}]: expected probability {a[1]}, got {b[1]}"
        for k, (a, b) in enumerate(zip(theirs, mine, strict=False))
        if abs(a[1] - b[1]) > _SAME_PROBABILITY
    ]
    return lines + (ids or far)


def _ids(draws: list[Draw]) -> list[float]:
    return [draw[0] for draw in draws]


def _is_close(row: Row, ours: Round, p_min: float) -> bool:
    """Could the choice at which the two part have fallen either way?"""
    theirs, mine = row["top"], _best(ours)
    at = _parting(_ids(theirs), _ids(mine))
    if at is not None:
        return any(_is_close_draw(draw, p_min) for draws in (theirs, mine) for draw in draws[max(at - 1, 0) : at + 1])
    at = _parting(row["ids"], ours.ids)
    return row["draft"] == ours.draft and at is not None and min(ours.margins[at : at + 1], default=1) < CLOSE_MARGIN


def _parting(a: list[Any], b: list[Any]) -> int | None:
    return next((i for i, (x, y) in enumerate(zip_longest(a, b)) if x != y), None)


def _is_close_draw(draw: Draw, p_min: float) -> bool:
    return abs(draw[1] - p_min) < CLOSE_PROBABILITY or draw[1] - draw[2] < CLOSE_PROBABILITY

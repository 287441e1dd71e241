"""The recorded facts of real models: drafts, probabilities and acceptance, round by round."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.golden.models import close_engines
from tests.golden.runner import check_file, golden_files

DATA = Path(__file__).parents[1] / "data" / "golden"

#: A few of each kind in the default run; all of them take minutes.
FEW = ("short_ctx_1", "chain_mapk_draft_2", "nmax0_mixed", "smol_self_list_nmax3_pmin0_nmin2")
FILES = [path for topic in ("draft_simple", "draft_chain") for path in golden_files(DATA / topic)]


@pytest.fixture(scope="module", autouse=True)
def engines() -> Iterator[None]:
    yield
    close_engines()


def marks(path: Path) -> list[pytest.MarkDecorator]:
    return [pytest.mark.model] if path.stem in FEW else [pytest.mark.model, pytest.mark.nightly]


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem, marks=marks(path)) for path in FILES])
def test_recorded_rounds(path: Path) -> None:
    outcome = check_file(path)
    if outcome.skipped is not None:
        pytest.skip(outcome.skipped)
    assert outcome.differences == ()

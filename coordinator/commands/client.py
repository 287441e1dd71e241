"""`outrider run --connect`: give one prompt to a coordinator that runs already."""

from __future__ import annotations

"""Where log lines go: standard error, or the file of the configuration."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.config.schema import Log

_FORMAT = "%(asctime)s %(name)s[%(process)d] %(levelname)s %(message)s"


def set_up_log(config: Log, level: int = logging.WARNING) -> None:
    """Log from `level` on (everything with `verbose`). Raises ConfigError if the file cannot be written."""
    sink: dict[str, Any] = {"filename": config.file} if config.file else {"stream": sys.stderr}
    try:
        logging.basicConfig(level=logging.DEBUG if config.verbose else level, format=_FORMAT, force=True, **sink)
    except OSError as error:
        raise ConfigError(f"log.file: {config.file} cannot be written: {error.strerror}") from None

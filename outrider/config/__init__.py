"""Configuration: one table of options, four sources, one merged and validated value.

options.py   the table: key, flags, meaning          schema.py   the keys as typed structs with ranges and defaults
sources.py   TOML file and environment               argv.py     command line
merge.py     precedence and origins                  settle.py   what keys mean together: errors and warnings
load.py      whole configurations, JSON and back     render.py   --print-config and docs/configuration.md
request.py   what one request may change             convert.py  the same for speculators and engines
"""

from outrider.config.convert import engine_options, speculator_params
from outrider.config.load import from_json, load, load_worker_config, new_seed, to_json
from outrider.config.merge import Merged, Origin, Setting, get
from outrider.config.request import apply_request, request_options
from outrider.config.schema import Config, Draft, Sampling, Speculative, Target, Worker
from outrider.config.settle import has_draft_worker, why_off

__all__ = [
    "Config",
    "Draft",
    "Merged",
    "Origin",
    "Sampling",
    "Setting",
    "Speculative",
    "Target",
    "Worker",
    "apply_request",
    "engine_options",
    "from_json",
    "get",
    "has_draft_worker",
    "load",
    "load_worker_config",
    "new_seed",
    "request_options",
    "speculator_params",
    "to_json",
    "why_off",
]

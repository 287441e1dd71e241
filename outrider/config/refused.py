"""Names that are known and refused, each with its reason: nothing that a user asks for is ignored."""

from __future__ import annotations

_NO_SAMPLER = "not supported; the samplers are --temp, --top-k, --top-p, --min-p, --typical and the penalties"
_NO_ORDER = "the order of the samplers is fixed: bias, penalties, top_k, typical_p, top_p, min_p, temp"
_NO_DOWNLOAD = "Outrider downloads nothing; give the path of a GGUF file"
_NO_MASK = "use --cpus or --cpus-draft with a list such as 0-3,8"
_NO_BATCH_THREADS = "one number of threads serves both; use --threads or --threads-draft"
_NO_OVERRIDE = "placing single tensors is not supported; use --n-gpu-layers and --device"

#: Sampler options of llama.cpp that would change the text, as keys of [sampling]; the flags are made from them.
_SAMPLERS = {
    **dict.fromkeys(
        (
            *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breaker"),
            *("xtc_probability", "xtc_threshold", "mirostat", "mirostat_lr", "mirostat_ent", "mirostat_tau"),
            *("mirostat_eta", "dynatemp_range", "dynatemp_exp", "dynatemp_exponent", "top_nsigma", "top_n_sigma"),
            *("adaptive_target", "adaptive_decay"),
        ),
        _NO_SAMPLER,
    ),
    **dict.fromkeys(("samplers", "sampler_seq", "sampling_seq"), _NO_ORDER),
}

REFUSED_FLAGS: dict[str, str] = {
    **{"--" + name.replace("_", "-"): reason for name, reason in _SAMPLERS.items()},
    **dict.fromkeys(
        ("--draft", "--draft-n", "--draft-max"), "retired: use --spec-draft-n-max or --spec-ngram-mod-n-max"
    ),
    **dict.fromkeys(("--draft-min", "--draft-n-min"), "retired: use --spec-draft-n-min or --spec-ngram-mod-n-min"),
    **dict.fromkeys(("--draft-p-split", "--spec-draft-p-split"), "retired: no speculative decoder reads it any more"),
    **{
        f"--spec-ngram-{name}": f"retired: each type has its own, such as --spec-ngram-simple-{name}"
        for name in ("size-n", "size-m", "min-hits")
    },
    **dict.fromkeys(("-r", "--reverse-prompt"), "use --stop"),
    **dict.fromkeys(("-cnv", "--conversation", "-i", "--interactive"), "use --chat; one run answers one prompt"),
    **dict.fromkeys(("-e", "--escape"), "prompts are taken as they are; use --file for newlines"),
    **dict.fromkeys(
        ("-hf", "-hfr", "--hf-repo", "-hff", "--hf-file", "-mu", "--model-url", "-hfd", "-hfrd", "--hf-repo-draft"),
        _NO_DOWNLOAD,
    ),
    **dict.fromkeys(
        ("-C", "--cpu-mask", "-Cr", "--cpu-range", "-Cd", "--cpu-mask-draft", "-Crd", "--cpu-range-draft"), _NO_MASK
    ),
    **dict.fromkeys(("-tb", "--threads-batch", "-tbd", "--threads-batch-draft"), _NO_BATCH_THREADS),
    **dict.fromkeys(("-ot", "--override-tensor", "-otd", "--override-tensor-draft"), _NO_OVERRIDE),
    **dict.fromkeys(("--spec-draft-backend-sampling",), "a draft is sampled in the draft worker, never in the backend"),
}

REFUSED_KEYS: dict[str, str] = {
    **{f"sampling.{name}": reason for name, reason in _SAMPLERS.items()},
    **{
        f"sampling.{name}": f"use generation.{name}"
        for name in ("grammar", "grammar_file", "json_schema", "json_schema_file")
    },
    "speculative.p_split": "retired: no speculative decoder reads it any more",
    "speculative.draft_max": "use speculative.n_max",
    "speculative.draft_min": "use speculative.n_min",
    "speculative.type": "use speculative.types, a list",
    "draft.n_max": "use speculative.n_max",
    "draft.n_min": "use speculative.n_min",
    "draft.p_min": "use speculative.p_min",
}

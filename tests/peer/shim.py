"""Takes llama-server's flags and becomes `outrider serve`, with the tiny pair in place of every model."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

#: Flags without a value that mean nothing here, or what we always do.
_SWITCHES = frozenset(
    """--offline --cont-batching --embedding --reranking --jinja --no-jinja --swa-full --no-mmproj --verbose
    --backend_sampling --no-models-autoload --ui-mcp-proxy""".split()  # noqa: SIM905
)
#: Flags with a value that mean nothing here.
_IGNORED = frozenset(
    """--model --hf-repo --hf-file --model-url --ubatch-size --pooling --n-gpu-layers -fa -ctk -ctv --reasoning
    --reasoning-format --cache-ram --threads --media-path --tools""".split()  # noqa: SIM905
)
_PASSED = frozenset(
    """--host --port --temp --seed --batch-size --alias --tags --n-predict --spec-type --spec-draft-n-max
    --spec-draft-n-min --spec-synth-rates --spec-synth-len --chat-template-file --cors-origins""".split()  # noqa: SIM905
)
#: Flags with a value that are translated one by one.
_TRANSLATED = frozenset("--parallel --ctx-size --api-key --chat-template --model-draft".split())  # noqa: SIM905

#: llama.cpp's names of chat templates that its tests use.
_TEMPLATES = {
    "llama3": (
        "{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n"
        "{{ message.content | trim }}<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
    ),
    "command-r": (
        "{% for message in messages %}<|START_OF_TURN_TOKEN|>"
        "<|{% if message.role == 'assistant' %}CHATBOT{% else %}{{ message.role | upper }}{% endif %}_TOKEN|>"
        "{{ message.content | trim }}<|END_OF_TURN_TOKEN|>{% endfor %}"
        "{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}"
    ),
}


def translate(arguments: Sequence[str], target: str, draft: str, folder: Path) -> list[str]:
    """The arguments of `outrider serve`. Files that it needs are written to `folder`."""
    given = _parse(arguments)
    flags = ["-m", target, "--schedule", "lockstep"]  # the controller may leave out the drafts that the tests count
    n_seq = int(given.get("--parallel", "1"))
    n_ctx = int(given.get("--ctx-size", "4096"))
    per_sequence = n_ctx if "--kv-unified" in given else n_ctx // n_seq
    flags += ["--parallel", str(n_seq), "--ctx-size", str(per_sequence)]
    flags += [text for flag in _PASSED & given.keys() for text in (flag, given[flag])]
    flags += ["-md", draft] if "--model-draft" in given else []
    flags += ["--slots" if "--slots" in given else "--no-slots"]
    flags += ["--metrics" if "--metrics" in given else "--no-metrics"]
    flags += ["--no-ui"] if "--no-ui" in given else []
    flags += ["--context-shift"] if "--context-shift" in given else []
    flags += ["--cors-origins", "*"] if "--cors-origins" not in given else []
    if "--verbose" in arguments:
        flags += ["--verbose"]
    if "--api-key" in given:
        flags += ["--api-key-file", _written(folder / "keys", given["--api-key"])]
    if (name := given.get("--chat-template", "chatml")) != "chatml":
        flags += ["--chat-template-file", _written(folder / "template.jinja", _TEMPLATES.get(name, name))]
    return flags


def _parse(arguments: Sequence[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    rest = iter(arguments)
    for flag in rest:
        if flag in _SWITCHES:
            continue
        takes_value = flag in _PASSED | _IGNORED | _TRANSLATED
        given[flag] = next(rest) if takes_value else ""
    return given


def _written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def main() -> None:
    target, draft = os.environ["PEER_TARGET"], os.environ["PEER_DRAFT"]
    folder = Path(tempfile.mkdtemp(dir=os.environ["PEER_FOLDER"]))
    flags = translate(sys.argv[1:], target, draft, folder)
    engine = ["--engine", os.environ.get("PEER_ENGINE", "numpy")]
    os.execv(sys.executable, [sys.executable, "-m", "coordinator.cli", "serve", *engine, *flags])


if __name__ == "__main__":
    main()

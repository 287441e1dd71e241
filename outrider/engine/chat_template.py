"""Chat messages to text by the Jinja template that a model file brings; what the tokenizers of all engines share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property

from outrider.engine.template_process import TemplateProcess
from outrider.errors import RequestError
from outrider.types import VocabFacts

MAX_SOURCE = 1 << 20  # characters


class ChatRenderer(ABC):
    """A tokenizer's part that renders chat messages. Its subclasses have the vocabulary."""

    vocab: VocabFacts
    chat_template: str | None = None  # Jinja source
    suppressed: Sequence[int] = ()

    @cached_property
    def templates(self) -> TemplateProcess:
        """Runs the template. A process of its own, started when it is first used."""
        return TemplateProcess()

    @abstractmethod
    def shown(self, token: int) -> str:
        """How a chat template writes this token; empty for -1."""

    def render_chat(
        self,
        messages: Sequence[tuple[str, str]],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """As the contract says; `variables` cannot replace those that every template has.

        Where the tokenizer adds BOS and EOS by itself, the template's own at the ends are left out, so that a prompt
        never has them twice. Raises RequestError if there is no template, or it is too long, too slow, faulty, or refuses
        these messages.
        """
        source, vocab = self.chat_template, self.vocab
        if source is None:
            raise RequestError("this model has no chat template: send plain text instead of chat messages")
        if len(source) > MAX_SOURCE:
            raise RequestError(f"the model's chat template has {len(source)} characters, the limit is {MAX_SOURCE}")
        bos, eos = self.shown(vocab.bos), self.shown(vocab.eos)
        values = {
            **(variables or {}),
            "messages": [{"role": role, "content": content} for role, content in messages],
            "add_generation_prompt": add_generation_prompt,
            "bos_token": bos,
            "eos_token": eos,
        }
        text = self.templates.render(source, values)
        text = text.removeprefix(bos) if vocab.add_bos else text
        return text.removesuffix(eos) if vocab.add_eos else text

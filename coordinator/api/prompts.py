"""From what a client sent to prompts in tokens: texts, chat messages, biases. The target tokenizes and renders."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.api.bridge import Bridge
from coordinator.api.errors import ApiError, bad_field
from coordinator.api.requests import MAX_BIASES, Chat, Message, Prediction, Template
from outrider.types import MAX_TOKENS, ChatMessage, LogitBias
from outrider.wire.messages import Detokenize, RenderChat, Tokenize, TokenizeResult

MAX_PROMPTS = 64
MAX_PROMPT_CHARS = 1 << 22
#: What `false` stands for in a bias: never.
NEVER = -1e9

#: llama.cpp's: parts of a message stand on lines of their own, parts of a beginning are paragraphs.
_BETWEEN_PARTS = "\n"
_BETWEEN_PREFIX_PARTS = "\n\n"


@dataclass(frozen=True, slots=True)
class Prompt:
    """`text` is what was tokenized, where it was text."""

    tokens: list[int]
    text: str


class Prompts:
    """Asks the target through the bridge. All methods raise ApiError."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge

    async def tokenize(
        self, text: str, *, add_special: bool, parse_special: bool = True, with_pieces: bool = False
    ) -> TokenizeResult:
        if len(text) > MAX_PROMPT_CHARS:
            raise ApiError(413, f"a text has more than {MAX_PROMPT_CHARS} characters")
        result: TokenizeResult = await self._bridge.ask_target(
            lambda inc, number: Tokenize(inc, number, text, [], add_special, parse_special, with_pieces)
        )
        return result

    async def detokenize(self, tokens: Sequence[int], *, special: bool) -> str:
        result = await self._bridge.ask_target(lambda inc, number: Detokenize(inc, number, list(tokens), special))
        return str(result.text)

    async def of_completion(self, prompt: Any) -> tuple[list[Prompt], bool]:
        """The prompts of a completion, and whether several were asked for."""
        if isinstance(prompt, list) and prompt and all(isinstance(part, list | dict | str) for part in prompt):
            if len(prompt) > MAX_PROMPTS:
                raise bad_field("prompt", f"at most {MAX_PROMPTS} prompts")
            return list(await asyncio.gather(*(self._one(part) for part in prompt))), True
        return [await self._one(prompt)], False

    async def _one(self, prompt: Any) -> Prompt:
        if isinstance(prompt, dict):
            prompt = _text_of(prompt)
        if isinstance(prompt, str):
            result = await self.tokenize(prompt, add_special=True)
            return Prompt(result.tokens, prompt)
        if not isinstance(prompt, list):
            raise bad_field("prompt", f"a text, tokens, or a list of these is needed, not {type(prompt).__name__}")
        return Prompt(await self._mixed(prompt), "")

    async def _mixed(self, parts: list[Any]) -> list[int]:
        """Tokens and texts in one prompt."""
        if len(parts) > MAX_TOKENS:
            raise bad_field("prompt", f"more than {MAX_TOKENS} parts")
        tokens: list[int] = []
        for i, part in enumerate(parts):
            if isinstance(part, str):
                tokens += (await self.tokenize(part, add_special=i == 0)).tokens
            elif type(part) is int and 0 <= part < 2**31:
                tokens.append(part)
            else:
                raise bad_field("prompt", "a list holds texts and token ids")
        return tokens

    async def of_chat(self, body: Chat) -> Prompt:
        text = await self.render(body)
        return Prompt((await self.tokenize(text, add_special=True)).tokens, text)

    async def render(self, body: Chat | Template) -> str:
        """The conversation in the target's template. A last message of the assistant is gone on with."""
        messages, beginning = body.messages, ""
        goes_on = _goes_on(body)
        if goes_on:
            beginning, messages = _content(messages[-1], _BETWEEN_PREFIX_PARTS), messages[:-1]
        add_prompt = goes_on or body.add_generation_prompt is not False
        variables = json.dumps(body.chat_template_kwargs) if body.chat_template_kwargs else ""
        if len(variables) > 4096:
            raise bad_field("chat_template_kwargs", "is longer than 4096 characters")
        rows = [ChatMessage(message.role, _content(message, _BETWEEN_PARTS)) for message in messages]
        if not rows:
            raise bad_field("messages", "a message before the assistant's beginning is needed")
        result = await self._bridge.ask_target(lambda inc, number: RenderChat(inc, number, rows, add_prompt, variables))
        return str(result.text) + beginning

    async def prediction(self, given: Prediction | None) -> list[int]:
        """The tokens of a text that the answer may repeat in parts."""
        if given is None:
            return []
        parts = [{"type": "text", "text": given.content}] if isinstance(given.content, str) else given.content
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            raise bad_field("prediction.content", "a text, or a list of parts of type text, is needed")
        text = "".join(_part(part, "prediction.content") for part in parts)
        return (await self.tokenize(text, add_special=False, parse_special=False)).tokens

    async def logit_bias(self, given: Any, name: str = "logit_bias") -> list[LogitBias]:
        """[[token or text, bias or false], …] or {token or text: bias}; a text stands for all its tokens."""
        pairs = list(given.items()) if isinstance(given, dict) else given or []
        if not isinstance(pairs, list) or len(pairs) > MAX_BIASES:
            raise bad_field(name, f"an object or a list of at most {MAX_BIASES} pairs is needed")
        biases = [bias for pair in pairs for bias in await self._bias(pair, name)]
        if len(biases) > MAX_BIASES:
            raise bad_field(name, f"more than {MAX_BIASES} tokens")
        return biases

    async def _bias(self, pair: Any, name: str) -> list[LogitBias]:
        match pair:
            case [int() | str() as key, int() | float() as value] if type(key) is not bool and -1e9 <= value <= 1e9:
                bias = NEVER if value is False else float(value)
            case _:
                raise bad_field(name, "pairs of a token (id or text) and a number, or false for never, are needed")
        if isinstance(key, str) and key.isdecimal() and len(key) < 10:
            key = int(key)
        if isinstance(key, int):
            if not 0 <= key < 2**31:
                raise bad_field(name, f"{key} is no token id")
            return [LogitBias(key, bias)]
        tokens = (await self.tokenize(key, add_special=False, parse_special=False)).tokens
        return [LogitBias(token, bias) for token in tokens]


def _text_of(prompt: dict[str, Any]) -> str:
    if prompt.get("multimodal_data"):
        raise bad_field("prompt.multimodal_data", "only text is supported")
    text = prompt.get("prompt_string")
    if not isinstance(text, str):
        raise bad_field("prompt.prompt_string", "a text is needed")
    return text


def _goes_on(body: Chat | Template) -> bool:
    """Is the last message the beginning of the answer?"""
    roles = [message.role for message in body.messages]
    if body.continue_final_message:
        if body.add_generation_prompt:
            raise bad_field("continue_final_message", "excludes add_generation_prompt")
        if roles[-1] != "assistant":
            raise bad_field("continue_final_message", "the last message is not the assistant's")
    if roles[-2:] == ["assistant", "assistant"]:
        raise bad_field("messages", "two messages of the assistant at the end cannot be gone on with")
    return roles[-1] == "assistant"


def _content(message: Message, between: str) -> str:
    if message.tool_calls:
        raise bad_field("messages.tool_calls", "tool calls are not supported")
    if message.content is None:
        raise bad_field("messages.content", f"a message of {message.role!r} has no content")
    if isinstance(message.content, str):
        return message.content
    return between.join(_part(part) for part in message.content)


def _part(part: dict[str, Any], name: str = "messages.content") -> str:
    if part.get("type") != "text" or not isinstance(part.get("text"), str):
        raise bad_field(name, f"only parts of type text are supported, not {part.get('type')!r}")
    return str(part["text"])

"""Text and tokens: what the target answers to Tokenize, Detokenize and RenderChat."""

from __future__ import annotations

import json
from collections.abc import Sequence

from outrider.engine.base import Tokenizer
from outrider.errors import RequestError
from outrider.types import ChatMessage
from outrider.wire.messages import Detokenize, Failure, RenderChat, TextResult, Tokenize, TokenizeResult
from outrider.worker.replies import failure

#: A text has to fit its message.
MAX_TEXT_BYTES = 4 << 20


def answer(tokenizer: Tokenizer, request: Tokenize | Detokenize | RenderChat) -> TokenizeResult | TextResult | Failure:
    """The reply; Failure `bad_request` where the text or the tokens cannot be read."""
    try:
        match request:
            case Tokenize():
                tokens = tokenize(tokenizer, request.text, request.messages, request.add_special, request.parse_special)
                pieces = [tokenizer.piece(token) for token in tokens] if request.with_pieces else []
                return TokenizeResult(request.incarnation, request.request, tokens, pieces)
            case Detokenize():
                text = detokenize(tokenizer, request.tokens, request.special)
            case RenderChat():
                text = render(tokenizer, request)
        if len(text.encode()) > MAX_TEXT_BYTES:
            raise RequestError(f"the text has more than {MAX_TEXT_BYTES} bytes")
        return TextResult(request.incarnation, request.request, text)
    except RequestError as error:
        return failure(request, "bad_request", str(error))


def tokenize(
    tokenizer: Tokenizer, text: str, messages: Sequence[ChatMessage], add_special: bool, parse_special: bool
) -> list[int]:
    """Tokens of `text`, or of `messages` in the model's chat template (its BOS text is not doubled)."""
    if not messages:
        return tokenizer.encode(text, add_special=add_special, parse_special=parse_special)
    rendered = tokenizer.render_chat([(message.role, message.content) for message in messages])
    tokens = tokenizer.encode(rendered, add_special=add_special, parse_special=True)
    bos = tokenizer.vocab.bos
    return tokens[1:] if tokens[:2] == [bos, bos] else tokens


def detokenize(tokenizer: Tokenizer, tokens: Sequence[int], special: bool) -> str:
    """The text of `tokens`; bytes that are no UTF-8 become U+FFFD. `special`: control tokens are written out.

    Raises RequestError for an id that the vocabulary lacks."""
    n_vocab = tokenizer.vocab.n_vocab
    bad = next((token for token in tokens if token >= n_vocab), None)
    if bad is not None:
        raise RequestError(f"token {bad} is not in the vocabulary (0 to {n_vocab - 1})")
    return b"".join(_piece(tokenizer, token, special) for token in tokens).decode("utf-8", "replace")


def _piece(tokenizer: Tokenizer, token: int, special: bool) -> bytes:
    return tokenizer.piece(token) or (tokenizer.texts(token, 1)[0] if special else b"")


def render(tokenizer: Tokenizer, request: RenderChat) -> str:
    """The conversation in the model's template. Raises RequestError as `render_chat` does, or for bad variables."""
    messages = [(message.role, message.content) for message in request.messages]
    try:
        variables = json.loads(request.variables or "{}")
    except (ValueError, RecursionError) as error:
        raise RequestError(f"variables of the chat template: no JSON: {error}") from None
    if not isinstance(variables, dict):
        raise RequestError("variables of the chat template: an object is needed")
    return tokenizer.render_chat(messages, add_generation_prompt=request.add_generation_prompt, variables=variables)

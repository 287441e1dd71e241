"""The shapes of answers: OpenAI's chat and text completions, llama-server's completion. Names and order are llama-server's.

`answer` is the object of `--json` (`coordinator/result.py`). One counter feeds all places that speak of drafts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from secrets import token_hex
from typing import Any

from coordinator.instructions import Part

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Head:
    """What all parts of one answer share."""

    model: str
    fingerprint: str
    id: str = field(default_factory=lambda: token_hex(16))
    created: int = field(default_factory=lambda: int(time.time()))

    def chat(self, choices: list[Object], kind: str = "chat.completion") -> Object:
        return self._object(f"chatcmpl-{self.id}", kind, choices)

    def text(self, choices: list[Object]) -> Object:
        return self._object(f"cmpl-{self.id}", "text_completion", choices)

    def _object(self, id: str, kind: str, choices: list[Object]) -> Object:
        return {
            "choices": choices,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "object": kind,
            "id": id,
        }


# --- what was counted --------------------------------------------------------------------------------------------


def usage(answers: Sequence[Object], n_prompts: int) -> Object:
    """Tokens of all choices; a prompt counts once, however many choices it has. Drafts that were rejected are no completion
    tokens."""
    timings = [answer["timings"] for answer in answers]
    prompts = answers[:: len(answers) // n_prompts]
    n_prompt = sum(answer["prompt_tokens"] for answer in prompts)
    completion = sum(t["predicted_n"] for t in timings)
    accepted = sum(t["draft_n_accepted"] for t in timings)
    return {
        "completion_tokens": completion,
        "prompt_tokens": n_prompt,
        "total_tokens": n_prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(answer["timings"]["cache_n"] for answer in prompts)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": sum(t["draft_n"] for t in timings) - accepted,
        },
    }


def timings(answer: Object) -> Object:
    """llama-server's `timings`; `draft_n…` only where something was drafted."""
    given = answer["timings"]
    names = [name for name, value in given.items() if isinstance(value, int | float)]
    if not given["draft_n"]:
        names = [name for name in names if not name.startswith("draft_") and name != "mean_acceptance_length"]
    return {name: given[name] for name in names}


def speculative_metrics(answer: Object) -> Object | None:
    """vLLM's `metrics.speculative_decoding`; None where nothing was drafted."""
    given = answer["timings"]
    drafted, accepted = given["draft_n_per_pos"], given["draft_n_accepted_per_pos"]
    if not given["draft_n"]:
        return None
    n_steps = drafted[0]
    reached = [n_steps, *accepted]
    return {
        "mean_acceptance_length": 1 + given["draft_n_accepted"] / n_steps,
        "draft_acceptance_rate": given["draft_n_accepted"] / given["draft_n"],
        "acceptance_histogram": [a - b for a, b in zip(reached, [*accepted, 0], strict=True)],
        "num_spec_steps": n_steps,
        "num_accepted_draft_tokens": given["draft_n_accepted"],
        "num_draft_tokens": given["draft_n"],
        "num_spec_tokens": answer["speculation"]["n_max"],
    }


def with_counts(response: Object, answers: Sequence[Object], *, n_prompts: int = 1, usage_too: bool = True) -> Object:
    """`usage`, `timings` and `metrics` at the end of an answer; the last two only for a single choice."""
    if usage_too:
        response["usage"] = usage(answers, n_prompts)
    if len(answers) == 1:
        response["timings"] = timings(answers[0])
        metrics = speculative_metrics(answers[0])
        if metrics is not None:
            response["metrics"] = {"speculative_decoding": metrics}
        if answers[0]["speculation"]["reason"]:
            response["speculation"] = {key: answers[0]["speculation"][key] for key in ("status", "reason")}
    if not all(answer.get("valid", True) for answer in answers):
        response["invalid"] = "synthetic acceptance is on: this text is no model's"
    return response


# --- probabilities -----------------------------------------------------------------------------------------------


def probabilities(entries: Sequence[Object], *, after_sampling: bool = False) -> list[Object]:
    """llama-server's `completion_probabilities`, which also serves as OpenAI's `logprobs.content`."""
    if not after_sampling:
        return list(entries)
    return [{**_as_prob(entry), "top_probs": [_as_prob(best) for best in entry["top_logprobs"]]} for entry in entries]


def _as_prob(entry: Mapping[str, Any]) -> Object:
    shown = {name: entry[name] for name in ("id", "token", "bytes")}
    return {**shown, "prob": math.exp(entry["logprob"])}


def logprobs_object(entries: Sequence[Object]) -> Object | None:
    return {"content": list(entries)} if entries else None


def part_probabilities(part: Part) -> list[Object]:
    """Of one token of a stream; none where it has none."""
    own = part.logprobs
    if own is None:
        return []
    best = zip(own.tokens, own.pieces, own.logprobs, strict=True)
    return [{**_token(part.token, part.piece, own.logprob), "top_logprobs": [_token(*entry) for entry in best]}]


def _token(token: int, piece: bytes, logprob: float) -> Object:
    return {"id": token, "token": piece.decode("utf-8", "replace"), "bytes": list(piece), "logprob": logprob}


# --- chat --------------------------------------------------------------------------------------------------------


def chat_answer(head: Head, answers: Sequence[Object]) -> Object:
    return with_counts(head.chat([_chat_choice(i, answer) for i, answer in enumerate(answers)]), answers)


def _chat_choice(index: int, answer: Object) -> Object:
    return {
        "finish_reason": answer["finish_reason"],
        "index": index,
        "message": {"role": "assistant", "content": answer["text"]},
        "logprobs": logprobs_object(answer.get("logprobs", [])),
    }


def chat_chunk(
    head: Head, index: int, delta: Object, finish: str | None = None, probs: Sequence[Object] = ()
) -> Object:
    choice: Object = {"finish_reason": finish, "index": index, "delta": delta}
    if probs:
        choice["logprobs"] = logprobs_object(probs)
    return head.chat([choice], "chat.completion.chunk")


# --- text --------------------------------------------------------------------------------------------------------


def text_answer(head: Head, answers: Sequence[Object], prompts: Sequence[str], n_prompts: int) -> Object:
    """`prompts`: what to put in front of each text (`echo`), or nothing. The answers are those of `n_prompts`, in turn."""
    choices = [
        text_choice(i, prompt + answer["text"], answer["finish_reason"], answer.get("logprobs", []), len(prompt))
        for i, (answer, prompt) in enumerate(zip(answers, prompts, strict=True))
    ]
    return with_counts(head.text(choices), answers, n_prompts=n_prompts)


def text_choice(index: int, text: str, finish: str | None, probs: Sequence[Object] = (), offset: int = 0) -> Object:
    """`offset`: characters of the text in front of the first token of `probs`."""
    return {"text": text, "index": index, "logprobs": text_logprobs(probs, offset), "finish_reason": finish}


def text_logprobs(entries: Sequence[Object], offset: int) -> Object | None:
    """llama-server's object, and in it the lists that OpenAI's text completions have."""
    if not entries:
        return None
    tokens = [entry["token"] for entry in entries]
    return {
        "content": list(entries),
        "tokens": tokens,
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": [{best["token"]: best["logprob"] for best in entry["top_logprobs"]} for entry in entries],
        "text_offset": [offset + n for n in accumulate(map(len, tokens[:-1]), initial=0)],
    }


# --- llama-server's own ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Native:
    """What `/completion` tells of its request."""

    model: str
    prompt: str
    settings: Object
    n_predict: int
    return_tokens: bool
    after_sampling: bool

    def final(self, index: int, answer: Object, *, stream: bool) -> Object:
        counts = answer["timings"]
        result = {
            "index": index,
            "content": "" if stream else answer["text"],
            "tokens": answer["tokens"] if self.return_tokens and not stream else [],
            "id_slot": 0,
            "stop": True,
            "model": self.model,
            "tokens_predicted": counts["predicted_n"],
            "tokens_evaluated": answer["prompt_tokens"],
            "generation_settings": self.settings,
            "prompt": self.prompt,
            "has_new_line": "\n" in answer["text"],
            "truncated": self._is_truncated(answer),
            "stop_type": _stop_type(answer),
            "stopping_word": answer["stopped_by"] or "",
            "tokens_cached": answer["prompt_tokens"] + counts["predicted_n"] - 1,
        }
        if not stream and answer.get("logprobs"):
            result["completion_probabilities"] = probabilities(answer["logprobs"], after_sampling=self.after_sampling)
        return with_counts(result, [answer], usage_too=False)

    def chunk(self, index: int, n_tokens: int, part: Part | None, text: str) -> Object:
        result: Object = {
            "index": index,
            "content": text,
            "tokens": [part.token] if part else [],
            "stop": False,
            "id_slot": 0,
            "tokens_predicted": n_tokens,
        }
        probs = part_probabilities(part) if part else []
        if probs:
            result["completion_probabilities"] = probabilities(probs, after_sampling=self.after_sampling)
        return result

    def _is_truncated(self, answer: Object) -> bool:
        """The context was full before the answer was, or was shifted."""
        if answer.get("context_shifts"):
            return True
        n_predicted: int = answer["timings"]["predicted_n"]
        return bool(answer["finish_reason"] == "length") and n_predicted != self.n_predict


def _stop_type(answer: Object) -> str:
    if answer["stopped_by"] is not None:
        return "word"
    return {"stop": "eos", "length": "limit"}.get(answer["finish_reason"], "none")


def selected(response: Object, fields: Sequence[str]) -> Object:
    """Only these fields; `a/b` names a field of an object. Names that do not exist are left out."""
    if not fields:
        return response
    found: Object = {}
    for name in fields:
        value: Any = response
        for key in name.split("/"):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            found[name] = value
    return found

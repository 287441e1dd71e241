"""Why a test of the peer suite is missed, from its name and its message."""

from __future__ import annotations

_BY_NAME = (
    ("test_local_media_file", "images are not supported"),
    ("test_cors_origins", "llama-server's router and its flag --cors-origins localhost"),
    ("test_cors_proxy", "no proxy"),
    ("test_access_static_assets", "assets of llama-server's page"),
    ("test_metrics_embedding", "no embeddings"),
    ("test_return_progress", "number of tokens in the vocabulary of the model that the tests download"),
    ("test_load_split_model", "text of the model that the tests download"),
    ("test_completion[", "number of tokens in the vocabulary of the model that the tests download"),
    ("test_completion_stream[", "number of tokens in the vocabulary of the model that the tests download"),
    ("test_completion_prompt_cache", "number of tokens in the vocabulary of the model that the tests download"),
    ("test_chat_completion[", "number of tokens in the vocabulary of the model that the tests download"),
    ("test_chat_completion_cached", "number of tokens in the vocabulary of the model that the tests download"),
)
_BY_MESSAGE = (("match_regex", "text of the model that the tests download"),)


def reason_of(name: str, message: str, skipped: bool) -> str:
    if skipped:
        return "skipped by the suite"
    for part, reason in _BY_NAME:
        if name.startswith(part):
            return reason
    return next((reason for part, reason in _BY_MESSAGE if part in message), "unexplained")

"""Every error Outrider raises on purpose, as one hierarchy.

    OutriderError
    ├── ConfigError            a flag, environment variable or configuration key is wrong            exit 2
    ├── ModelFileError         a model file cannot be read, is damaged or is not supported           exit 3
    ├── VocabMismatchError     draft and target do not share a vocabulary                            exit 1
    ├── WorkerLostError        a worker that cannot be replaced died or fell silent                  exit 4
    ├── RequestError           a request cannot be served as asked (bad option)                      exit 2
    │   ├── PromptTooLongError the prompt does not fit the context                                   exit 2
    │   └── BusyError          too many requests wait already: the same one may be served later      exit 2
    ├── ProtocolError          bytes from a peer that are no valid message, or break the order       exit 1
    ├── SendError              a message could not be handed to a peer                               exit 1
    │   ├── PeerUnknownError   nobody is connected under that identity (now)
    │   └── PeerFullError      the peer does not read: its queue is full
    ├── EngineError            the engine could not do what it was asked                             exit 1
    │   ├── ContextFullError   more positions asked for than the context has
    │   └── CacheError         a cache cannot be cut, copied or restored as asked
    └── SpeculatorError        a speculator was called against its contract, or cannot be made       exit 1

A message names what is wrong, the key, file or value it is about, and what to do. The command line prints it as one
line and exits with `exit_code`; anything else that reaches the top is a bug of ours.
"""

from __future__ import annotations


class OutriderError(Exception):
    """Root of all errors that are answered with one line instead of a traceback."""

    exit_code = 1


class ConfigError(OutriderError):
    exit_code = 2


class ModelFileError(OutriderError):
    exit_code = 3


class VocabMismatchError(OutriderError):
    pass


class WorkerLostError(OutriderError):
    exit_code = 4


class RequestError(OutriderError):
    exit_code = 2


class PromptTooLongError(RequestError):
    def __init__(self, n_prompt: int, n_ctx: int) -> None:
        super().__init__(
            f"the prompt exceeds the available context size: it has {n_prompt} tokens, the context holds n_ctx = {n_ctx}"
            " with at least one to generate; shorten it or raise --ctx-size"
        )
        self.n_prompt, self.n_ctx = n_prompt, n_ctx


class BusyError(RequestError):
    pass


class ProtocolError(OutriderError):
    pass


class SendError(OutriderError):
    pass


class PeerUnknownError(SendError):
    pass


class PeerFullError(SendError):
    pass


class EngineError(OutriderError):
    pass


class ContextFullError(EngineError):
    pass


class CacheError(EngineError):
    pass


class SpeculatorError(OutriderError):
    pass

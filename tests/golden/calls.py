"""Short call sequences, misuse among them. Where the recorded process aborted, a named error is the match."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outrider.errors import SpeculatorError
from outrider.speculators.base import DraftParams
from outrider.speculators.chain import Chain
from outrider.speculators.factory import make_chain
from outrider.speculators.token_array import TokenArray
from tests.golden.replay import speculator_params
from tests.golden.runner import first_differences
from tests.golden.state import chain_state, chain_stats


def check(path: Path, data: dict[str, Any]) -> list[str]:
    missing = f"{path}.no_such_file" if data.get("missing_static") else ""
    params = speculator_params(data["params"], static=missing)
    failed_at: int | None = None
    results: list[Any] = []
    end: dict[str, Any] | None = None
    try:
        chain = make_chain(data["types"], params, n_seq=data["n_seq"])
    except SpeculatorError:
        results, failed_at = _failed_init(data), -1
    else:
        results.append({"init": "ok" if chain else "null", "n_max": chain.n_max})
        failed_at = _play(chain, data["ops"], results)
        end = {"state": chain_state(chain), "stats": chain_stats(chain)} if chain else None
    differences = first_differences("results", data["results"], results)
    if data["crashed"]:
        return differences + first_differences("failed at", data["crashed_at_op"], failed_at)
    if data["results"][:1] == results[:1] and failed_at == -1:
        return differences
    return differences + first_differences("end", data.get("end"), end)


def _failed_init(data: dict[str, Any]) -> list[Any]:
    """An exception was recorded as one, an abort as nothing."""
    first = data["results"][:1]
    return first if first and first[0].get("init") not in ("ok", "null") else []


def _play(chain: Chain, ops: list[Any], results: list[Any]) -> int | None:
    """Run the calls; the index of the one that was refused, if any."""
    histories: dict[int, TokenArray] = {}
    for i, (name, *arguments) in enumerate(ops):
        try:
            results.append({name: _call(chain, name, arguments, histories)})
        except SpeculatorError:
            return i
    return None


def _call(chain: Chain, name: str, arguments: list[Any], histories: dict[int, TokenArray]) -> Any:
    match name:
        case "begin":
            seq, prompt = arguments
            histories[seq] = TokenArray(prompt)
            chain.begin(seq, histories[seq])
        case "draft":
            return _draft(chain, arguments[0], histories)
        case "accept":
            chain.accept(*arguments)
        case "params":
            chain.draft([DraftParams(arguments[0], 0, 0, TokenArray())])
        case _:
            raise AssertionError(f"unknown call {name}")
    return "ok"


def _draft(chain: Chain, asked: list[dict[str, Any]], histories: dict[int, TokenArray]) -> list[dict[str, Any]]:
    requests = [
        DraftParams(
            ask["seq"],
            ask["id_last"],
            len(ask["hist"]),
            _history(histories, ask["seq"], ask["hist"]),
            ask["n_max"],
            list(ask.get("result", [])),
        )
        for ask in asked
    ]
    chain.draft(requests)
    return [
        {
            "draft": request.result,
            "drafting_after": False,
            "impl": chain.last_type(request.seq) if request.result else "",
            "seq": request.seq,
        }
        for request in requests
    ]


def _history(histories: dict[int, TokenArray], seq: int, tokens: list[int]) -> TokenArray:
    """The sequence's text, appended to where it grew and made anew where it is another one."""
    known = histories.get(seq)
    if known is None or known.tokens.tolist() != tokens[: len(known)]:
        known = histories[seq] = TokenArray(tokens)
    else:
        known.extend(tokens[len(known) :])
    return known

"""The benchmarks that compare with llama.cpp: what they read from its program, and when `--check` complains."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from bench import ngram_pair, pair
from bench.peer import parsed, peer_answer, speculation
from bench.peer_server import shaped
from bench.runs import acceptance, interleaved, speed, summaries

PROMPT = "<|im_start|>user\nGo on.<|im_end|>\n"
LOG = """0.00.411.607 W load: a warning
0.09.461.256 I encoded   41 tokens in    0.848 seconds, speed:   48.321 t/s
0.09.461.271 I decoded   43 tokens in    5.000 seconds, speed:    8.600 t/s
0.09.461.282 I n_draft   = 3
0.09.461.288 I n_predict = 43
0.09.461.293 I n_drafted = 34
0.09.461.298 I n_accept  = 31
0.09.461.304 I accept    = 91.176%
"""


def a_run(rate: float, text: str = "abc", prompt_tokens: int = 41) -> dict[str, Any]:
    timings = {"predicted_per_second": rate, "draft_n": 4, "draft_n_accepted": 3, "rounds": 9, "predicted_n": 12}
    return {"text": text, "prompt_tokens": prompt_tokens, "timings": timings}


def test_what_the_program_reports() -> None:
    run = parsed(f"\n\n{PROMPT}One\n\ntwo.\n\n\n\n", LOG, PROMPT)
    assert run["text"] == "One\n\ntwo."
    assert run["prompt_tokens"] == 41
    assert speed(run) == pytest.approx(8.6)
    assert acceptance(run) == pytest.approx(31 / 34)
    assert run["timings"]["rounds"] == 12


def test_a_run_without_drafts() -> None:
    log = LOG.replace("= 34", "= 0").replace("= 31", "= 0").replace("91.176%", "-nan%")
    run = parsed(f"\n\n{PROMPT}One\n\n\n\n", log, PROMPT)
    assert acceptance(run) == 0.0
    assert run["timings"]["rounds"] == run["timings"]["predicted_n"] == 43


def test_what_the_server_reports() -> None:
    timings = {"predicted_n": 40, "predicted_per_second": 7.5}
    run = shaped({"content": "One", "tokens_evaluated": 41, "timings": timings})
    assert (run["text"], run["prompt_tokens"], speed(run), acceptance(run)) == ("One", 41, 7.5, 0.0)
    drafts = {"draft_n": 12, "draft_n_accepted": 9}
    run = shaped({"content": "One", "tokens_evaluated": 41, "timings": timings | drafts})
    assert (acceptance(run), run["timings"]["rounds"]) == (0.75, 31)


def test_a_server_that_does_not_start_is_named_with_its_last_words(tmp_path: Path) -> None:
    binary = program(tmp_path, "sys.exit('no such model')").rename(tmp_path / "llama-server")
    with pytest.raises(SystemExit, match=r"does not start:\n.*no such model"):
        peer_answer(binary, PROMPT)


def test_another_prompt_ends_the_benchmark() -> None:
    with pytest.raises(SystemExit, match="another prompt"):
        parsed("\n\nGo on. One\n\n\n\n", LOG, PROMPT)
    with pytest.raises(SystemExit, match="not the same prompt"):
        summaries({"plain": [a_run(5.0)], "llama.cpp": [a_run(5.0, prompt_tokens=42)]}, "plain")


def program(folder: Path, code: str) -> Path:
    path = folder / "llama-speculative-simple"
    path.write_text(f"#!{sys.executable}\nimport sys\n{code}\n")
    path.chmod(0o700)
    return path


def test_flags_reach_the_program(tmp_path: Path) -> None:
    code = (
        f"args = sys.argv[1:]\nprint('\\n\\n' + args[args.index('-p') + 1] + ' '.join(args))\nsys.stderr.write({LOG!r})"
    )
    run = peer_answer(program(tmp_path, code), PROMPT, "-n", "7", *speculation("draft-simple", "d.gguf", 5), threads=3)
    for flags in (
        "-t 3 -tb 3 -td 3 -tbd 3",
        "-n 7 --spec-type draft-simple -md d.gguf --spec-draft-n-max 5",
        "--temp 0",
    ):
        assert flags in run["text"]


def test_a_program_that_fails_is_named_with_its_last_words(tmp_path: Path) -> None:
    binary = program(tmp_path, "sys.stderr.write('no such model'); sys.exit(3)")
    with pytest.raises(SystemExit, match=r"exit code 3\n.*no such model"):
        peer_answer(binary, PROMPT)


def test_medians_ratios_and_forks() -> None:
    rates = {"plain": iter([10.0, 30.0, 11.0]), "fast": iter([20.0, 22.0, 99.0])}
    texts = {"plain": "abcd", "fast": "abXd"}
    cases = {name: (lambda name=name: a_run(next(rates[name]), texts[name])) for name in rates}
    plain, fast = summaries(interleaved(cases, 3), "plain")
    assert (plain["per_second"], plain["forks"]) == (11.0, [])
    assert (fast["per_second"], fast["ratio"], fast["forks"]) == (22.0, 2.0, [2, 2, 2])


def of_types(**rates: float) -> list[dict[str, Any]]:
    return [{"name": name.replace("_", " "), "per_second": rate} for name, rate in rates.items()]


@pytest.mark.parametrize(
    ("rows", "complaints"),
    [
        ({"plain": 10, "a": 20, "b": 9.7, "llama.cpp_plain": 10, "llama.cpp_a": 20, "llama.cpp_b": 10}, []),
        ({"plain": 10, "a": 20, "b": 9.6, "llama.cpp_b": 10}, ["b: 9.6"]),
        ({"plain": 10, "a": 19.5, "llama.cpp_a": 20}, ["llama.cpp's best: 20"]),
        ({"plain": 10, "a": 9.9, "llama.cpp_plain": 9.8}, ["plain decoding: 10"]),
    ],
)
def test_conditions_of_the_lookup_types(rows: dict[str, float], complaints: list[str]) -> None:
    found = ngram_pair.missed(of_types(**rows))
    assert len(found) == len(complaints)
    assert all(part in line for part, line in zip(complaints, found, strict=True))


Q4_0, Q4_K_M, BF16 = 2, 15, 32


@pytest.mark.parametrize(
    ("auto", "prompt", "file_type", "complaints"),
    [
        (14.0, "code", Q4_0, []),
        (13.9, "code", Q4_0, ["1.4 x llama.cpp"]),
        (13.0, "code", BF16, []),
        (12.9, "code", BF16, ["1.3 x llama.cpp"]),
        (12.7, "code", Q4_K_M, []),
        (12.7, "chat", Q4_0, []),
        (12.6, "chat", Q4_0, ["0.97 of the best"]),
    ],
)
def test_conditions_with_two_devices(auto: float, prompt: str, file_type: int, complaints: list[str]) -> None:
    rates = {"plain": 9.0, "overlap": 13.0, "auto": auto, "llama.cpp": 10.0, "llama.cpp plain": 9.5}
    found = pair.missed(rates, prompt, file_type, apart=True)
    assert len(found) == len(complaints)
    assert all(part in line for part, line in zip(complaints, found, strict=True))


@pytest.mark.parametrize(
    ("plain", "auto", "n"), [(9.7, 10.7, 0), (9.6, 10.7, 1), (9.7, 10.6, 1), (12.0, 11.7, 0), (12.0, 11.6, 1)]
)
def test_conditions_on_shared_processors(plain: float, auto: float, n: int) -> None:
    rates = {"plain": plain, "auto": auto, "overlap": 99.0, "llama.cpp": 11.0, "llama.cpp plain": 10.0}
    assert len(pair.missed(rates, "code", Q4_0, apart=False)) == n


@pytest.mark.parametrize(("module", "flags"), [(pair, ["-md", "d"]), (ngram_pair, [])])
def test_a_check_needs_a_peer(module: Any, flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "-m", "t", *flags, "--check"])
    monkeypatch.setattr("bench.wheel_server.found", lambda: None)  # the wheel is not installed
    with pytest.raises(SystemExit) as stop:
        module.main()
    assert stop.value.code == 2

"""`outrider run` with real processes: the main job, and what happens when one of the three is lost."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from tests.process.cli import DRAFT, SLOW, TARGET, Cli, kill, model_flags, poll_for

PROMPT = ["-p", "Once upon a time", "--temp", "0"]


def plain(cli: Cli, *arguments: str, target: str = TARGET) -> dict[str, Any]:
    return cli.answer(*model_flags(target, None), *PROMPT, *arguments)


@pytest.mark.parametrize("sampling", [[], ["--temp", "0.8", "--seed", "7", "--repeat-penalty", "1.1"]])
def test_three_processes_write_what_the_target_alone_writes(cli: Cli, sampling: list[str]) -> None:
    expected = plain(cli, "-n", "60", *sampling, "--row-hashes")
    speculation = ["--schedule", "lockstep"]  # the controller may leave drafting off
    answer = cli.answer(*model_flags(), *PROMPT, "-n", "60", *sampling, *speculation, "--row-hashes")
    for key in ("tokens", "text", "finish_reason", "prompt_tokens", "row_hashes"):
        assert answer[key] == expected[key]
    assert len(answer["row_hashes"]) == 60
    assert answer["timings"]["rounds"] < 60
    assert answer["speculation"]["status"] == "on"
    assert answer["speculation"]["reason"] is None
    assert expected["timings"]["draft_n"] == 0
    assert expected["speculation"]["status"] == "off"


def test_streamed_text_is_the_text(cli: Cli) -> None:
    answer = cli.answer(*model_flags(), *PROMPT, "-n", "30")
    streamed = cli.run("run", *model_flags(), *PROMPT, "-n", "30")
    whole = cli.run("run", *model_flags(), *PROMPT, "-n", "30", "--no-stream")
    assert streamed.stdout.rstrip("\n") == whole.stdout.rstrip("\n") == answer["text"].rstrip("\n")
    assert "drafts " in streamed.stderr


def test_ngram_speculation_needs_no_draft_worker(cli: Cli) -> None:
    repeated = ["--prompt-tokens", ",".join(map(str, [*range(40)] * 4))]
    flags = [*model_flags(TARGET, None), *repeated, "--temp", "0", "-n", "40"]
    answer = cli.answer(*flags, "--spec-type", "ngram-simple,ngram-cache")
    assert answer["tokens"] == cli.answer(*flags)["tokens"]
    assert answer["speculation"]["types"] == ["ngram-simple", "ngram-cache"]
    assert answer["speculation"]["per_type"]["ngram-cache"]["n_call_draft"] > 0


ENDLESS = ["-n", "100000", "-c", "200000"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_draft_worker_lost_in_mid_run_changes_no_token(cli: Cli, number: int) -> None:
    """Killed, or stopped with its socket open: the request goes on without it, and says so."""
    expected = plain(cli, "-n", "400")
    with cli.start("run", *model_flags(TARGET + SLOW, DRAFT), *PROMPT, "-n", "400") as run:
        run.first_byte()
        kill(cli.worker("draft"), number)
        code, out, err = run.end()
    assert code == 0, err
    assert out.rstrip("\n") == expected["text"].rstrip("\n")
    assert "draft worker lost at token" in err


def test_a_draft_worker_that_was_killed_comes_back(cli: Cli) -> None:
    with cli.start("run", *model_flags(TARGET + SLOW, DRAFT), *PROMPT, "-n", "1000") as run:
        run.first_byte()
        pid = cli.worker("draft")
        kill(pid)
        poll_for(lambda: [other for other in cli.processes("draft_worker") if other != pid])
        code, _, err = run.end(60)
    assert code == 0, err
    assert "draft worker rejoined at token" in err


def test_a_killed_target_worker_is_one_clear_error(cli: Cli) -> None:
    with cli.start("run", *model_flags(TARGET + SLOW, DRAFT), *PROMPT, *ENDLESS) as run:
        run.first_byte()
        kill(cli.worker("target"))
        start = time.monotonic()
        code, _, err = run.end()
        elapsed = time.monotonic() - start
    assert code == 4
    assert elapsed < 2.0
    (line,) = err.splitlines()
    assert line.startswith("outrider: error: target worker 'target' was killed by signal 9")


@pytest.mark.parametrize("ready", [False, True])
def test_nothing_outlives_a_killed_launcher(cli: Cli, ready: bool) -> None:
    with cli.start("run", *model_flags(TARGET + SLOW, DRAFT), *PROMPT, *ENDLESS) as run:
        cli.worker("target"), cli.worker("draft")
        if ready:
            run.first_byte()
        kill(run.pid)
        poll_for(lambda: not cli.processes(), 1.0)
    # The next coordinator takes the folder of the socket away.
    cli.answer(*model_flags(), *PROMPT, "-n", "1")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("ready", [False, True])
def test_signals_end_all_three_without_a_traceback(cli: Cli, number: int, code: int, ready: bool) -> None:
    with cli.start("run", *model_flags(TARGET + SLOW, DRAFT), *PROMPT, *ENDLESS) as run:
        cli.worker("target")
        if ready:
            run.first_byte()
        kill(run.pid, number)
        actual, _, err = run.end()
    assert actual == code
    assert "Traceback" not in err


def test_a_reader_that_goes_away_ends_the_run(cli: Cli) -> None:
    with cli.start("run", *model_flags(TARGET + SLOW, DRAFT), *PROMPT, *ENDLESS) as run:
        run.first_byte()
        assert run.process.stdout is not None
        run.process.stdout.close()
        run.process.wait(timeout=10)
        assert run.process.stderr is not None
        assert b"Traceback" not in run.process.stderr.read()


def test_a_draft_with_another_vocabulary_is_refused_with_both_values(cli: Cli) -> None:
    done = cli.run("run", *model_flags("scripted:seed=1,vocab=600", DRAFT), *PROMPT)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "vocabulary check 'size' failed: target has 600 tokens, draft has 300" in line

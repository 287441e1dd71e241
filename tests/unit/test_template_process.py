"""The process that runs chat templates: it answers, or it is ended, and the next one answers."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

import pytest

from outrider.engine import template_process
from outrider.engine.template_process import TemplateProcess
from outrider.errors import RequestError

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
#: One operation of the interpreter, which no other thread could interrupt.
ENDLESS_OPERATION = "{{ 7 ** (7 ** 11) % 10 }}"
HUGE = "{% for i in range(90000) %}{{ 'x' * 1000 }}{% endfor %}"
TOO_MUCH_MEMORY = "{{ 'x' * 10 ** 10 }}"


@pytest.fixture
def templates() -> Iterator[TemplateProcess]:
    yield TemplateProcess(cpu_s=0.2)
    gc.collect()


def is_gone(pid: int) -> bool:
    """Ended, and waited for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_one_process_for_many_renderings(templates: TemplateProcess) -> None:
    pid = templates.start().process.pid
    for text in ("a", "é\n\ud800", "x" * 3_000_000):
        assert templates.render("{{ a }}{{ n.b[0] }}", {"a": text, "n": {"b": [None]}}) == f"{text}None"
    assert templates.start().process.pid == pid


@pytest.mark.parametrize(
    ("source", "words", "is_killed"),
    [
        (ENDLESS, "took more than 0.2 s of processor time", True),
        (ENDLESS_OPERATION, "took more than 0.2 s of processor time", True),
        (HUGE, "wrote more than", False),
        (TOO_MUCH_MEMORY, "refused the messages: MemoryError", False),
        ("{{ raise_exception('No') }}", "refused the messages: No", False),
    ],
)
def test_a_hostile_template_is_refused(templates: TemplateProcess, source: str, words: str, is_killed: bool) -> None:
    pid = templates.start().process.pid
    for _ in range(2):
        with pytest.raises(RequestError) as caught:
            templates.render(source, {})
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
    assert is_gone(pid) == is_killed
    assert templates.render("{{ a }}", {"a": 1}) == "1"


def test_a_process_that_stands_still(templates: TemplateProcess) -> None:
    assert templates.render("a", {}) == "a"
    pid = templates.start().process.pid
    os.kill(pid, signal.SIGSTOP)
    templates.wall_s = 0.05
    for text in ("a", "x" * 10_000_000):  # what is asked stands in the pipe, or does not fit it
        with pytest.raises(RequestError, match=r"gave no answer within 0\.05 s"):
            templates.render("{{ a }}", {"a": text})
        os.kill(templates.start().process.pid, signal.SIGSTOP)
    assert is_gone(pid)


def test_a_process_that_was_killed(templates: TemplateProcess) -> None:
    process = templates.start().process
    process.kill()
    process.wait()
    assert templates.render("a", {}) == "a"


def test_an_answer_without_end(templates: TemplateProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_process, "MAX_REPLY", 1000)
    with pytest.raises(RequestError, match="ended the process"):
        templates.render("{{ 'x' * 2000 }}", {})


def test_nothing_is_left_behind() -> None:
    templates = TemplateProcess()
    assert templates.render("a", {}) == "a"
    pid = templates.start().process.pid
    del templates
    gc.collect()
    assert is_gone(pid)


def test_variables_that_nest_too_deep() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(RequestError, match="variables of the chat template"):
        TemplateProcess().render("", {"a": deep})

"""Chat templates: somebody else's programs, in a sandbox."""

from __future__ import annotations

import re

import pytest

from outrider.engine import jinja_sandbox
from outrider.engine.jinja_sandbox import render_template
from outrider.errors import RequestError

CHATML = """{% for message in messages %}
    {%- if loop.first and message.role != 'system' %}<|im_start|>system
You help.<|im_end|>
    {% endif %}
<|im_start|>{{ message['role'] }}
{{ message.content | trim }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def render(source: str, *messages: tuple[str, str]) -> str:
    rows = [{"role": role, "content": content} for role, content in messages or [("user", "Hi")]]
    return render_template(source, {"messages": rows, "add_generation_prompt": True, "bos_token": "<s>"})


def test_blocks_are_trimmed_as_templates_expect() -> None:
    assert render(CHATML, ("user", " Hi "), ("assistant", "Yo")) == (
        "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nYo<|im_end|>\n<|im_start|>assistant\n"
    )


def test_what_templates_expect_to_find() -> None:
    assert render("{{ bos_token }}|{{ tools is defined }}") == "<s>|False"
    assert render("{{ messages | tojson }}") == '[{"role": "user", "content": "Hi"}]'
    assert render("{{ messages | tojson(indent=1) }}", ("user", "é<&>")).count("\n") == 5
    assert "é<&>" in render("{{ messages | tojson }}", ("user", "é<&>"))
    assert render("{% for m in [1, 2, 3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}") == "1"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", render("{{ strftime_now('%Y-%m-%d') }}"))
    assert render("{% set ns = namespace(n=1) %}{% set ns.n = 5 %}{{ ns.n }}") == "5"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('Only user\\nroles') }}", "refused the messages: Only user roles"),
        ("{{ raise_exception('') }}", "refused the messages: TemplateError"),
        ("{% if %}", "refused the messages"),
        ("{{ messages[7].role.x }}", "refused the messages"),
        ("{{ 1 / 0 }}", "refused the messages"),
        ("{{ 'x' + 1 }}", "refused the messages"),
        ("{{ messages.append(1) }}", "refused the messages"),
        ("{{ ''.__class__.__mro__ }}", "refused the messages"),
        ("{{ messages.__init__.__globals__ }}", "refused the messages"),
        ("{% include '/etc/passwd' %}", "refused the messages"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "refused the messages"),
        ("{{ " + "[" * 500 + "]" * 500 + " }}", "refused the messages"),
        ("{% for i in range(10**8) %}{% endfor %}", "refused the messages"),
        ("{% for i in range(90000) %}{{ 'x' * 1000 }}{% endfor %}", "wrote more than"),
    ],
)
def test_refusals(source: str, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        render(source)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_output_is_bounded_by_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jinja_sandbox, "MAX_OUTPUT", 5)
    assert render("{{ 'ab' }}{{ 'cde' }}") == "abcde"
    with pytest.raises(RequestError):
        render("{{ 'ab' }}{{ 'cdef' }}")


def test_one_rendering_leaves_nothing_for_the_next() -> None:
    source = "{% set ns = namespace(n=0) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{% set x = 1 %}{{ y is defined }}"
    assert [render(source), render(source)] == ["1False"] * 2

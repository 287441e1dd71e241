"""Chat templates: somebody else's programs, in a sandbox."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from outrider.engine import chat_template
from outrider.engine.chat_template import render_chat
from outrider.errors import ModelFileError, RequestError
from tests.gguf_bytes import key
from tests.vocabs import CONTROL, NORMAL, bpe_tables, spm_tables, tokenizer

CHATML = """{% for message in messages %}
    {%- if loop.first and message.role != 'system' %}<|im_start|>system
You help.<|im_end|>
    {% endif %}
<|im_start|>{{ message['role'] }}
{{ message.content | trim }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def render(source: str | None, *messages: tuple[str, str], add_bos: bool = False, add_eos: bool = False) -> str:
    return render_chat(source, messages or [("user", "Hi")], bos="<s>", eos="</s>", add_bos=add_bos, add_eos=add_eos)


def test_blocks_are_trimmed_as_templates_expect() -> None:
    assert render(CHATML, ("user", " Hi "), ("assistant", "Yo")) == (
        "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nYo<|im_end|>\n<|im_start|>assistant\n"
    )


def test_what_templates_expect_to_find() -> None:
    assert render("{{ bos_token }}|{{ eos_token }}|{{ tools is defined }}") == "<s>|</s>|False"
    assert render("{{ messages | tojson }}") == '[{"role": "user", "content": "Hi"}]'
    assert render("{{ messages | tojson(indent=1) }}", ("user", "é<&>")).count("\n") == 5
    assert "é<&>" in render("{{ messages | tojson }}", ("user", "é<&>"))
    assert render("{% for m in [1, 2, 3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}") == "1"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", render("{{ strftime_now('%Y-%m-%d') }}"))
    assert render("{% set ns = namespace(n=1) %}{% set ns.n = 5 %}{{ ns.n }}") == "5"


def test_bos_and_eos_come_once() -> None:
    source = "{{ bos_token }}x{{ eos_token }}"
    assert render(source) == "<s>x</s>"
    assert render(source, add_bos=True) == "x</s>"
    assert render(source, add_bos=True, add_eos=True) == "x"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (None, "has no chat template"),
        ("{{ raise_exception('Only user\\nroles') }}", "refused the messages: Only user roles"),
        ("{% if %}", "refused the messages"),
        ("{{ messages[7].role.x }}", "refused the messages"),
        ("{{ 1 / 0 }}", "refused the messages"),
        ("{{ 'x' + 1 }}", "refused the messages"),
        ("{{ messages.append(1) }}", "refused the messages"),
        ("{{ ''.__class__.__mro__ }}", "refused the messages"),
        ("{{ messages.__init__.__globals__ }}", "refused the messages"),
        ("{% include '/etc/passwd' %}", "refused the messages"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "refused the messages"),
        ("{% for i in range(10**8) %}{% endfor %}", "refused the messages"),
        ("{% for i in range(90000) %}{{ 'x' * 1000 }}{% endfor %}", "wrote more than"),
        ("x" * ((1 << 20) + 1), "has 1048577 characters"),
    ],
)
def test_refusals(source: str | None, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        render(source)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_output_is_bounded_by_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_OUTPUT", 5)
    assert render("{{ 'ab' }}{{ 'cde' }}") == "abcde"
    with pytest.raises(RequestError):
        render("{{ 'ab' }}{{ 'cdef' }}")


def test_the_template_of_a_file(tmp_path: Path) -> None:
    source = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    template = key("tokenizer.chat_template", "string", source)
    tables = {**bpe_tables(["Ġx"], ["Ġ x"], {"<end>": CONTROL, "<u>": NORMAL}), "bos_token_id": 258, "eos_token_id": 0}
    assert tokenizer(tmp_path, tables, template).render_chat([("user", "Hi")]) == " xHi<end>"
    assert tokenizer(tmp_path, {**tables, "add_eos_token": True}, template).render_chat([("user", "Hi")]) == " xHi"
    assert tokenizer(tmp_path, spm_tables({"a": 0.0}), template).render_chat([("user", "Hi")]) == "Hi</s>"
    bare = tokenizer(tmp_path, tables)
    assert bare.chat_template is None
    with pytest.raises(RequestError, match="no chat template"):
        bare.render_chat([("user", "Hi")])
    with pytest.raises(ModelFileError, match=r"tokenizer\.chat_template is of type uint32"):
        tokenizer(tmp_path, tables, key("tokenizer.chat_template", "uint32", 1))

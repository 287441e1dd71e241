"""Chat messages rendered by a tokenizer: what it gives to the model's template, and what it takes from the text."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.engine.chat_template import ChatRenderer
from outrider.engine.vocab_facts import vocab_facts
from outrider.errors import ModelFileError, RequestError
from tests.gguf_bytes import key
from tests.vocabs import CONTROL, NORMAL, InThisProcess, bpe_tables, spm_tables, tokenizer


class Tokens(ChatRenderer):
    templates = InThisProcess()

    def __init__(self, template: str | None, *, add_bos: bool = False, add_eos: bool = False) -> None:
        self.chat_template = template
        texts = [b"<s>", b"</s>"]
        self.vocab = vocab_facts(type="bpe", add_bos=add_bos, bos=0, add_eos=add_eos, eos=1, texts=texts)

    def shown(self, token: int) -> str:
        return ("<s>", "</s>")[token]


def test_what_a_template_gets() -> None:
    source = "{{ bos_token }}{{ eos_token }}{{ messages }}{{ add_generation_prompt }}{{ x }}"
    tokens = Tokens(source)
    text = tokens.render_chat([("user", "Hi"), ("assistant", "Yo")], variables={"x": 1, "messages": "forged"})
    assert text == "<s></s>[{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Yo'}]True1"
    assert tokens.render_chat([], add_generation_prompt=False) == "<s></s>[]False"


def test_bos_and_eos_come_once() -> None:
    source = "{{ bos_token }}x{{ eos_token }}"
    assert Tokens(source).render_chat([]) == "<s>x</s>"
    assert Tokens(source, add_bos=True).render_chat([]) == "x</s>"
    assert Tokens(source, add_bos=True, add_eos=True).render_chat([]) == "x"


@pytest.mark.parametrize(
    ("template", "words"), [(None, "has no chat template"), ("x" * ((1 << 20) + 1), "has 1048577 characters")]
)
def test_refusals(template: str | None, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        Tokens(template).render_chat([("user", "Hi")])


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

"""The page at / in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.browser import BINARY, browser
from tests.api.world import World

pytestmark = pytest.mark.skipif(BINARY is None, reason="no Chromium is installed")


@pytest.mark.parametrize(("width", "height"), [(1200, 800), (390, 844)])
def test_a_chat_on_a_desktop_and_on_a_phone(server: World, tmp_path: Path, width: int, height: int) -> None:
    with browser(tmp_path) as page:
        page.open(f"{server.url}/", width, height)
        page.wait("document.getElementById('health').textContent === 'ok'")
        page.evaluate(
            "document.getElementById('limit').value = 40; document.getElementById('compare').checked = true;"
            "document.getElementById('prompt').value = 'Hi'; document.getElementById('form').requestSubmit()"
        )
        page.wait("document.getElementById('speed').textContent.includes('without drafts')")
        page.wait("document.getElementById('send').textContent === 'Send'")
        assert page.evaluate("document.querySelectorAll('.message.assistant').length") == 2
        assert page.evaluate("document.querySelectorAll('.message span.accepted').length") > 3
        assert page.evaluate("document.querySelectorAll('.message span.own').length") > 3
        assert page.evaluate("document.querySelectorAll('#rounds > div').length") > 3
        assert page.evaluate("[...document.querySelectorAll('#rounds i')].filter(i => i.offsetHeight).length") > 3
        assert page.evaluate("document.querySelectorAll('#positions > div').length") == 3
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate("document.querySelectorAll('.error').length") == 0

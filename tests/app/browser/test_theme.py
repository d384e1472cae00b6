"""The theme's colours can be read (WCAG 2.1, 1.4.3 and 1.4.11)."""

import pytest

from tests.app.browser.contrast import PARTS, TEXT, contrast, of_hex, over, themes


def test_contrast_is_wcags() -> None:
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast((119, 119, 119), (255, 255, 255)) == pytest.approx(4.48, abs=0.01)  # WebAIM's example
    assert over((0, 0, 0), 0.5, (255, 255, 255)) == (127.5, 127.5, 127.5)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_controls_stand_out(scheme: str) -> None:
    theme = themes()[scheme]
    for ground in ("backgroundColor", "secondaryBackgroundColor"):
        assert contrast(of_hex(theme["textColor"]), of_hex(theme[ground])) >= TEXT
        assert contrast(of_hex(theme["primaryColor"]), of_hex(theme[ground])) >= PARTS

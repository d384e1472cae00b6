"""How well a text stands out from what is behind it (WCAG 2.1, 1.4.3)."""

import tomllib
from typing import Any

from app import launch

CONFIG = launch.MAIN.parent / ".streamlit" / "config.toml"
TEXT, PARTS = 4.5, 3.0  # of text; of what a control or a figure is told by
# The text streamlit draws paler than textColor (captions, ticks): as it computes to in a browser.
_PALE = """() => [...document.querySelectorAll(
    '[data-testid=stCaptionContainer] p, [data-testid=stWidgetLabel] p, [data-testid=stMarkdown] p,' +
    '[data-testid=stMetricLabel] p, [data-testid=stMetricDelta], .gtitle, .xtick text, .ytick text,' +
    '.xtitle, .ytitle, .legendtext, [data-testid=stSidebarNavLink] span')]
  .filter(e => (e.offsetParent || e.ownerSVGElement) && !e.closest('[data-testid=stIconMaterial]'))
  .map(e => {
    const style = getComputedStyle(e);
    let opacity = 1, behind = null, at = e;
    const layers = [];
    while (at) {
      const one = getComputedStyle(at);
      opacity *= Number(one.opacity);
      if (!at.ownerSVGElement && one.backgroundColor !== 'rgba(0, 0, 0, 0)') layers.push(one.backgroundColor);
      at = at.parentElement;
    }
    return {text: e.textContent.slice(0, 40), opacity, layers,
            colour: e.ownerSVGElement ? style.fill : style.color,
            alpha: e.ownerSVGElement ? Number(style.fillOpacity) : 1};
  })"""

Colour = tuple[float, float, float]


def themes() -> dict[str, dict[str, str]]:
    theme = tomllib.loads(CONFIG.read_text())["theme"]
    return {name: theme[name] for name in ("light", "dark")}


def of_hex(text: str) -> Colour:
    return (int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16))


def luminance(colour: Colour) -> float:
    parts = [part / 255 for part in colour]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: Colour, other: Colour) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def over(front: Colour, alpha: float, back: Colour) -> Colour:
    """A colour that lets some of what is behind it through."""
    mixed = [alpha * f + (1 - alpha) * b for f, b in zip(front, back, strict=True)]
    return (mixed[0], mixed[1], mixed[2])


def of_css(text: str) -> tuple[Colour, float]:
    assert text.startswith("rgb"), text
    parts = [float(part) for part in text.partition("(")[2].rstrip(")").split(",")]
    return (parts[0], parts[1], parts[2]), parts[3] if len(parts) == 4 else 1.0


def pale_texts(page: Any, scheme: str) -> dict[str, float]:
    """Texts on the page with too little contrast, and how much they have."""
    found = page.evaluate(_PALE)
    assert len(found) > 5, "texts to look at"
    pale = {}
    for one in found:
        ground: Colour = of_hex(themes()[scheme]["backgroundColor"])
        for layer in reversed(one["layers"]):
            colour, alpha = of_css(layer)
            ground = over(colour, alpha, ground)
        colour, alpha = of_css(one["colour"])
        seen = contrast(over(colour, alpha * one["alpha"] * one["opacity"], ground), ground)
        if seen < TEXT:
            pale[one["text"]] = round(seen, 2)
    return pale

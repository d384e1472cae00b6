"""The server hears of each slider that stands elsewhere than it says, and of one place once."""

from pathlib import Path
from typing import Any

import pytest

import app.drag

pytestmark = pytest.mark.browser

_SOURCE = "".join((Path(app.drag.__file__).parent / name).read_text() for name in ("hand.js", "sliders.js"))
# Each of the server's answers, where the slider stands when it comes, and what is told once all timers ended.
_ANSWERS = """async ([source, answers]) => {
  const {default: listen} = await import(URL.createObjectURL(new Blob([source], {type: 'text/javascript'})));
  document.body.innerHTML = '<div class="st-key-bw"><input aria-valuetext="1"></div><div id="hand"></div>';
  const place = document.getElementById('hand'), slider = document.querySelector('input');
  const waiting = [], later = window.setTimeout;
  window.setTimeout = done => waiting.push(done);
  let told = 0;
  const counts = answers.map(([at, stands]) => {
    slider.setAttribute('aria-valuetext', stands);
    listen({data: {at: {bw: at}}, parentElement: place, setTriggerValue: () => { told += 1; }});
    const isMarked = 'moves' in place.dataset;
    while (waiting.length) waiting.shift()();
    return [told, isMarked];
  });
  window.setTimeout = later;
  return counts;
}"""


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ([("1", "1"), ("2", "2")], [(0, False), (0, False)]),
        ([("1", "1.1")], [(1, True)]),  # moved before there was one to hear it
        ([("1", "1"), ("1", "1.1")], [(0, False), (1, True)]),  # the answer to the move before it was lost
        ([("1", "1.1"), ("1", "1.1"), ("1", "1.1")], [(1, True), (1, False), (1, False)]),
        ([("1", "1.1"), ("1.1", "1.1"), ("1", "1.1")], [(1, True), (1, False), (2, True)]),
    ],
)
def test_it_is_told_of_what_it_does_not_know(
    page: Any, answers: list[tuple[str, str]], told: list[tuple[int, bool]]
) -> None:
    assert page.evaluate(_ANSWERS, [_SOURCE, answers]) == [list(one) for one in told]

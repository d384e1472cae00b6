"""The browser asks for what a slider leads to, part by part: all comes, however answers pass each other."""

from pathlib import Path
from typing import Any

import pytest

import app.drag

pytestmark = pytest.mark.browser

_SOURCE = "".join(
    (Path(app.drag.__file__).parent / name).read_text() for name in ("follow.js", "draw.js", "sliders.js")
)
_STOPS = 40
# A server that answers one question after the other, as app.drag.frames.part does, while the slider is moved:
# each start in turn is the answer to a question that was asked before. Ends once nothing is left to answer.
_TALK = """async ([source, stops, starts]) => {
  const {default: follow} = await import(URL.createObjectURL(new Blob([source], {type: 'text/javascript'})));
  const parentElement = document.createElement('div'), waiting = [];
  const answer = (has, start) => {
    const first = has ? has.next : 0;
    const part = {answers: has?.number, slider: 'cap_slider', group: 'caps', start: has ? has.start : start,
                  isSearched: true, first, next: Math.min(first + 1, stops), isLast: first + 1 >= stops,
                  stops: first < stops ? {[first]: 0} : {}, frames: first < stops ? [String(first)] : []};
    follow({data: {sliders: ['cap_slider'], places: {}, style: {}, part}, parentElement,
            setStateValue: (_, has) => waiting.push(has)});
  };
  for (const start of starts) answer(null, start);
  let answered = 0;
  while (waiting.length && answered < 100 * stops) {
    answered += 1;
    answer(waiting.shift());
  }
  const known = parentElement.follower.known.get('cap_slider');
  return {answered, isWhole: known.isWhole, stops: Object.keys(known.stops).length};
}"""


@pytest.mark.parametrize("starts", [["25"], ["25", "30"], ["25", "30", "50"], ["25", "30", "25"]])
def test_all_stops_come_in_the_end(page: Any, starts: list[str]) -> None:
    talk = page.evaluate(_TALK, [_SOURCE, _STOPS, starts])
    assert talk == {"answered": talk["answered"], "isWhole": True, "stops": _STOPS}
    assert talk["answered"] < 2 * _STOPS

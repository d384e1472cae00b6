"""Many browsers at once on one dashboard, for long: ``python -m tests.chaos.visitors --minutes 30``.

Each visitor opens the page, uploads a job and a machine of its own, drags the slider of the cap, and comes
again; every fourth time a file has something wrong in it. What a page says is what the command line says of
the same files, or refuses; no exception is shown, no page complains, and the server's memory stays flat: in
the last third of the time it grows by less than 8 MiB.
"""

import argparse
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import sim
from sim.units import format_ms
from tests.app.browser import harness
from tests.app.browser.harness import Site, alerts, headline, is_drawn, is_settled, rerun
from tests.app.conftest import make_hardware, make_traces, make_workload
from tests.chaos.documents import mutated
from tests.commands import bucketsim

MIB = 1 << 20
_MOST_GROWN = 8 * MIB  # in the last third of the time
_CAP, _DRAWN = "Cap, MiB (slider)", ".bucketsim-dragged"
_KEYS = ("ArrowLeft", "ArrowRight", "PageUp", "PageDown", "Home", "End")
_HAS_CAP = "cap => +(new URLSearchParams(location.search).get('cap') ?? 25) === cap"  # 25 is the default


@dataclass(kw_only=True)
class Told:
    """What was done and seen, by all visitors together; memory in bytes, with the minute."""

    did: Counter[str] = field(default_factory=Counter)
    memory: list[tuple[float, int]] = field(default_factory=list)

    def at(self, share: float) -> int:
        """The memory when ``share`` of the time was over."""
        end = self.memory[-1][0]
        return min(self.memory, key=lambda seen: abs(seen[0] - share * end))[1]

    @property
    def grown(self) -> int:
        """What was held more in the last sixth of the time than in the fourth, by the median of each."""
        return self._held(6) - self._held(4)

    @property
    def is_flat(self) -> bool:
        """Whether the memory has ceased to grow, within what single moments differ by."""
        return self.grown < _MOST_GROWN

    def _held(self, sixth: int) -> int:
        sixths = self.memory[-1][0] / 6
        return int(median(held for when, held in self.memory if sixth - 1 <= when / sixths <= sixth))

    def see(self, minute: float, held: int, *, is_printed: bool) -> None:
        """Note what the server holds, and print it with what was done so far."""
        self.memory.append((minute, held))
        if is_printed:
            print(f"{minute:.1f} min, {held // MIB} MiB, {dict(self.did)}", flush=True)

    def __str__(self) -> str:
        done = ", ".join(f"{count} {what}" for what, count in sorted(self.did.items()))
        held = ", ".join(f"{self.at(share / 6) // MIB}" for share in range(7))
        grown = f"{self.grown / MIB:+.1f} in the last third, {'flat' if self.is_flat else 'NOT FLAT'}"
        return f"{self.memory[-1][0]:.1f} minutes: {done}; MiB at each sixth of the time: {held}; {grown}"


class Visitor:
    """One browser window; ``steps`` acts, and looks at what came of it when it is asked again."""

    def __init__(self, number: int, seed: int, site: Site, folder: Path, told: Told) -> None:
        self._draw = random.Random(f"{seed} {number}")
        self._site, self._told = site, told
        self._mark = f"visitor-{number:02d}"
        self._files = {kind: folder / f"{self._mark}-{kind}.json" for kind in ("workload", "hardware")}

    def steps(self, browser: Any) -> Iterator[None]:
        """Without an end: each step has begun something that takes the server a while."""
        while True:
            with harness.tab(browser) as tab, harness.visit(tab) as page:
                for _ in range(4):
                    page.goto(f"{self._site.url}/?start=upload", wait_until="commit")
                    yield
                    is_drawn(page)
                    yield from self._visit(page)

    def _visit(self, page: Any) -> Iterator[None]:
        is_sound = self._draw.random() < 0.75
        self._write(is_sound)
        place = page.get_by_test_id("stFileUploader").first.locator("input[type=file]")
        with rerun(page):
            place.set_input_files(list(map(str, self._files.values())))
            yield
        self._told.did["uploads" if is_sound else "uploads with something wrong"] += 1
        is_read = self._compare(page, None)
        assert is_read or not is_sound, alerts(page)
        for _ in range(self._draw.randint(6, 12) if is_read else 0):
            cap = self._drag(page)
            yield
            page.wait_for_function(_HAS_CAP, arg=cap)
            page.wait_for_function(f"!document.querySelector('{_DRAWN}')")
            is_settled(page)
            self._told.did["drags"] += 1
            self._compare(page, cap)

    def _write(self, is_sound: bool) -> None:
        factor = self._draw.uniform(0.5, 3)
        workload = sim.scale(
            replace(make_workload(), name=f"{self._mark} job"), make_hardware(), backward=factor
        )[0]
        nouns = {"workload": workload, "hardware": make_hardware(f"{self._mark} machine")}
        texts = {kind: sim.to_text(noun).encode() for kind, noun in nouns.items()}
        if not is_sound:
            kind = self._draw.choice(sorted(texts))
            texts[kind] = mutated(self._draw, texts[kind], texts["hardware"])
        for kind, text in texts.items():
            self._files[kind].write_bytes(text)

    def _drag(self, page: Any) -> float:
        """Move the slider, by keys or by hand; where it stands then, MiB."""
        handle = page.get_by_role("slider", name=_CAP)
        handle.scroll_into_view_if_needed()
        before = handle.get_attribute("aria-valuetext")
        if self._draw.random() < 0.5:
            handle.focus()
            for _ in range(self._draw.randint(1, 6)):
                page.keyboard.press(self._draw.choice(_KEYS))
        else:
            track = page.locator(".st-key-cap_slider [role=group]").bounding_box()
            knob = page.locator(".st-key-cap_slider input").locator("xpath=..").bounding_box()
            down = knob["y"] + knob["height"] / 2
            page.mouse.move(knob["x"] + knob["width"] / 2, down)
            page.mouse.down()
            for _ in range(self._draw.randint(2, 6)):
                page.mouse.move(track["x"] + self._draw.uniform(0.1, 0.9) * track["width"], down)
            page.mouse.up()
        for key in ("ArrowLeft", "ArrowRight"):  # where it has come back to, nobody would ask the server
            if handle.get_attribute("aria-valuetext") == before:
                handle.press(key)
        return float(handle.get_attribute("aria-valuetext"))

    def _compare(self, page: Any, cap: float | None) -> bool:
        """Hold the page against the command line; whether the files are read."""
        assert [one.inner_text() for one in page.get_by_test_id("stException").all()] == []
        others = set(re.findall(r"visitor-\d\d", page.inner_text("body"))) - {self._mark}
        assert not others, f"{self._mark} sees {others}"
        given = () if cap is None else ("--bucket-cap-mb", cap)
        files = (self._files["workload"], "--hardware", self._files["hardware"])
        said = bucketsim("simulate", *files, *given, "--json")
        lines = alerts(page)
        assert "Traceback" not in "".join(lines), lines
        if said.code:
            assert lines, f"refused by the command line ({said.err}), and not by the page"
            self._told.did["refusals seen in both"] += 1
            return False
        shown, right = headline(page).get("Step time"), format_ms(json.loads(said.out)["step_ns"])
        assert shown == right, (
            f"{self._mark}, cap {cap}: {shown} on the page, {right} of the command: {lines}"
        )
        self._told.did["answers equal to the command line's"] += 1
        return True


def soak(minutes: float, count: int, seed: int, *, is_printed: bool = False) -> Told:
    """``count`` visitors for ``minutes``; raises ``AssertionError`` where one sees what is wrong."""
    told = Told()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="visitors-")))
        site = stack.enter_context(harness.serve(folder, make_traces(folder / "traces")))
        browser = stack.enter_context(harness.chromium())
        steps = [Visitor(number, seed, site, folder, told).steps(browser) for number in range(count)]
        began = time.monotonic()
        while (now := (time.monotonic() - began) / 60) < minutes:
            told.see(now, site.memory_bytes(), is_printed=is_printed)
            for each in steps:
                next(each)
        for each in steps:
            each.close()  # a page that complained says so now
        assert site.process.poll() is None
        said = site.log.read_text()
        assert "Traceback" not in said, said
    return told


def command(soak: Callable[..., Told], about: str | None) -> None:
    """Soak as the command line asks, and print what was seen."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--visitors", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    print(soak(asked.minutes, asked.visitors, asked.seed, is_printed=True))


if __name__ == "__main__":
    command(soak, __doc__)

"""Figures for people without the page are the page's."""

from pathlib import Path

import pytest

import sim
from app.figures.timeline import draw_timeline, path_marks, timeline_data
from sim import plot
from sim.errors import InputError
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload


def test_each_figure_is_the_page_s(workload: Workload, hardware: Hardware, traces: Path) -> None:
    found = sim.tune(workload, hardware)
    played = sim.simulate(workload, hardware, found.assignment)
    marks = path_marks(played, sim.critical_path(played))
    assert sim.plot is plot
    assert plot.timeline(played) == draw_timeline(timeline_data(played), marks)
    rows = sim.sweep(workload, hardware)
    names = [trace.name for trace in plot.sweep(rows, found).data]
    assert names == ["DDP's default", "bucket_cap_mb", "recommended cap"]
    assert len(plot.sweep(rows).data) == 2
    both = {"best": played, "default": sim.simulate(workload, hardware, sim.assign(workload))}
    titles = [one.text for one in plot.compare(both).layout.annotations]
    assert titles == ["<b>A</b> best", "<b>B</b> default"]
    assert list(plot.compare(both, parts=True).data[0].y) == ["best", "default"]
    agreement = sim.agreement(sim.load_record(traces / "measured" / "made-up"))
    assert len(plot.measured(agreement).data[1].x) == len(agreement.rows)
    with pytest.raises(InputError, match="compare: 0 steps"):
        plot.compare({})

"""Max-min fair shares: by their definition, and against filling in small steps."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.clusters.topology.shares import max_min_shares
from tests.effort import tries

Case = tuple[list[dict[str, float]], dict[str, float]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    links = [f"l{number}" for number in range(draw(st.integers(1, 5)))]
    capacity = {link: float(draw(st.integers(0, 12))) for link in links}
    flow = st.dictionaries(st.sampled_from(links), st.sampled_from([1.0, 1.0, 2.0, 3.0]), min_size=1)
    return draw(st.lists(flow, min_size=1, max_size=6)), capacity


@given(cases())
@settings(max_examples=tries(400))
def test_no_link_is_over_and_every_flow_has_its_bottleneck(case: Case) -> None:
    """The definition: a full link on which no other flow has a higher rate."""
    flows, capacity = case
    rates = max_min_shares(flows, capacity)
    used = {
        link: sum(flow.get(link, 0.0) * rate for flow, rate in zip(flows, rates, strict=True))
        for link in capacity
    }
    assert all(used[link] <= total * (1 + 1e-9) + 1e-9 for link, total in capacity.items())
    for flow, rate in zip(flows, rates, strict=True):
        assert any(
            used[link] >= capacity[link] * (1 - 1e-9)
            and all(
                rate >= other * (1 - 1e-9) for one, other in zip(flows, rates, strict=True) if link in one
            )
            for link in flow
        )


@given(cases())
@settings(max_examples=tries(100))
def test_small_steps_in_turn_lead_to_the_same(case: Case) -> None:
    """Each flow in turn takes a drop more of its links while all of them have it."""
    flows, capacity = case
    drop, left, rates = 1 / 64, dict(capacity), [0.0] * len(flows)
    moved = True
    while moved:
        moved = False
        for number, flow in enumerate(flows):
            if all(left[link] >= times * drop for link, times in flow.items()):
                for link, times in flow.items():
                    left[link] -= times * drop
                rates[number] += drop
                moved = True
    # A drop in turn is unfair by a drop a flow on each link; what is unfair on one moves on to the next.
    tolerance = drop * 3 * len(flows) * (len(capacity) + 1)
    assert max_min_shares(flows, capacity) == pytest.approx(rates, abs=tolerance)


@given(cases(), st.floats(0.01, 1e12))
def test_shares_scale_with_capacity(case: Case, factor: float) -> None:
    flows, capacity = case
    scaled = max_min_shares(flows, {link: total * factor for link, total in capacity.items()})
    assert scaled == pytest.approx([rate * factor for rate in max_min_shares(flows, capacity)])


def test_three_flows_by_hand() -> None:
    """A long flow and two short ones on links of 1 and 2: the long one is held by the first."""
    flows = [{"a": 1, "b": 1}, {"a": 1}, {"b": 1}]
    assert max_min_shares(flows, {"a": 1.0, "b": 2.0}) == pytest.approx([0.5, 0.5, 1.5])


def test_a_ring_that_passes_twice_takes_twice() -> None:
    assert max_min_shares([{"up": 2}, {"up": 1}], {"up": 3.0}) == pytest.approx([1.0, 1.0])


def test_nothing_to_cross_and_nothing_to_have() -> None:
    assert max_min_shares([], {}) == []
    assert max_min_shares([{}], {"a": 1.0}) == [math.inf]
    assert max_min_shares([{"a": 1}, {"b": 1}], {"a": 0.0, "b": 5.0}) == [0.0, 5.0]

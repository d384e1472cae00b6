"""What stands for a message: bursts are left out, small messages count by their mean, scatter is seen."""

from statistics import fmean

from hypothesis import given
from hypothesis import strategies as st

from sim.validator.ranks.probes.settling import FEWEST_ROUNDS, figure_ns, interval_ns, is_settled, modes

MS = 10**6
ROUND = st.lists(st.floats(0.99, 1.01), min_size=1, max_size=30)


@given(
    st.integers(MS, 10**10),
    st.lists(ROUND, min_size=FEWEST_ROUNDS, max_size=11),
    st.data(),
)
def test_a_burst_in_a_third_of_the_rounds_changes_nothing(
    clean_ns: int, factors: list[list[float]], data: st.DataObject
) -> None:
    rounds = [[round(clean_ns * factor) for factor in one] for one in factors]
    struck = data.draw(
        st.sets(st.integers(0, len(rounds) - 1), max_size=len(rounds) // 3), label="rounds struck"
    )
    for number in struck:
        rounds[number] = [round(sample * data.draw(st.floats(1.5, 20))) for sample in rounds[number]]
    assert abs(figure_ns(rounds) - clean_ns) <= 0.011 * clean_ns


@given(st.lists(st.lists(st.integers(1, 10**9), min_size=1, max_size=8), min_size=1, max_size=9))
def test_the_figure_lies_in_its_interval_and_among_the_rounds(rounds: list[list[int]]) -> None:
    figure, (low, high) = figure_ns(rounds), interval_ns(rounds)
    assert low <= high
    means = [fmean(one) for one in rounds]
    assert min(means) - 1 <= figure <= max(means) + 1
    clean, stalled, share = modes(rounds)
    assert 0 <= share < 1
    assert stalled is None or stalled > clean


def test_small_messages_count_by_the_mean_of_a_round() -> None:
    rounds = [[400_000] * 20 + [4 * MS] * 10 for _ in range(FEWEST_ROUNDS)]
    assert figure_ns(rounds) == 1_600_000
    assert modes(rounds) == (400_000, 4 * MS, 1 / 3)
    assert is_settled(rounds)


def test_rounds_that_do_not_agree_are_not_settled() -> None:
    clean, burst = [280 * MS] * 4, [430 * MS] * 4
    assert is_settled([clean] * FEWEST_ROUNDS)
    assert not is_settled([clean] * (FEWEST_ROUNDS - 1))
    assert not is_settled([clean, clean, burst, [650 * MS] * 4, [510 * MS] * 4])

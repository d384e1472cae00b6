"""The recommendation: the optimum alone, families and regrets, the gain, the band of steps."""

from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.nouns.workload import Workload
from sim.tuner.optimum import find_optimum
from sim.tuner.problem import Problem
from tests.effort import tries
from tests.handmade import handmade, wired
from tests.tuner.cases import MIB, MS, Case, anything, link, one_run, resnet50, transformer

# Families.


@settings(max_examples=tries(60))
@given(anything(max_gradients=7))
def test_no_family_is_better(case: Case) -> None:
    """Regret is a family's step minus the recommended step; no cap is ahead, 0 or what holds everything."""
    workload, hardware = case
    answer = sim.tune(workload, hardware)
    families = answer.families
    # Where the best buckets' gain is in doubt another candidate is advised.
    is_nominal = not answer.proof.startswith("of the buckets that are best by the times as given")
    least_ns = families["bucket_indices"].regret_ns
    assert least_ns == 0 if is_nominal else least_ns <= 0
    assert {"default", "bucket_cap_mb", "bucket_indices"} <= set(families)
    for name, family in families.items():
        report = sim.summarize(sim.simulate(workload, hardware, family.assignment, "analytic"))
        assert replace(family.report, engine="") == replace(report, engine=""), name
        assert family.regret_ns == report.step_ns - answer.report.step_ns
        assert family.regret_ns >= least_ns, name
    assert families["default"].assignment == sim.assign(workload)
    assert replace(families["default"].report, engine="simpy") == answer.baseline
    for policy in ("per-parameter", "single"):
        played = sim.simulate(workload, hardware, sim.assign(workload, policy), "analytic")
        assert played.step_ns >= families["bucket_indices"].report.step_ns
    assert families["bucket_indices"].assignment == answer.assignment or not is_nominal
    cap = families["bucket_cap_mb"].assignment
    assert sim.assign(workload, bucket_cap_mb=cap.ddp_kwargs["bucket_cap_mb"]) == cap
    assert answer.report.engine == answer.baseline.engine == "simpy"
    for path, report in ((answer.critical_path, answer.report), (answer.baseline_path, answer.baseline)):
        assert not path or path[-1].end_ns == report.sync_end_ns


@settings(max_examples=tries(100))
@given(one_run(max_gradients=9))
def test_the_cap_list_reaches_what_is_recommended(case: Case) -> None:
    """B(i): where a ``bucket_cap_mb_list`` is offered, DDP's own rules make of it the same buckets; and one
    is offered wherever no bucket ends in an empty gradient."""
    workload, hardware = case
    recommendation = sim.tune(workload, hardware)
    best = recommendation.families["bucket_indices"].assignment  # recommended, unless what is set is as good
    ends = [workload.gradients[bucket[-1]].num_bytes for bucket in best.bucket_indices]
    caps = best.ddp_kwargs.get("bucket_cap_mb_list")
    assert ("bucket_cap_mb_list" in recommendation.families) == (caps is not None)
    if caps is None:
        assert 0 in ends
        return
    rebuilt = sim.assign(workload, bucket_cap_mb_list=caps)
    assert rebuilt.bucket_indices == best.bucket_indices
    assert best.requires == {"torch": ">=2.11"}


# The gain.


def two_halves(
    first_ms: float, second_ms: float, *, size_mb: float = 10, backward_ms: float = 40
) -> Workload:
    """Two gradients that DDP's default puts into one bucket only if the first is below 1 MiB; here it is
    not, so its default cuts them apart, and a third, small one comes last."""
    size, ready = round(size_mb * 1e6), [round(ms * MS) for ms in (backward_ms, second_ms, first_ms)]
    return handmade(ready, [1000, size, size], name="two halves", forward_ns=10 * MS, backward_ns=ready[0])


# 1 ms for a collective and 1 ms a MB: (10 MB) 11 ms, (20 MB) 21 ms.
EXACTLY = {"ranges": {"all_reduce": {"low": 1.0, "high": 1.0}}}  # else a curve without scatter is not exact
WIRE = replace(wired({0: MS, 100_000_000: 101 * MS}), spread=EXACTLY)


def sample(workload: Workload, *times_ms: tuple[float, float]) -> Workload:
    """Iterations in which the first two gradients were ready at these times, in ms."""
    last = workload.gradients[0].ready_ns
    rows = tuple((last, round(second * MS), round(first * MS)) for first, second in times_ms)
    return replace(workload, samples=rows)


def test_a_gain_that_comes_and_goes_is_not_significant() -> None:
    """Where the second half is ready only at the very end, cutting it off costs a collective more: of 8
    iterations 4 gain 10 ms, and 4 lose 1."""
    workload = sample(two_halves(10, 25), *[(10, 25)] * 4, *[(10, 40)] * 4)
    recommendation = sim.tune(workload, WIRE)
    cut_gain = sim.gain(workload, WIRE, recommendation.families["bucket_indices"].assignment)
    assert (cut_gain.gain_ns, cut_gain.mean_ns) == (10 * MS, 4.5 * MS)
    assert cut_gain.low_ns is not None
    assert cut_gain.high_ns is not None
    assert cut_gain.low_ns < 0
    gain = recommendation.gain
    assert (gain.gain_ns, gain.significant) == (0, False)  # what is recommended is the default
    assert gain.sentence == (
        f"no significant difference: the gain of the buckets that are best by the times as given is "
        f"{cut_gain.low_ns / 1e6:.2f} ms to {cut_gain.high_ns / 1e6:.2f} ms with 95% confidence; "
        "keep the default"
    )


def test_a_default_that_is_best_is_kept() -> None:
    """One gradient leaves no choice; and the sentence says so, with and without samples."""
    workload = handmade([5], 4 * MIB, backward_ns=9)
    for case in (workload, replace(workload, samples=((4,), (5,), (6,)))):
        recommendation = sim.tune(case, WIRE)
        assert recommendation.assignment.bucket_indices == recommendation.baseline.bucket_indices
        gain = recommendation.gain
        assert (gain.gain_ns, gain.fraction, gain.significant) == (0, 0, False)
        assert gain.sentence.endswith("better than DDP's default; keep it")


def test_a_hook_s_casts_decide_what_is_best() -> None:
    """They end before the bytes of one bucket are copied out; a search that knows none takes one."""
    workload = handmade([15 * MS, 10 * MS, 9 * MS], [5 * MIB, 10 * MIB, MIB // 64], backward_ns=16 * MS)
    slow = dict.fromkeys(("copy_in_bytes_per_s", "copy_out_bytes_per_s"), 1e9)
    machine = replace(WIRE, world_size=1, launch_cost_ns=MS // 10, launch_blocks_compute=True, **slow)
    answer = sim.tune(workload.with_switches({"comm_hook": "bf16_compress"}), machine)
    assert answer.report.step_ns <= answer.baseline.step_ns
    assert answer.gain.sentence.endswith("is better than DDP's default; keep it")
    assert (answer.proved_optimal, answer.proof) == (True, "all 4 contiguous partitions simulated")


@settings(max_examples=tries(100))
@given(anything(max_gradients=6), st.data())
def test_gain_is_the_difference_of_steps(case: Case, data: st.DataObject) -> None:
    workload, hardware = case
    times = [gradient.ready_ns or 0 for gradient in workload.gradients]
    jitter = st.lists(st.integers(-3, 3), min_size=len(times), max_size=len(times))
    rows = data.draw(st.lists(jitter, max_size=4))
    samples = tuple(tuple(max(0, t + j) for t, j in zip(times, row, strict=True)) for row in rows)
    recommendation = sim.tune(replace(workload, samples=samples), hardware)
    gain = recommendation.gain
    assert gain.gain_ns == recommendation.baseline.step_ns - recommendation.report.step_ns >= 0
    if recommendation.baseline.step_ns:
        assert gain.fraction == gain.gain_ns / recommendation.baseline.step_ns
    is_known = gain.low_ns is not None
    assert is_known == (len(samples) >= 2 or bool(gain.rests_on))  # or the curve is a guess at these sizes
    assert (gain.noise_ns is not None) == (len(samples) >= 2)
    if gain.low_ns is not None and gain.mean_ns is not None and gain.high_ns is not None:
        assert gain.low_ns <= gain.mean_ns <= gain.high_ns
    if len(samples) < 2:
        is_sure = (gain.low_ns is None or gain.low_ns > 0) and gain.fraction >= 0.001
        assert gain.significant is (None if is_sure else False)
    elif gain.significant:
        assert (gain.low_ns or 0) > 0
        figure = max(gain.gain_ns, gain.mean_ns or 0)
        assert figure >= 0.01 * recommendation.baseline.step_ns or figure > (gain.noise_ns or 0)
    if gain.significant is False:
        assert "keep" in gain.sentence
    else:
        assert gain.sentence.startswith("saves ")
        assert "keep" not in gain.sentence


# Of whole buckets a search knows merges only, and every place where it answers says so.

# 1.67 GiB in two blocks; the second is ready as backward ends, and all of it is exposed.
BLOCKS = handmade(
    [100 * MS, 40 * MS],
    [992_000_000, 800_000_000],
    name="blocks",
    names=("bucket 1", "bucket 0"),
    forward_ns=50 * MS,
    optimizer_ns=5 * MS,
    whole_buckets=True,
)
BLOCKS_WIRE = wired({1 << power: 10_000 + (1 << power) // 44 for power in (20, 31)}, world_size=8)


@pytest.mark.parametrize("by_name", [False, True])
def test_the_proof_over_whole_buckets_is_one_over_merges(by_name: bool) -> None:
    answer = sim.tune(replace(BLOCKS, whole_buckets=None if by_name else True), BLOCKS_WIRE)
    assert answer.proved_optimal
    assert answer.report.exposed_comm_ns > 20 * MS
    for sentence in (answer.proof, answer.gain.sentence):
        assert "over merges of the 2 buckets as recorded only" in sentence
    (note,) = answer.notes
    exposed = f"{answer.report.exposed_comm_ns / 1e6:.2f} ms that stay exposed"
    assert all(words in note for words in (exposed, "never divided", "record_shapes=True", "sim.record"))


# How far above the optimum the tuner can be at most, on what was recorded: the manual says it.

TRACES = Path(__file__).parents[2] / "traces"
WIRES = ("box-*gbit", "box-2x1gbit-claims", "loopback-2")


@pytest.mark.slow
def test_gaps_to_the_bounds() -> None:
    """Of what is searched as the machine is, and without the rule for small messages, as ``tune`` says it."""
    searched, said = [], []
    files = sorted({path for wire in WIRES for path in (TRACES / "hardware").glob(f"{wire}.json")})
    for path in sorted((TRACES / "workloads").glob("*.json")):
        workload = sim.load_workload(path)
        known = [sim.assign(workload, bucket_cap_mb=cap).bucket_indices for cap in (1, 2, 4, 8, 16, 25, 1000)]
        for wire in files:
            problem = Problem(workload, sim.load_hardware(wire))
            for gaps, one in ((searched, problem), (said, problem.for_search)):
                optimum = find_optimum(one, known)
                gaps.append(optimum.sync_end_ns / optimum.at_least_ns - 1)
    assert len(searched) == 21
    assert max(searched) <= 0.011
    assert median(searched) <= 0.0006
    assert max(said) <= 0.02
    assert median(said) <= 0.003


# One machine for all answers: tune, simulate and sweep say one step of the same buckets.

WORKLOADS = sorted((TRACES / "workloads").glob("*.json"))
MACHINES = [TRACES / "hardware" / f"{name}.json" for name in ("box-2x1gbit", "box-2x4gbit-families")]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda path: path.stem)
@pytest.mark.parametrize("path", WORKLOADS, ids=lambda path: path.stem)
def test_every_family_takes_as_long_as_it_is_simulated_and_swept(path: Path, machine: Path) -> None:
    workload, hardware = sim.load_workload(path), sim.load_hardware(machine)
    answer = sim.tune(workload, hardware, draws=1)
    for family in answer.families.values():
        played = sim.summarize(sim.simulate(workload, hardware, family.assignment))
        assert played.step_ns == family.report.step_ns
    swept = {row.bucket_cap_mb: row.step_ns for row in sim.sweep(workload, hardware)}
    assert answer.setting.saved_ns == answer.baseline.step_ns - answer.setting.step_ns
    assert (answer.setting.saved_ns > 0) == (answer.setting.pick != "default")
    if answer.setting.cap_mb is not None:
        cap = sim.assign(workload, bucket_cap_mb=answer.setting.cap_mb)
        step_ns = sim.summarize(sim.simulate(workload, hardware, cap)).step_ns
        assert step_ns == answer.setting.cap_step_ns == swept[answer.setting.cap_mb]


@settings(max_examples=tries(25))
@given(anything(max_gradients=7))
def test_the_best_alone_is_the_best_of_the_step_as_given(case: Case) -> None:
    assert sim.best(*case) == sim.tune(*case).families["bucket_indices"].assignment


def test_progress_is_told_and_changes_nothing() -> None:
    told: list[str] = []
    workload = transformer(1)
    assert sim.tune(workload, link(4), progress=told.append) == sim.tune(workload, link(4))
    assert {"comparing caps", "playing steps as they vary"} <= set(told)


def test_a_search_ends_when_its_listener_raises() -> None:
    class EnoughError(Exception):
        pass

    def stop(words: str) -> None:
        raise EnoughError

    for search in (sim.tune, sim.best):
        with pytest.raises(EnoughError):
            search(resnet50(), link(4), progress=stop)
    sim.best(resnet50(), link(4))  # and nobody listens any more

"""Several jobs on one cluster: oracles by hand, by theory and by another simulator, and what always holds."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import sim
from sim.clusters.jobs.contention import MOST_STEPS, play_jobs
from sim.clusters.jobs.neighbours import wire_bytes
from sim.errors import InputError
from sim.nouns.assignment import Assignment
from sim.nouns.cluster import Cluster, Device, Hosts, HostTemplate, Link
from sim.nouns.hardware import Hardware
from sim.nouns.jobs import Job
from sim.nouns.workload import Buffer, Workload
from tests.effort import tries
from tests.handmade import handmade, wired
from tests.strategies import SCALES, Case, cases
from tests.systems.any_system import system_cases

GB = 1e9  # bytes/s: a byte a ns
HOST = HostTemplate(
    name="host",
    generation="ampere",
    devices=(Device(name="gpu0", kind="gpu"), Device(name="nic0", kind="nic")),
    links=(Link(a="gpu0", b="nic0", kind="pcie", bytes_per_s=1e12),),
)


def dumbbell(jobs: int, uplink: float = GB) -> Cluster:
    """Two switches with ``jobs`` hosts on each; what joins the switches carries as much as one port."""
    ports = [
        Link(a=f"host{host}.nic0", b=f"switch{host // jobs}", kind="net", bytes_per_s=GB)
        for host in range(2 * jobs)
    ]
    return Cluster(
        name="dumbbell",
        templates=(HOST,),
        hosts=(Hosts(template="host", count=2 * jobs),),
        switches=("switch0", "switch1"),
        links=(*ports, Link(a="switch0", b="switch1", kind="net", bytes_per_s=uplink)),
    )


def ranks(*hosts: int) -> tuple[str, ...]:
    return tuple(f"host{host}.gpu0" for host in hosts)


def across(number: int, jobs: int) -> tuple[str, ...]:
    return ranks(number, number + jobs)


def line(latency_ns: int, bytes_per_s: float = GB) -> Hardware:
    """Two ranks, whose all-reduce takes a latency and all its bytes on the wire."""
    far = 10**9
    return wired({0: latency_ns, far: latency_ns + round(far * 1e9 / bytes_per_s)}, name="line")


def workload(sizes: Sequence[int], ready: Sequence[int], *, forward: int = 0, tail: int = 0) -> Workload:
    """Gradients of these sizes, the last one ready first, at these times in that order."""
    return handmade(ready[::-1], sizes, forward_ns=forward, backward_ns=max(ready) + tail)


def job(name: str, where: tuple[str, ...], work: Workload, hardware: Hardware) -> Job:
    """Each gradient a bucket."""
    order = tuple((index,) for index in reversed(range(len(work.gradients))))
    return Job(
        name=name, ranks=where, workload=work, hardware=hardware, assignment=Assignment(bucket_indices=order)
    )


def endless(name: str, where: tuple[str, ...], num_bytes: int, latency_ns: int) -> Job:
    """All-reduces one after the other, with nothing between."""
    return job(name, where, workload([num_bytes], [0]), line(latency_ns))


def alone(case: Case) -> int:
    return sim.summarize(sim.simulate(case.workload, case.hardware, case.assignment)).step_ns


@given(cases(SCALES) | system_cases(), cases(SCALES))
@settings(max_examples=tries(60))
def test_a_job_alone_or_on_links_of_its_own_is_what_simulate_says(one: Case, other: Case) -> None:
    """To the nanosecond, step after step, whatever the system: neither meets the other."""
    made = []
    for number, case in enumerate((one, other)):
        hardware = replace(case.hardware, world_size=2)
        case = replace(case, hardware=hardware)
        assume(alone(case) > 0)
        made.append(
            (
                alone(case),
                Job(
                    name=str(number),
                    ranks=ranks(2 * number, 2 * number + 1),
                    workload=case.workload,
                    hardware=hardware,
                    assignment=case.assignment,
                ),
            )
        )
    cluster = dumbbell(2)
    short, long = sorted(step for step, _ in made)
    assume(long < 100 * short)
    for jobs in ([made[0]], made):
        report = play_jobs([each for _, each in jobs], cluster, steps=3, warmup=0)
        for (step, _), played in zip(jobs, report.jobs, strict=True):
            assert set(played.step_ns) == {step}
            assert (played.alone_step_ns, played.slowdown) == (step, 1.0)
            assert played.always_beside_step_ns == step
            assert played.mean_exposed_comm_ns == played.alone_exposed_comm_ns
        assert report.shared_links == ()


@given(st.integers(2, 5), st.integers(1, 10**8), st.integers(0, 10**6))
@settings(max_examples=tries(40))
def test_endless_loops_on_one_uplink_take_n_times_the_wires_part(
    jobs: int, num_bytes: int, latency_ns: int
) -> None:
    played = play_jobs(
        [endless(f"j{number}", across(number, jobs), num_bytes, latency_ns) for number in range(jobs)],
        dumbbell(jobs),
        steps=4,
        warmup=0,
    )
    for each in played.jobs:
        assert each.alone_step_ns == latency_ns + num_bytes
        assert set(each.step_ns) == {latency_ns + jobs * num_bytes}
        assert each.always_beside_step_ns == latency_ns + jobs * num_bytes
    both = {("switch0", "switch1"), ("switch1", "switch0")}
    assert {(link.a, link.b) for link in played.shared_links} == both
    assert all(link.shares_bytes_per_s == pytest.approx((GB / jobs,) * jobs) for link in played.shared_links)


def test_two_jobs_that_meet_by_hand() -> None:
    """Both send 100 bytes at a byte a ns; b comes 50 ns later.

    The other half of a's first takes 100 ns at half the pace, to 150; its second begins then. b has sent 50
    by 150, and the other 50 take 100 more: 250 - 50 = 200. From then on both always send: 200 each.
    """
    jobs = [endless("a", across(0, 2), 100, 0), endless("b", across(1, 2), 100, 0)]
    a, b = play_jobs(jobs, dumbbell(2), steps=3, warmup=0, offsets_ns=[0, 50]).jobs
    assert a.step_ns[:3] == (150, 200, 200)
    assert b.step_ns[:3] == (200, 200, 200)


def test_a_latency_is_not_stretched_by_others() -> None:
    """100 ns of latency and 100 of wire: 300 beside another, at two thirds of the pace throughout.

    b comes at 100: half of a's is done, the rest takes 150, to 250.
    """
    jobs = [endless("a", across(0, 2), 100, 100), endless("b", across(1, 2), 100, 100)]
    a, b = play_jobs(jobs, dumbbell(2), steps=2, warmup=0, offsets_ns=[0, 100]).jobs
    assert a.step_ns[:2] == (250, 300)
    assert b.step_ns[:2] == (300, 300)


def test_a_jobs_own_effects_stay_in_force() -> None:
    """A collective beside backward takes 3 times as long, and beside another job's twice that.

    In a's first 600 ns b sends 300, then 9400 alone; the last 300 beside a's second take 600.
    """
    slowed = replace(line(0), comm_slowdown=3.0)
    busy = job("a", across(0, 2), workload([100], [0], tail=10_000), slowed)
    other = job("b", across(1, 2), workload([10_000], [0]), line(0))
    report = play_jobs([busy, other], dumbbell(2), steps=1, warmup=0)
    assert report.jobs[0].step_ns[0] == 10_000
    assert report.jobs[1].step_ns[0] == 600 + 9400 + 600


def test_jobs_that_take_turns_do_not_slow_each_other() -> None:
    """Each computes while the other sends: started apart, the uplink serves both in full."""
    work = workload([100], [150], forward=50)
    jobs = [job("a", across(0, 2), work, line(0)), job("b", across(1, 2), work, line(0))]
    together = play_jobs(jobs, dumbbell(2), steps=5, warmup=0)
    apart = play_jobs(jobs, dumbbell(2), steps=5, warmup=0, offsets_ns=[0, 150])
    assert {played.step_ns[:5] for played in together.jobs} == {(400,) * 5}
    assert {played.step_ns[:5] for played in apart.jobs} == {(300,) * 5}


def test_other_starts_say_how_much_the_phase_decides() -> None:
    """The same jobs: 400 in phase, 300 half a step (alone 250) apart, and what lies between."""
    work = workload([100], [150])
    jobs = [job("a", across(0, 2), work, line(0)), job("b", across(1, 2), work, line(0))]
    report = play_jobs(jobs, dumbbell(2), steps=5, warmup=0, starts=5)
    assert [start.offsets_ns for start in report.starts] == [(0, 50 * part) for part in range(5)]
    assert report.starts[0].mean_step_ns == tuple(each.mean_step_ns for each in report.jobs) == (350, 350)
    for start in report.starts[2:4]:
        assert start.mean_step_ns == (250, 250)
    assert play_jobs(jobs, dumbbell(2), steps=5, warmup=0).starts == ()
    three = [
        replace(one, ranks=across(number, 3), name=str(number)) for number, one in enumerate([*jobs, jobs[0]])
    ]
    assert play_jobs(three, dumbbell(3), steps=1, warmup=0, starts=2).starts[1].offsets_ns == (0, 125, 0)


@st.composite
def meeting(draw: st.DrawFn, most: int = 3) -> list[Job]:
    """Jobs across one uplink, whose hardware is a latency and a wire that the graph is true of."""
    count = draw(st.integers(2, most))
    made = []
    for number in range(count):
        buckets = draw(st.integers(1, 4))
        gaps = draw(st.lists(st.integers(0, 40_000), min_size=buckets, max_size=buckets))
        ready = [sum(gaps[: k + 1]) for k in range(buckets)]
        sizes = draw(st.lists(st.integers(1, 60_000), min_size=buckets, max_size=buckets))
        work = workload(
            sizes, ready, forward=draw(st.integers(20_000, 50_000)), tail=draw(st.integers(0, 30_000))
        )
        made.append(job(f"j{number}", across(number, count), work, line(draw(st.integers(0, 9000)))))
    return made


@given(meeting())
@settings(max_examples=tries(60))
def test_no_link_carries_more_than_it_can(jobs: list[Job]) -> None:
    """Bytes over the uplink in whole steps, against what it carries in that time."""
    played = play_jobs(jobs, dumbbell(len(jobs)), steps=6, warmup=0).jobs
    sent = sum(
        len(each.step_ns) * sum(wire_bytes("all_reduce", g.num_bytes, 2) for g in one.workload.gradients)
        for one, each in zip(jobs, played, strict=True)
    )
    rounding = sum(
        len(each.step_ns) * len(one.workload.gradients) for one, each in zip(jobs, played, strict=True)
    )
    assert sent <= max(sum(each.step_ns) for each in played) + 2 * rounding
    for each in played:
        assert min(each.step_ns) >= each.alone_step_ns - 2 * 4


@given(meeting(), st.lists(st.integers(0, 100_000), min_size=3, max_size=3))
@settings(max_examples=tries(60))
def test_another_simulator_agrees(jobs: list[Job], offsets: list[int]) -> None:
    """Fluid, in floats, from event to event: what remains of each collective as a part of it."""
    given_offsets = offsets[: len(jobs)]
    played = play_jobs(jobs, dumbbell(len(jobs)), steps=5, warmup=0, offsets_ns=given_offsets).jobs
    for each, told in zip(played, fluid(jobs, given_offsets, 5), strict=True):
        assert each.step_ns[:5] == pytest.approx(told[:5], rel=1e-3, abs=30)


def fluid(jobs: Sequence[Job], offsets: Sequence[int], steps: int) -> list[list[float]]:
    """Steps of jobs that have one channel, no effects of their own and one uplink of a byte a ns."""
    state = [_Fluid(each, float(offset)) for each, offset in zip(jobs, offsets, strict=True)]
    now = 0.0
    while any(len(one.steps) < steps for one in state):
        sending = [one for one in state if one.sends(now)]
        ends = [now + one.left * one.takes(len(sending)) for one in sending]
        waits = [one.next_ready for one in state if one.next_ready > now]
        after = min([*ends, *waits])
        for one in sending:
            one.left -= (after - now) / one.takes(len(sending))
        now = after
        for one in state:
            one.go_on(now)
    return [one.steps for one in state]


class _Fluid:
    def __init__(self, one: Job, start: float) -> None:
        curve = one.hardware.all_reduce
        self.latency = curve[0].duration_ns
        self.forward, self.backward = one.workload.forward_ns, one.workload.backward_ns
        order = [one.workload.gradients[index] for index in one.workload.order()]
        self.ready = [gradient.ready_ns or 0 for gradient in order]
        self.sizes = [gradient.num_bytes for gradient in order]
        self.steps: list[float] = []
        self._begin(start)

    def _begin(self, start: float) -> None:
        self.start, self.bucket, self.left = start, 0, 1.0

    @property
    def next_ready(self) -> float:
        """When the next bucket is there, or backward is over."""
        begin = self.start + self.forward
        return begin + (self.ready[self.bucket] if self.bucket < len(self.ready) else self.backward)

    def sends(self, now: float) -> bool:
        return self.bucket < len(self.ready) and now >= self.next_ready

    def takes(self, jobs: int) -> float:
        return self.latency + self.sizes[self.bucket] * jobs

    def go_on(self, now: float) -> None:
        if self.sends(now) and self.left * self.takes(1) < 1e-6:  # ns; the clock's last digit is 1e-9
            self.bucket, self.left = self.bucket + 1, 1.0
        if self.bucket == len(self.ready) and now >= self.next_ready:
            self.steps.append(now - self.start)
            self._begin(now)


@given(meeting(most=2).map(lambda jobs: jobs[0]), st.integers(2, 4), st.integers(0, 10**6))
@settings(max_examples=tries(30))
def test_jobs_alike_stay_alike(one: Job, count: int, offset: int) -> None:
    jobs = [replace(one, name=f"j{number}", ranks=across(number, count)) for number in range(count)]
    played = play_jobs(jobs, dumbbell(count), steps=5, warmup=1, offsets_ns=[offset] * count).jobs
    assert len({each.step_ns[:4] for each in played}) == 1
    assert played[0].step_ns[0] <= played[0].always_beside_step_ns + 4 * len(one.workload.gradients)


def test_figures_are_those_of_the_steps_after_the_warm_up() -> None:
    jobs = [endless("a", across(0, 2), 100, 0), endless("b", across(1, 2), 100, 0)]
    report = play_jobs(jobs, dumbbell(2), steps=5, warmup=1, offsets_ns=[0, 50])
    a = report.jobs[0]
    assert set(a.step_ns) == {200}
    assert (a.mean_step_ns, a.p5_step_ns, a.median_step_ns, a.p95_step_ns) == (200, 200, 200, 200)
    assert (a.slowdown, a.mean_exposed_comm_ns, a.alone_exposed_comm_ns) == (2.0, 200, 100)
    assert (report.steps, report.warmup, report.offsets_ns, report.cluster) == (5, 1, (0, 50), "dumbbell")
    b = play_jobs(jobs, dumbbell(2), steps=2, warmup=0, offsets_ns=[50, 0]).jobs[0]
    assert b.step_ns[:2] == (200, 200)


def test_buffers_that_are_broadcast_before_forward_meet_others_too() -> None:
    """BatchNorm's buffers go out before forward: twice as long beside an endless all-reduce."""
    hardware = replace(line(0), broadcast=line(0).all_reduce)
    work = replace(workload([100], [0], forward=50), buffers=(Buffer(dtype="float32", num_bytes=1000),))
    a = Job(name="a", ranks=across(0, 2), workload=work, hardware=hardware, assignment=sim.assign(work))
    b = endless("b", across(1, 2), 10**6, 0)
    played = play_jobs([a, b], dumbbell(2), steps=1, warmup=0).jobs[0]
    assert played.alone_step_ns == 1000 + 50 + 100
    assert played.step_ns[0] == 2000 + 50 + 200


def test_what_every_micro_batch_exposes_counts() -> None:
    """Three that reduce, alone on their link: as exposed as in the report of their step."""
    work = workload([50, 100], [100, 100], forward=50)
    each = sim.assign(work, accumulation_steps=3, no_sync=False)
    job = Job(name="a", ranks=across(0, 2), workload=work, hardware=line(0), assignment=each)
    played = play_jobs([job], dumbbell(2), steps=2, warmup=0).jobs[0]
    told = sim.summarize(sim.simulate(work, line(0), each))
    assert len(told.exposed_by_micro_batch_ns) == 3
    assert played.alone_exposed_comm_ns == played.mean_exposed_comm_ns == told.exposed_comm_ns > 0


A = endless("a", across(0, 2), 100, 0)
B = endless("b", across(1, 2), 100, 0)


@pytest.mark.parametrize(
    ("jobs", "more", "said"),
    [
        ([], {}, "jobs: an empty list is not legal"),
        ([A, replace(B, name="a")], {}, "jobs.1.name: 'a' occurs twice"),
        ([A, replace(B, ranks=ranks(1, 2))], {}, "'host2.gpu0' of b is not legal; a has it"),
        ([A, replace(B, ranks=ranks(1, 7))], {}, "b: ranks.1: 'host7.gpu0' is not legal"),
        (
            [A, replace(B, ranks=ranks(1))],
            {},
            "b: ranks: 1 GPUs are not legal; hardware 'line' has world_size=2",
        ),
        ([A, B], {"steps": 0}, "steps: 0 is not legal"),
        ([A, B], {"steps": 5, "warmup": 5}, "warmup: 5 is not legal; give fewer than the 5 steps"),
        ([A, B], {"warmup": -1}, "warmup: -1 is not legal"),
        ([A, B], {"starts": 0}, "starts: 0 is not legal"),
        ([A, B], {"starts": MOST_STEPS}, f"and {MOST_STEPS} may be played"),
        ([A, B], {"offsets_ns": [0]}, "offsets_ns: 1 are not legal; give one a job, 2"),
        ([A, B], {"offsets_ns": [0, -5]}, "offsets_ns.1: -5 is not legal"),
        ([A, B], {"offsets_ns": [0, 10**8]}, f"and {MOST_STEPS} may be played"),
        ([A, endless("b", across(1, 2), 0, 0)], {}, "b: its step takes 0 ns"),
        ([A, endless("b", across(1, 2), 10**9, 0)], {}, f"and {MOST_STEPS} may be played"),
    ],
)
def test_what_it_refuses(jobs: list[Job], more: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        play_jobs(jobs, dumbbell(2), **more)  # type: ignore[arg-type]


def test_a_job_has_a_name() -> None:
    with pytest.raises(InputError, match="name: an empty text is not legal"):
        replace(A, name="")

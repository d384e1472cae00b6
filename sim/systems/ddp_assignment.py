"""DDP's assignments: buckets that switches and caps make of a workload (A1, A2), and buckets under other
switches; where torch.compile's DDPOptimizer cuts a graph, and what that does to ready times (A11)."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sim.errors import AssignmentError, InputError, NotModelledError
from sim.nouns.assignment import CAP_KWARGS, DDP_POLICIES, Assignment, bucket_bytes, made_for
from sim.nouns.ddp_switches import (
    ARGUMENTS,
    DEFAULT_BUCKET_CAP_BYTES,
    DEFAULT_FIRST_BUCKET_BYTES,
    LIST_SINCE,
    OLDEST,
    SUPPORTED_SINCE,
    ZERO_CAP_SINCE,
    OptimizeDdp,
    Switches,
    Version,
    read_switches,
    split_switches,
)
from sim.nouns.settings import read
from sim.nouns.timeline import Iteration
from sim.nouns.workload import CAPS, ReadyTimes, Workload
from sim.systems.cut import PER_KEY, cut, number_keys
from sim.systems.step_writer import check_backward
from sim.units import MIB, cap_bytes

MARK = "torch_compile"  # in the extensions of a workload whose gradients are those of a compiled module
AS_RECORDED = {MARK: {"recorded": True}}  # such an extension of a job that ran under torch.compile


def compute_bucket_assignment_by_size(
    sizes: Sequence[int],
    keys: Sequence[object],
    limits: Sequence[int],
    sparse: Sequence[bool] = (),
    order: Sequence[int] = (),
) -> list[list[int]]:
    """Buckets of tensor indices, as torch's function of this name makes them (A1).

    Args:
        sizes: bytes of each tensor, in the sequence walked.
        keys: (dtype, device) of each tensor, in the same sequence (A1.3).
        limits: bytes; every key starts at the first, the last repeats for ever (A1.3, A1.4).
        sparse: whether a gradient is sparse, looked up by tensor index (A1.1, A1.2).
        order: tensor index of each element walked; empty: its own position.

    Leftover buckets of three or more keys have no defined order in torch (A1.5); here the key seen
    last comes first.
    """
    if not limits:
        raise InputError("bucket limits: an empty list is not legal; give at least one limit")
    tensors = order or range(len(sizes))
    is_sparse = [bool(sparse) and sparse[index] for index in tensors]
    numbers, num_keys = number_keys(zip(keys, is_sparse, strict=True))
    bucket_of, emitted = [0] * len(sizes), [0] * len(sizes)
    bounds, opened = [0] * 2 * len(limits), [0] * PER_KEY * num_keys
    buckets: list[list[int]] = [
        [] for _ in range(cut(sizes, numbers, limits, bucket_of, bounds, emitted, opened))
    ]
    for index, bucket in zip(tensors, bucket_of, strict=True):
        buckets[bucket].append(index)
    return buckets if order else sorted(buckets, key=min)


def ddp_limits(kwargs: Mapping[str, Any]) -> list[int]:
    """DDP's size limits in bytes for the rebuilt buckets under these keywords (A2.1, A2.4).

    Without any they are DDP's default, [1 MiB, 25 MiB]; an explicit ``bucket_cap_mb`` has no small first
    bucket.
    """
    cap_mb, caps_mb = kwargs.get("bucket_cap_mb"), kwargs.get("bucket_cap_mb_list")
    if caps_mb is None:
        default = [DEFAULT_FIRST_BUCKET_BYTES, DEFAULT_BUCKET_CAP_BYTES]
        return default if cap_mb is None else [cap_bytes(cap_mb)]
    if not isinstance(caps_mb, list | tuple):
        raise InputError(f"bucket_cap_mb_list: {caps_mb!r} is not legal; give a list of caps in MiB: [1, 25]")
    if not caps_mb:
        raise InputError("bucket_cap_mb_list: an empty list is not legal; give at least one cap")
    if cap_mb is not None or "first_bucket_mb" in kwargs:
        raise InputError("bucket_cap_mb_list: give it alone, without bucket_cap_mb or first_bucket_mb")
    return [cap_bytes(cap) for cap in caps_mb]


def _cut(workload: Workload, walked: Sequence[int], limits: Sequence[int], ordered: bool) -> list[list[int]]:
    gradients = [workload.gradients[index] for index in walked]
    return compute_bucket_assignment_by_size(
        [gradient.num_bytes for gradient in gradients],
        [gradient.key for gradient in gradients],
        limits,
        [gradient.sparse for gradient in workload.gradients],
        walked if ordered else (),
    )


def initial_buckets(workload: Workload, limits: Sequence[int]) -> list[list[int]]:
    """The buckets that DDP's constructor makes: cut in parameter order, the list reversed (A2.3)."""
    return _cut(workload, range(len(workload.gradients)), limits, ordered=False)[::-1]


def constructed_in(workload: Workload, assignment: Assignment) -> list[list[int]]:
    """The buckets of DDP's constructor under the arguments of ``assignment`` (A2.2).

    One a dtype and device, as they will be rebuilt; but under its limits where they are given as a list, or
    where a search for unused parameters rules a rebuild out.
    """
    limits, is_list = ddp_limits(assignment.ddp_kwargs), "bucket_cap_mb_list" in assignment.ddp_kwargs
    is_final = is_list or read_switches(assignment).searches
    return initial_buckets(workload, limits if is_final else [sys.maxsize])


def rebuilt_buckets(workload: Workload, limits: Sequence[int]) -> list[list[int]]:
    """The buckets that DDP rebuilds from ready order (A2.4)."""
    return _cut(workload, rebuild_order(workload), limits, ordered=True)


def rebuild_order(workload: Workload) -> tuple[int, ...]:
    """The gradients as the rebuild walks them: in ready order, unused ones last (A8.1)."""
    unused = [gradient.index for gradient in workload.gradients if gradient.ready_ns is None]
    return (*workload.order(), *unused)


def torch_needed(kwargs: Mapping[str, Any]) -> Version:
    """The oldest torch that has each argument given, whatever its value, and takes each cap."""
    needed = [ARGUMENTS[name].metadata["since"] for name in kwargs if name in ARGUMENTS]
    if "bucket_cap_mb_list" in kwargs:
        needed.append(LIST_SINCE)
    if kwargs.get("bucket_cap_mb") is not None and cap_bytes(kwargs["bucket_cap_mb"]) == 0:
        needed.append(ZERO_CAP_SINCE)
    return max(needed, default=OLDEST)


def _requirement(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What an assignment ``requires`` of torch; nothing where each torch that is supported will do."""
    needed = torch_needed(kwargs)
    return {"torch": f">={needed[0]}.{needed[1]}"} if needed > SUPPORTED_SINCE else {}


def cut_operators(held_bytes: Sequence[int], cap: int, first_cap: int) -> list[list[int]]:
    """The operators of one graph by cut, cuts in the order of backward, as DDPOptimizer makes them (A11.1).

    Args:
        held_bytes: for each operator in the order of forward, the bytes of the parameters that it
            takes and that need a gradient: a tied one counts with each of its operators.
        cap: bytes that close a cut.
        first_cap: at most as many bytes, that close the first cut, which holds forward's last operators.
    """
    cuts: list[list[int]] = [[]]
    size, limit = 0, first_cap
    for place in reversed(range(len(held_bytes))):
        if size >= limit:
            cuts.append([])
            size, limit = 0, cap
        cuts[-1].insert(0, place)
        size += held_bytes[place]
    if len(cuts) > 1 and size == 0:
        first = cuts.pop()
        cuts[-1][:0] = first
    return cuts


def handed_out(inputs: Iterable[int | None]) -> list[int]:
    """In which order autograd accumulates the gradients that one compiled graph made all at once (A11.3).

    Its queue is a binary heap (``std::priority_queue``), in which all accumulating nodes have the same,
    highest priority. A heap hands out equals neither in the order in which they came nor in its reverse.

    Args:
        inputs: parameters as the graph takes them; None: an activation whose gradient is complete with this
            one, so that the graph before it is queued, behind all parameters.
    """
    heap: list[int | None] = []
    order = []

    def rise(hole: int, value: int | None) -> None:
        while hole and heap[(hole - 1) // 2] is None and value is not None:
            heap[hole] = None
            hole = (hole - 1) // 2
        heap[hole] = value

    for one in inputs:
        heap.append(one)
        rise(len(heap) - 1, one)
    while heap:
        order.append(heap[0])
        last, hole = heap.pop(), 0
        # libstdc++'s pop_heap: the hole sinks to a leaf, by the right child among equals, then fills up.
        while (child := 2 * hole + 2) <= len(heap):
            if child == len(heap) or (heap[child] is None and heap[child - 1] is not None):
                child -= 1
            heap[hole], hole = heap[child], child
        if heap:
            rise(hole, last)
    return [one for one in order if one is not None]


def torch_compiled(
    workload: Workload, optimize_ddp: OptimizeDdp = "ddp_optimizer", compile_cap_mb: float = 25
) -> Workload:
    """The same step with the module under torch.compile: gradients are ready at the ends of its cuts (A11).

    Operators are recognised by names: gradients of one module that follow each other in ready order are one
    operator's. One graph is assumed, whose cuts each hand one activation to the next. Times of backward stay
    as they were recorded, though compiled kernels are faster. What is compiled so already stays as it is.

    Args:
        workload: recorded without torch.compile.
        optimize_ddp: ``torch._dynamo.config.optimize_ddp``; ``no_optimization`` is one graph without cuts.
        compile_cap_mb: MiB, ``bucket_bytes_cap`` of the DistributedDataParallel when it is compiled: its
            ``bucket_cap_mb``.

    Raises:
        InputError: a value that is not legal.
        NotModelledError: sparse gradients, a workload of whole buckets, or one that was
            recorded under torch.compile, or moved with other values before.
    """
    asked = {"optimize_ddp": optimize_ddp, "compile_cap_mb": compile_cap_mb}
    read(Switches, "ddp", asked)
    if cap_bytes(compile_cap_mb) < DEFAULT_FIRST_BUCKET_BYTES:  # below which torch.compile stops
        raise InputError(f"ddp: compile_cap_mb={compile_cap_mb!r} is not legal; give at least 1 (MiB)")
    known = workload.extensions.get(MARK, {})
    if known == asked or known.get("optimize_ddp") == optimize_ddp == "no_optimization":  # no cut to move
        return workload
    for is_so, why in (
        (known == AS_RECORDED[MARK], "it was recorded under torch.compile: leave optimize_ddp out"),
        (known, f"it is moved by {known}, and {asked} would move it again"),
        (workload.is_of_whole_buckets, "gradients are whole buckets"),
        (any(gradient.sparse for gradient in workload.gradients), "some gradients are sparse"),
    ):
        if is_so:
            raise NotModelledError(f"workload {workload.name!r}: torch.compile of it is not modelled; {why}")
    operators: list[list[int]] = []  # their parameters; backward comes to the last operator first
    module = None
    for index in workload.order():
        before, module = module, workload.gradients[index].name.rpartition(".")[0]
        if module != before:
            operators.insert(0, [])
        operators[0].append(index)
    held = [sum(workload.gradients[index].num_bytes for index in one) for one in operators]
    cuts = [list(range(len(held)))]
    if optimize_ddp == "ddp_optimizer":
        cuts = cut_operators(held, cap_bytes(compile_cap_mb), DEFAULT_FIRST_BUCKET_BYTES)
    order: list[int] = []
    cut_of: dict[int, int] = {}
    for number, places in enumerate(cuts, start=1):
        taken = [index for place in places for index in sorted(operators[place])]
        order += handed_out([*[None] * (number < len(cuts)), *taken])
        cut_of |= dict.fromkeys(taken, number)

    def moved(times: ReadyTimes) -> ReadyTimes:
        """Each gradient's time is the last of its cut; a gradient without a time keeps none."""
        last: dict[int | None, int] = {}
        for index, time in enumerate(times):
            last[cut_of.get(index)] = max(time or 0, last.get(cut_of.get(index), 0))
        return tuple(
            time if time is None or index not in cut_of else last[cut_of[index]]
            for index, time in enumerate(times)
        )

    return workload.retimed(moved, ready_order=tuple(order), extensions=workload.extensions | {MARK: asked})


def as_compiled(workload: Workload, assignment: Assignment) -> Workload:
    """The workload as DDP sees it: under ``optimize_ddp`` as torch.compile makes it (A11)."""
    if assignment.policy not in DDP_POLICIES or assignment.settings.get("optimize_ddp") is None:
        return workload
    switches = read_switches(assignment)
    assert switches.optimize_ddp is not None
    cap_mb = switches.compile_cap_mb
    if cap_mb is None:  # DDP's own, but at least 1 MiB (A11.1)
        cap_mb = max(MIB, *ddp_limits(assignment.ddp_kwargs)) / MIB
    return torch_compiled(workload, switches.optimize_ddp, cap_mb)


def check_used(workload: Workload, switches: Switches) -> None:
    """Raise ``NotModelledError`` where DDP itself would stop: unused parameters, or hooks that fire twice."""
    finds = switches.find_unused_parameters or switches.static_graph
    for gradient in workload.gradients:
        unused, why = gradient.ready_ns is None, ""
        if unused and not finds:
            why = (
                "is never ready; DDP without find_unused_parameters or static_graph raises an error on it at "
                "the next forward (A3.21)"
            )
        elif unused and gradient.sparse:
            why = "is sparse and never ready; DDP stops with 'Expected sparse gradient to be defined'"
        elif gradient.uses > 1 and not switches.static_graph:
            why = f"becomes ready {gradient.uses} times in one backward; DDP without static_graph raises "
            why += "'marked ready twice' (A8.5)"
        if why:
            raise NotModelledError(f"{workload.label(gradient)} {why}")
    check_backward(workload)


def assign(
    workload: Workload, policy: str, caps: Mapping[str, Any], options: dict[str, Any], iteration: Iteration
) -> Assignment:
    """DDP's buckets in launch order in a given iteration, and what makes DDP use them.

    Iteration 1 uses one bucket per (dtype, device), in reversed parameter order (A2.2, A2.3); from
    iteration 2 on the buckets rebuilt from ready order (A2.4-A2.6), with ``static_graph`` from iteration 3,
    with ``find_unused_parameters`` never. Limits that were given as a list hold in iteration 1 too, and are
    then consumed from the first parameter.

    Args:
        policy: ``ddp``; ``per-parameter`` (``bucket_cap_mb=0``); ``single`` (one bucket per key).
        caps: in MiB, by torch's names; ``first_bucket_mb`` is short for ``bucket_cap_mb_list=[first, cap]``,
            as the last limit repeats (A1.4).
        options: switches, by torch's names.
    """
    kwargs, settings = split_switches(options)
    caps = dict(caps)
    if policy == "per-parameter":
        caps["bucket_cap_mb"] = 0
    elif policy == "single":
        caps["bucket_cap_mb"] = -(-workload.total_bytes // MIB) + 1
    limits = ddp_limits(caps)
    if (first_mb := caps.pop("first_bucket_mb", None)) is not None:
        limits = [cap_bytes(first_mb), limits[-1]]
        caps = {"bucket_cap_mb_list": [limit / MIB for limit in limits]}
    proposed = Assignment(
        policy=policy,
        bucket_indices=((0,),),
        ddp_kwargs=kwargs | caps,
        settings=settings,
        requires=_requirement(kwargs | caps),
        made_for=made_for(workload),
    )
    switches = read_switches(proposed)
    check_used(workload, switches)
    rebuilt = switches.rebuilt_from
    if rebuilt is None or (iteration != "steady" and iteration < rebuilt):
        buckets = constructed_in(workload, proposed)
    else:
        buckets = rebuilt_buckets(as_compiled(workload, proposed), limits)
    indices = tuple(map(tuple, buckets))
    return replace(proposed, bucket_indices=indices, bucket_bytes=bucket_bytes(workload, indices))


def check_reaches(workload: Workload, assignment: Assignment) -> None:
    """Raise ``AssignmentError`` unless stock DDP, given ``assignment.ddp_kwargs``, rebuilds its buckets."""
    options = {**assignment.ddp_kwargs, **assignment.settings}
    caps = {name: options.pop(name) for name in CAP_KWARGS if name in options}
    made = assign(workload, "ddp", caps, options, "steady")
    if [set(bucket) for bucket in made.bucket_indices] != [set(b) for b in assignment.bucket_indices]:
        raise AssignmentError(
            f"ddp_kwargs: {assignment.ddp_kwargs} makes DDP use {len(made.bucket_indices)} bucket(s), not "
            f"the {len(assignment.bucket_indices)} of bucket_indices"
        )


def with_switches(workload: Workload, assignment: Assignment, **options: Any) -> Assignment:
    """The same buckets, used with ``options``; without any, ``assignment`` itself.

    Where the keywords no longer reach the buckets under these switches (A2.6), they are left out, and
    ``sim.apply`` gives DDP the buckets.

    Args:
        workload: what backward makes ready.
        assignment: of DDP's policies.
        options: switches by torch's names, as ``sim.assign`` takes them; none of them a cap.

    Raises:
        AssignmentError: the assignment does not fit the workload.
        InputError: a cap, or a value that is not legal.
        NotModelledError: another system than DDP, or switches that are not modelled.
    """
    if not options:
        return assignment
    if assignment.policy not in DDP_POLICIES:
        raise NotModelledError(
            f"policy: {assignment.policy!r} is a system of its own, and takes no switches of "
            f"DistributedDataParallel such as {next(iter(options))}"
        )
    for name in options.keys() & CAPS:
        raise InputError(f"{name}: {options[name]!r} is not legal; the assignment says what the buckets are")
    assignment.check_fits(workload)
    kwargs, settings = split_switches(options)
    newest = _requirement(kwargs)
    made = replace(
        assignment,
        ddp_kwargs=assignment.ddp_kwargs | kwargs,
        settings=assignment.settings | settings,
        requires=assignment.requires | newest,
    )
    check_used(workload, read_switches(made))
    try:
        check_reaches(workload, made)
    except AssignmentError:
        kwargs = {name: value for name, value in made.ddp_kwargs.items() if name not in CAP_KWARGS}
        return replace(made, policy="explicit", ddp_kwargs=kwargs, requires=newest)
    return made


def job_switches(workload: Workload, given: Mapping[str, Any]) -> dict[str, Any]:
    """The switches of the job that ``workload`` was recorded from, but those that are ``given`` otherwise."""
    aliases = {ARGUMENTS[name].metadata["alias_of"] for name in given if name in ARGUMENTS}
    named = set(given) | aliases
    return {name: value for name, value in workload.switches.items() if name not in named}


def as_the_job(workload: Workload, assignment: Assignment, **options: Any) -> Assignment:
    """The buckets of ``assignment``, used as the job that ``workload`` was recorded from used its own.

    A switch of ``options`` goes before one of ``assignment``, and that before the job's. An assignment of
    another system has none of DDP's.

    Raises:
        AssignmentError, InputError, NotModelledError: as ``with_switches``.
    """
    if assignment.policy in DDP_POLICIES:
        options = job_switches(workload, assignment.ddp_kwargs | assignment.settings | options) | options
    return with_switches(workload, assignment, **options)


def own_buckets(workload: Workload) -> Assignment | None:
    """The buckets that the job of ``workload`` had, used as it used them; None where they are those of DDP's
    default, or nobody said. Raises as ``assign``."""
    used = () if workload.job is None else workload.job.bucket_indices
    default = assign(workload, "ddp", {}, job_switches(workload, {}), "steady") if used else None
    if default is None or {*map(frozenset, used)} == {*map(frozenset, default.bucket_indices)}:
        return None
    return as_the_job(workload, Assignment(bucket_indices=used))

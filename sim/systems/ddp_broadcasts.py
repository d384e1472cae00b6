"""What DistributedDataParallel sends outside of backward: its constructor, ahead of a forward, under Join."""

from dataclasses import replace

from sim.costs.service_time import all_reduce_ns, service_ns
from sim.nouns.assignment import Assignment
from sim.nouns.collective import Collective, CollectiveKind, Phase
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import Iteration
from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.systems.bucketing import compute_bucket_assignment_by_size
from sim.systems.switches import FLOATS, Switches, read_switches

_COALESCED_BYTES = 250 << 20  # DDP's broadcast_bucket_size


def construct(workload: Workload, assignment: Assignment) -> tuple[Collective, ...]:
    """What the constructor sends (A2.8): a count, shapes and strides, then parameters and buffers.

    Frozen parameters, which the real one sends too, are in no workload.
    """
    if assignment.ddp_kwargs.get("init_sync", True) is False:
        return ()
    words = 2 * sum(len(gradient.shape) for gradient in workload.gradients)
    return (
        _message("all_gather", 1, "int64", "construction", "number of parameters"),
        _message("broadcast", words, "int64", "construction", "shapes", root=0),
        *_states(workload, _sends_buffers(assignment), "construction", 0),
    )


def _sends_buffers(assignment: Assignment) -> bool:
    """Whether the constructor sends buffers: always where ``forward_sync_buffers`` is given (D1.1)."""
    kwargs = assignment.ddp_kwargs
    return "forward_sync_buffers" in kwargs or bool(kwargs.get("broadcast_buffers", True))


def end(workload: Workload, assignment: Assignment) -> tuple[Collective, ...]:
    """What follows the last step: under Join the model of the rank that joined last goes to all (A3.19)."""
    switches = read_switches(assignment)
    if switches.join_inputs is None:
        return ()
    last = _last_active(switches.join_inputs, max(switches.join_inputs))
    return (
        _message("all_reduce", 1, "float32", "joined", "ranks with inputs"),
        _message("all_reduce", 1, "int64", "joined", "common rank"),
        *_states(workload, switches.syncs_buffers, "joined", last),
    )


def _last_active(join_inputs: tuple[int, ...], iteration: int) -> int:
    """The highest rank that still has inputs in ``iteration``."""
    return max(rank for rank, inputs in enumerate(join_inputs) if inputs >= iteration)


def _message(
    kind: CollectiveKind, elements: int, dtype: str, phase: Phase, purpose: str, root: int | None = None
) -> Collective:
    """A collective whose time is not counted."""
    return Collective(
        kind=kind,
        elements=elements,
        dtype=dtype,
        num_bytes=elements * DTYPE_BYTES[dtype],
        service_ns=0,
        phase=phase,
        root=root,
        purpose=purpose,
    )


def _states(workload: Workload, with_buffers: bool, phase: Phase, root: int) -> list[Collective]:
    """Coalesced broadcasts of parameters and buffers: one a dtype, in chunks of 250 MiB or more."""
    sizes = [(gradient.dtype, gradient.num_bytes) for gradient in workload.gradients]
    if with_buffers:
        sizes += [(buffer.dtype, buffer.num_bytes) for buffer in workload.buffers]
    chunks = compute_bucket_assignment_by_size(
        [size for _, size in sizes], [dtype for dtype, _ in sizes], [_COALESCED_BYTES]
    )
    sent = []
    for chunk in chunks:
        dtype = sizes[chunk[0]][0]
        elements = sum(sizes[place][1] for place in chunk) // DTYPE_BYTES[dtype]
        sent.append(_message("broadcast", elements, dtype, phase, "parameters and buffers", root))
    return sent


def before_forward(
    workload: Workload,
    hardware: Hardware,
    assignment: Assignment,
    switches: Switches,
    iteration: Iteration,
    number: int,
) -> tuple[tuple[Collective, ...], tuple[str, ...]]:
    """What precedes the forward of micro-batch ``number`` (from 0), and notes on what has no curve.

    The rebuild's two broadcasts of int32 (A2.7) come in the first forward after the recording backward,
    then buffers, one broadcast a dtype (A3.16), in a forward that follows a synchronised one. Under Join an
    all-reduce ahead of these counts the ranks with inputs, and one behind them says whether backward is
    synchronised; nobody waits for either. Ahead of buffers the ranks agree who sends them (A3.19).
    """
    sent: list[Collective] = []
    if assignment.by_keywords and iteration == switches.rebuilt_from and number == 0:
        words = len(workload.gradients) + 1, len(assignment.bucket_indices)
        sent += [_broadcast(hardware, 4 * count, "int32", 0, "rebuilt buckets") for count in words]
    if switches.syncs_buffers and workload.buffers and number == 0:
        sent += _buffers(workload, hardware, switches, iteration)
    uncounted = sum(collective.kind == "broadcast" for collective in sent)
    notes = (
        f"{uncounted} broadcast(s) before forward are not counted: hardware {hardware.name!r} has no "
        f"broadcast curve",
    )
    counted = not uncounted or hardware.broadcast is not None or hardware.world_size == 1
    if switches.join_inputs is not None:
        told = "ranks with inputs", "backward is synchronised"
        first, last = (_message("all_reduce", 1, "float32", "before forward", what) for what in told)
        sent = [first, *sent, last]
    return tuple(sent), () if counted else notes


def _broadcast(hardware: Hardware, num_bytes: int, dtype: str, root: int, purpose: str) -> Collective:
    elements = num_bytes // DTYPE_BYTES[dtype]
    message = _message("broadcast", elements, dtype, "before forward", purpose, root)
    message = replace(message, num_bytes=num_bytes)
    if hardware.broadcast is None or hardware.world_size == 1:
        return message
    return replace(message, service_ns=service_ns(hardware.broadcast, num_bytes))


def _buffers(
    workload: Workload, hardware: Hardware, switches: Switches, iteration: Iteration
) -> list[Collective]:
    root, sent = 0, []
    if switches.join_inputs is not None:
        root = _last_active(switches.join_inputs, 1 if iteration == "steady" else iteration)
        agreed = _message("all_reduce", 1, "int64", "before forward", "common rank")
        sent.append(replace(agreed, service_ns=all_reduce_ns(hardware, agreed.num_bytes)))
    by_dtype: dict[str, int] = {}
    for buffer in workload.buffers:
        dtype, size = buffer.dtype, buffer.num_bytes
        if switches.buffer_dtype is not None and dtype in FLOATS:
            size = size * DTYPE_BYTES[switches.buffer_dtype] // DTYPE_BYTES[dtype]
            dtype = switches.buffer_dtype
        by_dtype[dtype] = by_dtype.get(dtype, 0) + size
    for dtype, size in by_dtype.items():
        sent.append(_broadcast(hardware, size, dtype, root, "buffers"))
    return sent

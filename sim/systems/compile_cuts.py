"""torch.compile under DistributedDataParallel: where DDPOptimizer cuts the graph, and what that does to when
gradients become ready (A11)."""

from collections.abc import Iterable, Sequence

from sim.errors import InputError, NotModelledError
from sim.nouns.ddp_switches import DEFAULT_FIRST_BUCKET_BYTES, OptimizeDdp, Switches
from sim.nouns.settings import read
from sim.nouns.workload import ReadyTimes, Workload
from sim.units import cap_bytes

MARK = "torch_compile"  # in the extensions of a workload whose gradients are those of a compiled module
AS_RECORDED = {MARK: {"recorded": True}}  # such an extension of a job that ran under torch.compile


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
    for number, cut in enumerate(cuts, start=1):
        taken = [index for place in cut for index in sorted(operators[place])]
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

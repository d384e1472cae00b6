"""Other buckets for a DistributedDataParallel that trains, and the way back to its own.

DDP's own Reducer lives on. Another one beside it has hooks on the same gradients; only the one that DDP
prepares at the end of forward is armed, so that to change buckets is to change two pointers. The cost is one
more copy of the gradients for as long as both live.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch._C._distributed_c10d import _register_comm_hook
from torch.nn.parallel import DistributedDataParallel

from sim.autotuner.modes import check_switchable
from sim.validator.ranks.wrapping.injection import fixed_reducer
from sim.validator.ranks.wrapping.wrap import observed_buckets

Buckets = tuple[tuple[int, ...], ...]


@dataclass(slots=True, eq=False)
class TriedBuckets:
    """A Reducer, its buckets, and its logger, which keeps it alive too.

    ``is_past_first``: whether it has reduced a backward, after which a static graph is known to it.
    """

    buckets: Buckets
    reducer: Any
    logger: Any
    is_past_first: bool


class BucketSwitch:
    """Which Reducer a DDP uses. Call any method between two steps, and on all ranks after the same step.

    Args:
        ddp: past its first two synchronised steps, after which its buckets do not change by themselves.

    Raises:
        NotModelledError: a mode in which other buckets are not safe.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        check_switchable(ddp)
        self._ddp = ddp
        self.original = TriedBuckets(
            buckets=tuple(map(tuple, observed_buckets(ddp))),
            reducer=ddp.reducer,
            logger=ddp.logger,
            is_past_first=True,
        )
        self.active = self.original
        self._others: list[TriedBuckets] = []

    def make(self, buckets: Sequence[Sequence[int]], *, with_hooks: bool = True) -> TriedBuckets:
        """A new Reducer with these buckets, in launch order; ``use`` or ``drop`` it before the next backward.

        With ``static_graph`` a Reducer learns the graph in the first backward that its hooks see, and has to
        reduce that backward itself. ``with_hooks`` False leaves out the user's communication hook.
        """
        ddp = self._ddp
        parameters, expect_sparse_gradient = ddp._build_params_for_reducer()  # type: ignore[no-untyped-call]
        names = ddp._build_debug_param_to_name_mapping(parameters)  # type: ignore[no-untyped-call]
        reducer, logger = fixed_reducer(
            ddp, buckets, parameters, expect_sparse_gradient, names, ddp.static_graph
        )
        if ddp.static_graph:
            reducer._set_static_graph()
            logger._set_static_graph()
        for hook, state in ddp._comm_hooks if with_hooks else ():
            logger._set_comm_hook_name(hook.__qualname__)
            _register_comm_hook(reducer, state, hook)
        candidate = TriedBuckets(
            buckets=tuple(map(tuple, buckets)), reducer=reducer, logger=logger, is_past_first=False
        )
        self._others.append(candidate)
        return candidate

    def use(self, candidate: TriedBuckets) -> None:
        """Reduce with ``candidate`` from the next forward on."""
        if candidate is self.active:
            return
        ddp = self._ddp
        ddp.reducer, ddp.logger = candidate.reducer, candidate.logger
        if ddp.static_graph:
            # In its first backward a Reducer counts how often each gradient fires, and reduces at the end.
            self.active.is_past_first = ddp._static_graph_delay_allreduce_enqueued
            ddp._static_graph_delay_allreduce_enqueued = candidate.is_past_first
        elif ddp.find_unused_parameters:
            candidate.reducer._reset_state()  # its hooks have marked as used what the other one reduced
        self.active = candidate

    def drop(self, candidate: TriedBuckets) -> None:
        """Give up ``candidate``, which is not in use: its hooks and its copy of the gradients go."""
        assert candidate is not self.active
        candidate.reducer._remove_autograd_hooks()
        candidate.reducer = candidate.logger = None
        self._others = [other for other in self._others if other is not candidate]

    def revert(self) -> None:
        """Back to DDP's own Reducer, the very object; all others are dropped."""
        self.use(self.original)
        for candidate in self._others:
            self.drop(candidate)

    def keep(self, candidate: TriedBuckets) -> None:
        """Use ``candidate`` for good: DDP's own Reducer is given up for it."""
        self.use(candidate)
        if candidate is not self.original:
            self.drop(self.original)
            self._others.remove(candidate)
            self.original = candidate

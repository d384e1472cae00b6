"""DistributedDataParallel's switches: which are modelled, what each may be, what is refused and why."""

from dataclasses import dataclass
from typing import Any

from sim.errors import InputError, NotModelledError
from sim.nouns.assignment import CAP_KWARGS, Assignment
from sim.nouns.workload import Gradient, Workload
from sim.systems.comm_hooks import CommHook, read_comm_hook

# Arguments of DistributedDataParallel that the engines model.
MODELLED_DDP_KWARGS = {
    "gradient_as_bucket_view": "gradients live in their buckets: no copy-back (A3.4)",
    "batched_grad_copy": "copies in at once when a bucket is ready (A3.4)",
    "broadcast_buffers": "buffers are broadcast before each forward (A3.16)",
    "forward_sync_buffers": "its name since torch 2.13, which goes first where both are given",
    "find_unused_parameters": "searches for unused parameters in every forward (A3.13)",
    "static_graph": "reduces after backward in iteration 1, rebuilds before iteration 3 (A3.15)",
    "skip_all_reduce_unused_params": "does not send a bucket of unused parameters (A3.14)",
    "mixed_precision": "the dtype of parameters and of what is sent, from source (A2.9)",
}
# What decides a step under DDP and is set elsewhere: by the training loop, by register_comm_hook, by Join.
MODELLED_SETTINGS = {
    "comm_hook": "a communication hook: allreduce, fp16_compress, bf16_compress, powerSGD, noop (A3.17)",
    "set_to_none": "zero_grad's argument; false keeps gradients in their buckets (A3.4)",
    "accumulation_steps": "micro-batches a step (A3.12)",
    "no_sync": "whether all of them but the last run under no_sync; false: each one reduces (A3.12)",
    "join_inputs": "under Join: how many inputs each rank has (A3.19)",
}
# Arguments that change no step while they are off.
_OFF_DDP_KWARGS = ("check_reduction", "delay_all_reduce_named_params", "param_to_hook_all_reduce")
_CONSTRUCTION = ("init_sync",)  # changes no step, only what the constructor sends (A2.8)
FLOATS = ("float64", "float32", "float16", "bfloat16")
_MIXED_PRECISION = ("param_dtype", "reduce_dtype", "buffer_dtype")
MAX_ACCUMULATION_STEPS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """How a job uses DistributedDataParallel, defaults where nothing is said."""

    gradient_as_bucket_view: bool = False
    batched_grad_copy: bool = False
    syncs_buffers: bool = True
    find_unused_parameters: bool = False
    static_graph: bool = False
    skip_all_reduce_unused_params: bool = False
    reduce_dtype: str | None = None
    buffer_dtype: str | None = None
    comm_hook: CommHook | None = None
    set_to_none: bool = True
    accumulation_steps: int = 1
    no_sync: bool = True
    join_inputs: tuple[int, ...] | None = None

    @property
    def searches(self) -> bool:
        """Whether every forward searches for unused parameters; a static graph does so once (A3.13)."""
        return self.find_unused_parameters and not self.static_graph

    @property
    def syncs_each(self) -> bool:
        """Whether a step has several micro-batches that each reduce."""
        return self.accumulation_steps > 1 and not self.no_sync

    @property
    def keeps_views(self) -> bool:
        """Whether the last micro-batch accumulates gradients into their buckets, as views of them (A3.4).

        They stay there from step to step, or from one synchronised micro-batch to the next.
        """
        return self.gradient_as_bucket_view and (not self.set_to_none or self.syncs_each)

    @property
    def rebuilt_from(self) -> int | None:
        """The first iteration with rebuilt buckets; None: they are never rebuilt (A2.6)."""
        if self.static_graph:
            return 3
        return None if self.find_unused_parameters else 2


def check_ddp_kwargs(kwargs: dict[str, Any]) -> None:
    """Refuse arguments of DistributedDataParallel that are not modelled or not legal.

    Raises:
        InputError: a value that is not legal. NotModelledError: a name that is not modelled, or is on.
    """
    for name, value in kwargs.items():
        if name in CAP_KWARGS:
            continue
        if name in _OFF_DDP_KWARGS and (value is False or value is None):
            continue
        if name not in MODELLED_DDP_KWARGS and name not in _CONSTRUCTION:
            raise NotModelledError(
                f"ddp: {name}={value!r} is not modelled; modelled switches: "
                f"{', '.join((*MODELLED_DDP_KWARGS, *MODELLED_SETTINGS))}"
            )
        if name == "mixed_precision":
            _reduce_dtype(value)
        elif not isinstance(value, bool):
            raise InputError(f"ddp: {name}={value!r} is not legal; give true or false")


def read_switches(assignment: Assignment) -> Switches:
    """The switches of an assignment of DDP's.

    Raises:
        InputError: a value that is not legal.
        NotModelledError: a switch, or a combination of switches, that is not modelled.
    """
    kwargs, settings = assignment.ddp_kwargs, assignment.settings
    check_ddp_kwargs(kwargs)
    for name in settings:
        if name not in MODELLED_SETTINGS:
            raise NotModelledError(
                f"settings: {name}={settings[name]!r} is not modelled; modelled settings: "
                f"{', '.join(MODELLED_SETTINGS)}"
            )
    set_to_none = settings.get("set_to_none", True)
    if not isinstance(set_to_none, bool):
        raise InputError(f"ddp: set_to_none={set_to_none!r} is not legal; give true or false")
    steps = settings.get("accumulation_steps", 1)
    is_number = isinstance(steps, int) and not isinstance(steps, bool)
    if not is_number or not 1 <= steps <= MAX_ACCUMULATION_STEPS:
        raise InputError(
            f"ddp: accumulation_steps={steps!r} is not legal; give an integer 1 to {MAX_ACCUMULATION_STEPS}"
        )
    no_sync = settings.get("no_sync", True)
    if not isinstance(no_sync, bool):
        raise InputError(f"ddp: no_sync={no_sync!r} is not legal; give true or false")
    hook = settings.get("comm_hook")
    switches = Switches(
        gradient_as_bucket_view=kwargs.get("gradient_as_bucket_view", False),
        batched_grad_copy=kwargs.get("batched_grad_copy", False),
        syncs_buffers=kwargs.get("forward_sync_buffers", kwargs.get("broadcast_buffers", True)),
        find_unused_parameters=kwargs.get("find_unused_parameters", False),
        static_graph=kwargs.get("static_graph", False),
        skip_all_reduce_unused_params=kwargs.get("skip_all_reduce_unused_params", False),
        reduce_dtype=_reduce_dtype(kwargs.get("mixed_precision")),
        buffer_dtype=(kwargs.get("mixed_precision") or {}).get("buffer_dtype"),
        comm_hook=None if hook is None else read_comm_hook(hook),
        set_to_none=set_to_none,
        accumulation_steps=steps,
        no_sync=no_sync,
        join_inputs=_join_inputs(settings.get("join_inputs")),
    )
    _check_together(switches)
    return switches


def _reduce_dtype(value: Any) -> str | None:
    """The dtype that travels under DDP's mixed precision: ``reduce_dtype``, else ``param_dtype`` (A2.9)."""
    if value is None:
        return None
    if not isinstance(value, dict) or not set(value) <= set(_MIXED_PRECISION) or not value:
        raise InputError(
            f"ddp: mixed_precision={value!r} is not legal; give an object with "
            f'{", ".join(_MIXED_PRECISION)}, such as {{"param_dtype": "bfloat16"}}'
        )
    for name, dtype in value.items():
        if not isinstance(dtype, str) or dtype not in FLOATS:
            raise InputError(
                f"ddp: mixed_precision.{name}={dtype!r} is not legal; give one of {', '.join(FLOATS)}"
            )
    dtype = value.get("reduce_dtype", value.get("param_dtype"))
    return dtype if dtype is None else str(dtype)


def _join_inputs(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    legal = isinstance(value, list | tuple) and len(value) >= 2
    if not legal or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in value):
        raise InputError(
            f"ddp: join_inputs={value!r} is not legal; give the inputs of each rank, >= 1, such as [2, 4]"
        )
    return tuple(value)


def _check_together(switches: Switches) -> None:
    """Raise ``NotModelledError`` for switches that are modelled each but not with one another."""
    clashes = {
        "comm_hook and mixed_precision": switches.comm_hook is not None and switches.reduce_dtype is not None,
        "join_inputs and skip_all_reduce_unused_params": switches.join_inputs is not None
        and switches.skip_all_reduce_unused_params,
        "join_inputs and no_sync=false": switches.join_inputs is not None and switches.syncs_each,
    }
    for names, clash in clashes.items():
        if clash:
            raise NotModelledError(f"ddp: {names} together are not modelled")
    if switches.static_graph and switches.join_inputs is not None and switches.join_inputs[0] == 1:
        raise NotModelledError(
            "ddp: static_graph and join_inputs: rank 0 has joined before the order of gradients is recorded; "
            "give it at least 2 inputs"
        )
    if switches.static_graph and switches.accumulation_steps > 1 and switches.no_sync:
        raise NotModelledError(
            "ddp: static_graph and accumulation_steps: torch stops where the first backward of a static "
            "graph is under no_sync"
        )


def _check_sparse(gradient: Gradient, switches: Switches, what: str) -> None:
    if switches.join_inputs is not None:
        raise NotModelledError(f"{what} is sparse; DDP hangs with sparse gradients under Join")
    if gradient.ready_ns is None:
        raise NotModelledError(
            f"{what} is sparse and never ready; DDP stops with 'Expected sparse gradient to be defined'"
        )
    if switches.comm_hook is not None and switches.comm_hook.name == "powerSGD":
        raise NotModelledError(f"{what} is sparse; PowerSGD does not reduce sparse gradients")


def check_backward(workload: Workload) -> None:
    """Raise ``InputError`` where no gradient ever becomes ready."""
    if all(gradient.ready_ns is None for gradient in workload.gradients):
        raise InputError(f"workload {workload.name!r}: no gradient ever becomes ready; there is no backward")


def check_used(workload: Workload, switches: Switches) -> None:
    """Raise ``NotModelledError`` where DDP itself would stop: unused parameters, or hooks that fire twice."""
    for gradient in workload.gradients:
        what = f"workload {workload.name!r}: gradient {gradient.index} ({gradient.name})"
        finds = switches.find_unused_parameters or switches.static_graph
        if gradient.ready_ns is None and not finds:
            raise NotModelledError(
                f"{what} is never ready; DDP without find_unused_parameters or static_graph raises an error "
                f"on it at the next forward (A3.21)"
            )
        if gradient.sparse:
            _check_sparse(gradient, switches, what)
        if gradient.uses > 1 and not switches.static_graph:
            raise NotModelledError(
                f"{what} becomes ready {gradient.uses} times in one backward; DDP without static_graph "
                f"raises 'marked ready twice' (A8.5)"
            )
    check_backward(workload)

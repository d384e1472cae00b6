"""DistributedDataParallel's switches, one row each: what a switch is, for all who read, tell or try it.

From a row follow what the command line and the page offer, which values and torch versions are refused, what
a recording tells of it and what real ranks try. A new switch needs a row here, its rule in
``sim/systems/RULES.md``, and what no row can say: a field of ``Switches`` and the lines of the program in
``sim/systems/ddp.py`` that heed it. ``sim.systems.comm_hooks`` is the same table for communication hooks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sim.errors import InputError

Version = tuple[int, int]
OLDEST: Version = (2, 0)  # for which lines are written
SUPPORTED_SINCE: Version = (2, 9)  # with which bucketsim runs
LIST_SINCE: Version = (2, 11)  # bucket_cap_mb_list
ZERO_CAP_SINCE: Version = (2, 12)  # bucket_cap_mb=0 (A2.1)
MAX_ACCUMULATION_STEPS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """One switch, by torch's own name.

    Args:
        name: as torch spells it.
        where: an ``argument`` of DistributedDataParallel; a ``setting``, made by the training loop or by
            ``register_comm_hook``; or a variable of the ``environment``.
        does: what it changes in a step, and the rule that says so.
        help: the page's words for it.
        default: torch's own. Legal are booleans where it is one, integers from ``least`` to ``most`` where it
            is one; what may replace None is told by ``sim.systems.switches``.
        since: the first torch that has it, ``OLDEST`` or newer.
        alias_of: the switch that it is the newer name of.
        parts: the members of its value, where that is an object, with the page's words for each.
        recorded: whether ``sim.record`` writes it down.
        logged: whether DDP's own log tells it (A4).
        tried: by the name of a candidate, the options of ``sim.assign`` that real ranks try.
    """

    name: str
    where: Literal["argument", "setting", "environment"] = "argument"
    does: str
    help: str = ""
    default: bool | int | None = False
    least: int = 0
    most: int = 0
    since: Version = OLDEST
    alias_of: str = ""
    parts: Mapping[str, str] = field(default_factory=dict)
    recorded: bool = False
    logged: bool = False
    tried: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def check(self, value: Any) -> None:
        """Raise ``InputError`` unless ``value`` is legal; for a switch whose default is no None."""
        legal = isinstance(value, bool)
        words = "true or false"
        if not isinstance(self.default, bool):
            legal = isinstance(value, int) and not legal and self.least <= value <= self.most
            words = f"an integer {self.least} to {self.most}"
        if not legal:
            raise InputError(f"ddp: {self.name}={value!r} is not legal; give {words}")


_VIEW = {"gradient_as_bucket_view": True}
SWITCHES: Mapping[str, Switch] = {
    one.name: one
    for one in (
        Switch(
            name="comm_hook",
            where="setting",
            does="reduces buckets with a communication hook (A3.17)",
            help="What is sent in place of DDP's all-reduce",  # the hooks' own words follow
            default=None,
        ),
        Switch(
            name="gradient_as_bucket_view",
            does="gradients live in their buckets: no copy-back (A3.4)",
            help="Gradients live in their buckets: nothing is copied back afterwards.",
            recorded=True,
            logged=True,
            tried={"gradient_as_bucket_view": _VIEW},
        ),
        Switch(
            name="batched_grad_copy",
            does="copies in at once when a bucket is ready (A3.4)",
            help="Gradients are copied into a bucket all at once, when it is ready (torch 2.12).",
            since=(2, 12),
            recorded=True,
            tried={"batched_grad_copy": {"batched_grad_copy": True}},
        ),
        Switch(
            name="set_to_none",
            where="setting",
            does="zero_grad's argument; false keeps gradients in their buckets (A3.4)",
            help="zero_grad(set_to_none=…); off: gradients stay in memory, and in their buckets.",
            default=True,
            tried={
                "set_to_none=False": {"set_to_none": False},
                "view, set_to_none=False": {**_VIEW, "set_to_none": False},
            },
        ),
        Switch(
            name="broadcast_buffers",
            does="buffers are broadcast before each forward (A3.16)",
            help="Buffers, such as running means of BatchNorm, are broadcast before each forward.",
            default=True,
            recorded=True,
            logged=True,
        ),
        Switch(
            name="forward_sync_buffers",
            does="its name since torch 2.13, which goes first where both are given",
            default=True,
            since=(2, 13),
            alias_of="broadcast_buffers",
            recorded=True,
        ),
        Switch(
            name="find_unused_parameters",
            does="searches for unused parameters in every forward (A3.13)",
            help="Every forward searches for unused parameters; buckets are then never rebuilt in ready "
            "order.",
            recorded=True,
            logged=True,
            tried={
                "find_unused_parameters": {"find_unused_parameters": True},
                "skip_all_reduce_unused_params": {
                    "find_unused_parameters": True,
                    "skip_all_reduce_unused_params": True,
                },
            },
        ),
        Switch(
            name="static_graph",
            does="reduces after backward in iteration 1, rebuilds before iteration 3 (A3.15)",
            help="The graph never changes: unused parameters are found once, and buckets are rebuilt before "
            "iteration 3.",
            recorded=True,
            logged=True,
            tried={"static_graph": {"static_graph": True}},
        ),
        Switch(
            name="skip_all_reduce_unused_params",
            does="does not send a bucket of unused parameters (A3.14)",
            help="A bucket of unused parameters alone is not sent (torch 2.8).",
            since=(2, 8),  # tried above, as it needs find_unused_parameters
        ),
        Switch(
            name="mixed_precision",
            does="the dtype of parameters and of what is sent, from source (A2.9)",
            default=None,
            since=(2, 1),
            parts={
                "param_dtype": "The wrapper's own mixed precision: the dtype of parameters, and of gradients "
                "unless reduce_dtype says otherwise.",
                "reduce_dtype": "The wrapper's own mixed precision: the dtype in which gradients are sent.",
                "buffer_dtype": "DDP's own mixed precision: the dtype of buffers.",
            },
        ),
        Switch(
            name="accumulation_steps",
            where="setting",
            does="micro-batches a step (A3.12)",
            help="Micro-batches a step. The gain is against DDP's default with as many.",
            default=1,
            least=1,
            most=MAX_ACCUMULATION_STEPS,
            tried={"accumulation_steps=2": {"accumulation_steps": 2}},
        ),
        Switch(
            name="no_sync",
            where="setting",
            does="whether all of them but the last run under no_sync; false: each one reduces (A3.12)",
            help="Micro-batches before the last run under no_sync; off: each one is reduced.",
            default=True,
        ),
        Switch(
            name="optimize_ddp",
            where="setting",
            does="under torch.compile: gradients are ready where its cuts end (A11)",
            help="Under torch.compile, by torch._dynamo.config.optimize_ddp: gradients are ready where its "
            "cuts end; with no_optimization after the whole backward.",
            default=None,
        ),
        Switch(
            name="compile_cap_mb",
            where="setting",
            does="MiB that the parameters of a cut hold, its bucket_bytes_cap; left out: bucket_cap_mb (A11)",
            help="The cap of torch.compile's cuts, apart from that of the buckets. Empty: the same.",
            default=None,
        ),
        Switch(
            name="set_last_bucket_cap",
            where="environment",
            does="DDP_SET_LAST_BUCKET_CAP=1: the first cap is that of the bucket ready last (A2.5)",
            help="DDP_SET_LAST_BUCKET_CAP=1 in the environment: the small first cap goes to the bucket that "
            "is ready last.",
            tried={"DDP_SET_LAST_BUCKET_CAP=1": {"set_last_bucket_cap": True}},
        ),
    )
}
ARGUMENTS = tuple(one for one in SWITCHES.values() if one.where == "argument")
SETTINGS = tuple(one for one in SWITCHES.values() if one.where == "setting")

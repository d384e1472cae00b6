"""Every switch of the system that was picked, by its own name; only what is not at its default is told."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import streamlit as st

from app.words import labels, switches
from app.words.labels import Pick
from sim.errors import InputError
from sim.nouns.ddp_switches import SWITCHES
from sim.systems.comm_hooks import HOOKS
from sim.systems.compile_cuts import OPTIMIZE_DDP

Kind = Literal["toggle", "integer", "number", "select", "text"]
Options = tuple[tuple[str, Any], ...]

AS_IT_IS = "as it is"
_FLOATS = (AS_IT_IS, "float32", "bfloat16", "float16", "float64")
_SHORT_FLOATS = (AS_IT_IS, "fp32", "fp16", "bf16")
_NO_HOOK = "none"
_EAGER = "eager"
_MOST = 2**53 - 1  # what a browser can count to


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """One switch and its widget; ``default`` is the system's own, so that it need not be told."""

    name: str
    kind: Kind
    default: Any
    choices: tuple[str, ...] = ()
    least: float = 0
    most: float = _MOST

    @property
    def help(self) -> str:
        """What it does, in plain words."""
        return switches.HELP[self.name]


def _toggle(name: str, *, default: bool = False) -> Switch:
    return Switch(name=name, kind="toggle", default=default)


def _integer(name: str, default: int, least: int = 1, most: int = _MOST) -> Switch:
    return Switch(name=name, kind="integer", default=default, least=least, most=most)


def _number(name: str, default: float | None) -> Switch:
    return Switch(name=name, kind="number", default=default)


def _select(name: str, choices: tuple[str, ...]) -> Switch:
    return Switch(name=name, kind="select", default=choices[0], choices=choices)


def _ddp(name: str) -> Switch:
    """The widget of a flag or number of DDP's, by what its default is."""
    row = SWITCHES[name]
    if isinstance(row.default, bool):
        return _toggle(name, default=row.default)
    assert row.default is not None
    return _integer(name, row.default, row.least, row.most)


_LAST_CAP = _ddp("set_last_bucket_cap")
_HOOK = _select("comm_hook", (_NO_HOOK, *sorted(HOOKS, key=lambda name: HOOKS[name].dtype is None)))
_STEPS, _NO_SYNC = _ddp("accumulation_steps"), _ddp("no_sync")
_PRECISION = tuple(_select(name, _FLOATS) for name in SWITCHES["mixed_precision"].parts)
_COMPILES = _select("optimize_ddp", (_EAGER, *OPTIMIZE_DDP))
_COMPILE_CAP = _number("compile_cap_mb", None)
_FIRST = ("gradient_as_bucket_view", "static_graph", "find_unused_parameters", "batched_grad_copy")
_APART = (_LAST_CAP.name, _STEPS.name, _NO_SYNC.name)
_DDP_FIRST = tuple(map(_ddp, _FIRST))
_DDP_LAST = tuple(
    _ddp(row.name)
    for row in SWITCHES.values()
    if row.default is not None and not row.alias_of and row.name not in (*_FIRST, *_APART)
)
_OFFLOAD = _number("offload_gb_per_s", None)
_ZERO = (
    _integer("reduce_bucket_size", 500_000_000),
    _toggle("overlap_comm"),
    _toggle("contiguous_gradients", default=True),
    _toggle("reduce_scatter", default=True),
    _integer("gradient_accumulation_steps", 1, most=10_000),
    _select("communication_data_type", _SHORT_FLOATS),
    _toggle("cpu_offload"),
    _number("gradient_clipping", 1.0),
    _toggle("compute_grad_norm", default=True),
    _toggle("prescale_gradients"),
    _number("gradient_predivide_factor", 1.0),
    _toggle("check_grad_overflow", default=True),
    _select("accelerator", ("cuda", "cpu")),
)
MEGATRON = (
    _toggle("overlap_grad_reduce"),
    _number("bucket_size", None),
    _toggle("grad_reduce_in_fp32"),
    _toggle("use_distributed_optimizer"),
    _toggle("overlap_param_gather"),
    _integer("num_microbatches", 1, most=10_000),
    _toggle("pad_buckets_for_high_nccl_busbw"),
    _toggle("average_in_collective"),
)
_UNITS = Switch(name="units", kind="text", default="blocks")
_MIXED = tuple(one for one in _PRECISION if one.name != "buffer_dtype")
FULLY_SHARD = (
    _UNITS,
    _toggle("reshard_after_forward", default=True),
    _integer("backward_prefetch", 0, least=0, most=100),
    _integer("forward_prefetch", 0, least=0, most=100),
    _integer("replicas", 1, most=10_000),
    *_MIXED,
    _STEPS,
)
_CAP = _number("bucket_cap_mb", None)

DDP_PICKS = labels.DDP_PICKS
CAPPED_PICKS: tuple[Pick, ...] = ("default", "cap", "cap-list")
SIZED_PICKS: tuple[Pick, ...] = (
    "after-backward",
    "arrival-counted",
    "flat-views",
    "last-hook",
    "last-hook-safe",
)
ZERO_PICKS: tuple[Pick, ...] = ("zero1", "zero2")
MEGATRON_PICKS: tuple[Pick, ...] = ("megatron",)
FSDP2_PICKS: tuple[Pick, ...] = ("fully_shard",)

DDP = (
    *(*_DDP_FIRST, _LAST_CAP, _HOOK),
    *(_STEPS, _NO_SYNC, *_DDP_LAST, *_PRECISION, _COMPILES, _COMPILE_CAP),
)
ZERO = (*_ZERO, _OFFLOAD)
ALL: Mapping[str, Switch] = {one.name: one for one in (*DDP, *ZERO, *MEGATRON, *FULLY_SHARD, _CAP)}

Ask = Callable[[Switch], Any]
_WITH_SWITCHES = (*DDP_PICKS, *ZERO_PICKS, *MEGATRON_PICKS, *FSDP2_PICKS, *SIZED_PICKS)


def show(pick: Pick, prefix: str = "") -> Options:
    """Draw the switches of ``pick`` where the caller stands, and read them.

    ``prefix`` goes before each key, for a page with more than one choice.

    Raises:
        InputError: a field that cannot be read; everything has been drawn by then.
    """

    if pick in ("recommended", "given"):
        st.caption(switches.TUNED_WITHOUT)
    elif pick not in _WITH_SWITCHES:
        st.caption(switches.NONE_TO_SET)
    return read(pick, lambda switch: _widget(switch, prefix + switch.name))


def read(pick: Pick, ask: Ask) -> Options:
    """The switches of ``pick`` that are not at their defaults, asked for one by one with ``ask``.

    Raises:
        InputError: a field that cannot be read; all have been asked for by then.
    """
    if pick in DDP_PICKS:
        return ddp_options(pick, ask)
    if pick in ZERO_PICKS:
        return zero_options(ask)
    if pick in MEGATRON_PICKS:
        return megatron_options(ask)
    if pick in FSDP2_PICKS:
        return fsdp2_options(ask)
    return _changed((_CAP,), ask) if pick in SIZED_PICKS else ()


def ddp_options(pick: Pick, ask: Ask) -> Options:
    """DDP's switches that are not at their defaults, asked for one by one with ``ask``."""
    options = dict(_changed(_DDP_FIRST, ask))
    if pick in CAPPED_PICKS:
        options |= _changed((_LAST_CAP,), ask)
    hook = ask(_HOOK)
    if hook != _NO_HOOK:
        options["comm_hook"] = hook
    steps = ask(_STEPS)
    if steps != _STEPS.default:
        options["accumulation_steps"] = steps
        options |= _changed((_NO_SYNC,), ask)
    options |= _changed(_DDP_LAST, ask)
    if precision := dict(_changed(_PRECISION, ask)):
        options["mixed_precision"] = precision
    compiles = ask(_COMPILES)
    if compiles != _EAGER:
        options["optimize_ddp"] = compiles
        options |= _changed((_COMPILE_CAP,) if compiles == OPTIMIZE_DDP[0] else (), ask)
    return tuple(sorted(options.items()))


def zero_options(ask: Ask) -> Options:
    """ZeRO's settings that are not at their defaults, asked for one by one with ``ask``."""
    options = dict(_changed(_ZERO, ask))
    offload = ask(_OFFLOAD)
    if offload is not None:
        options["offload_bytes_per_s"] = offload * 1e9
    return tuple(sorted(options.items()))


def megatron_options(ask: Ask) -> Options:
    """Megatron-Core's settings that are not at their defaults, asked for one by one with ``ask``."""
    return tuple(sorted(_changed(MEGATRON, ask)))


def fsdp2_options(ask: Ask) -> Options:
    """Settings of ``fully_shard`` that are not at their defaults, asked for one by one with ``ask``."""
    return tuple(sorted(_changed(FULLY_SHARD, ask)))


def caps(text: str) -> tuple[float, ...]:
    """``bucket_cap_mb_list`` as it is typed: MiB with commas between. Raises ``InputError``."""
    numbers = []
    for part in text.strip().strip("[]").split(","):
        try:
            number = float(part.strip())
        except ValueError:
            number = -1
        if not 0 <= number < float("inf"):
            raise InputError(
                f"bucket_cap_mb_list: {part.strip()[:40]!r} is not legal; give numbers with commas between, "
                f"such as 1, 25, 100 (MiB)"
            )
        numbers.append(number)
    return tuple(numbers)


def _changed(asked: tuple[Switch, ...], ask: Ask) -> Options:
    values = [(one, ask(one)) for one in asked]
    return tuple((one.name, value) for one, value in values if value != one.default)


def _widget(switch: Switch, key: str) -> Any:
    """The widget of a switch; a text that is too long or a number out of range the browser refuses."""
    common: dict[str, Any] = {"key": key, "bind": "query-params", "help": switch.help}
    label = switch.name  # as one would copy it: where the sidebar is narrow, the page's style breaks it
    if switch.kind == "toggle":
        return st.toggle(label, value=switch.default, **common)
    if switch.kind == "select":
        return st.selectbox(label, switch.choices, **common)
    if switch.kind == "text":
        return st.text_input(label, value=switch.default, max_chars=2000, **common)
    if switch.kind == "integer":
        return st.number_input(
            label,
            min_value=int(switch.least),
            max_value=int(switch.most),
            value=switch.default,
            step=1,
            **common,
        )
    return st.number_input(
        label,
        min_value=float(switch.least),
        max_value=float(switch.most),
        value=switch.default,
        format="%.6g",
        placeholder="none",
        **common,
    )

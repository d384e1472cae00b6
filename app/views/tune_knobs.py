"""The sidebar of the Tune page: what to look at, with every switch of its system, and what if the
machine were another.

It only asks; reading files comes after, so that an error in one leaves every knob in its place.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, fields, replace
from pathlib import Path
from typing import Any

import streamlit as st

from app import drag
from app.choosing import KEYS, Choice, Options, WhatIf
from app.sources import Asked
from app.widgets import factor, mib, take_name
from app.words import DDP_PICKS, HELP, PICK_WORDS, PICKS, Pick, plain
from sim.errors import InputError
from sim.nouns.ddp_switches import MixedPrecision, Switches
from sim.nouns.hardware import MAX_RANKS
from sim.nouns.settings import parts_of, settings_of
from sim.systems.fsdp2 import Fsdp2Settings
from sim.systems.megatron import MegatronSettings
from sim.systems.zero import ZeroSettings

AS_IT_IS = "as it is"
_UNSET = {"comm_hook": "none", "optimize_ddp": "eager"}  # the words for None where they are not ``AS_IT_IS``


_MOST = 2**53 - 1  # what a browser can count to


@dataclass(frozen=True, slots=True)
class Switch:
    """One switch and its widget; ``default`` is the system's own, so that it need not be told.

    Its kind is that of its default: a flag, a number (a whole one, or maybe none), a text, or one of
    ``choices``, which begin with it.
    """

    name: str
    default: bool | int | float | str | None
    help: str
    least: float = 0
    most: float = _MOST
    choices: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """``toggle``, ``integer``, ``number``, ``text`` or ``select``."""
        kinds = {bool: "toggle", int: "integer", str: "text"}
        return "select" if self.choices else kinds.get(type(self.default), "number")


def _switch(one: Field[Any]) -> Switch:
    """The widget of a setting, in the words of its own field."""
    told: Mapping[str, Any] = one.metadata
    default: Any = one.default
    choices = told["choices"]
    if choices and default is None:
        default = _UNSET.get(one.name, AS_IT_IS)
        choices = (default, *choices)
    least, most = told["least"] or 0, told["most"] or _MOST
    return Switch(one.name, default, told["help"], least, most, choices)


def _switches(cls: type) -> tuple[Switch, ...]:
    """The settings of a system that the page offers, and the parts of those that have some."""
    found: list[Switch] = []
    for one in settings_of(cls).values():
        if (parts := parts_of(one)) is not None:
            found += _switches(parts)
        elif one.metadata["help"]:
            found.append(_switch(one))
    return tuple(found)


_OFFLOAD = Switch(
    "offload_gb_per_s",
    None,
    "Between device and host, in GB/s (10^9 bytes a second), for cpu_offload on cuda.",
)
_CAP = Switch("bucket_cap_mb", None, "The bucket size of this system, in MiB. Empty: 25.")
CAPPED_PICKS: tuple[Pick, ...] = ("default", "cap", "cap-list")
SIZED_PICKS: tuple[Pick, ...] = (
    "after-backward",
    "arrival-counted",
    "flat-views",
    "last-hook",
    "last-hook-safe",
)
ZERO_PICKS: tuple[Pick, ...] = ("zero1", "zero2")
DDP, MEGATRON, FULLY_SHARD = map(_switches, (Switches, MegatronSettings, Fsdp2Settings))
_ZERO = _switches(ZeroSettings)
ZERO = (*_ZERO, _OFFLOAD)
ALL: Mapping[str, Switch] = {one.name: one for one in (*DDP, *ZERO, *MEGATRON, *FULLY_SHARD, _CAP)}
Ask = Callable[[Switch], Any]
_OTHERS: Mapping[Pick, tuple[Switch, ...]] = {
    "megatron": MEGATRON,
    "fully_shard": FULLY_SHARD,
    **dict.fromkeys(SIZED_PICKS, (_CAP,)),
}


def read(pick: Pick, ask: Ask) -> Options:
    """The switches of ``pick`` that are not at their defaults, asked for one by one with ``ask``.

    Raises:
        InputError: a field that cannot be read; all have been asked for by then.
    """
    if pick in DDP_PICKS:
        return ddp_options(pick, ask)
    if pick in ZERO_PICKS:
        return zero_options(ask)
    return tuple(sorted(_changed(_OTHERS.get(pick, ()), ask)))


def ddp_options(pick: Pick, ask: Ask) -> Options:
    """DDP's switches that are not at their defaults, asked for one by one with ``ask``."""
    options: dict[str, Any] = {}
    for one in DDP:
        is_offered = {
            "set_last_bucket_cap": pick in CAPPED_PICKS,
            "no_sync": "accumulation_steps" in options,
            "compile_cap_mb": options.get("optimize_ddp") == "ddp_optimizer",
        }
        if is_offered.get(one.name, True):
            options |= _changed((one,), ask)
    precision = {name: options.pop(name) for name in settings_of(MixedPrecision) if name in options}
    if precision:
        options["mixed_precision"] = precision
    return tuple(sorted(options.items()))


def zero_options(ask: Ask) -> Options:
    """ZeRO's settings that are not at their defaults, asked for one by one with ``ask``."""
    options = dict(_changed(_ZERO, ask))
    offload = ask(_OFFLOAD)
    if offload is not None:
        options["offload_bytes_per_s"] = offload * 1e9
    return tuple(sorted(options.items()))


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
    default, least, most = switch.default, switch.least, switch.most
    if switch.choices:
        return st.selectbox(label, switch.choices, **common)
    if isinstance(default, bool):
        return st.toggle(label, value=default, **common)
    if isinstance(default, str):
        return st.text_input(label, value=default, max_chars=2000, **common)
    if isinstance(default, int):
        return st.number_input(
            label, min_value=int(least), max_value=int(most), value=default, step=1, **common
        )
    common |= {"format": "%.6g", "placeholder": "none"}
    return st.number_input(label, min_value=float(least), max_value=float(most), value=default, **common)


def ask_switches(pick: Pick, prefix: str = "") -> Options:
    """Draw the switches of ``pick`` where the caller stands, and read them.

    ``prefix`` goes before each key, for a page with more than one choice.

    Raises:
        InputError: a field that cannot be read; everything has been drawn by then.
    """
    if pick in ("recommended", "given"):
        st.caption(
            "The search knows no switches: these are its buckets, played with the switches set "
            "here. Where they keep keywords from reaching the buckets, sim.apply gives DDP the "
            "buckets."
        )
    elif pick not in (*DDP_PICKS, *ZERO_PICKS, *_OTHERS):
        st.caption("This system has no switches.")
    return read(pick, lambda switch: _widget(switch, prefix + switch.name))


FACTORS = (0.1, 0.2, 0.25, 0.33, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 8.0, 10.0)
INTERFERENCE = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
SLOWEST = (1.0, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0)
AS_RECORDED = "as recorded"
PRECISIONS = (AS_RECORDED, "float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2")
CUSTOM = "custom"
# By field of WhatIf, the stops of its slider.
SLIDERS = {
    **dict.fromkeys(("bandwidth", "latency", "backward"), FACTORS),
    "slowest_rank": SLOWEST,
    "interference": INTERFERENCE,
}
# Relative to what was measured where the rate of the wire is not known: none of them names one.
PRESETS: dict[str, WhatIf] = {
    "as measured": WhatIf(),
    "twice the bandwidth": WhatIf(bandwidth=2.0),
    "10 times the bandwidth": WhatIf(bandwidth=10.0),
    "half the bandwidth": WhatIf(bandwidth=0.5),
    "backward twice as fast": WhatIf(backward=0.5),
    "bf16 gradients": WhatIf(precision="bfloat16"),
    "64 ranks": WhatIf(world_size=64),
    "1024 ranks": WhatIf(world_size=1024),
    "no interference": WhatIf(interference=0.0),
    "slowest rank × 1.3": WhatIf(slowest_rank=1.3),
}


def _what_ifs() -> WhatIf:
    """Draw the knobs where the caller stands, and read them."""
    with st.expander("What if the machine were another?", expanded=True):
        above = st.container()
        bandwidth = _factor("Bandwidth ×", "bandwidth")
        latency = _factor("Latency ×", "latency")
        backward = _factor("Backward ×", "backward")
        world_size = st.number_input(
            "Ranks",
            min_value=2,
            max_value=MAX_RANKS,
            value=None,
            step=1,
            key=KEYS["world_size"],
            bind="query-params",
            placeholder="as measured",
            help="As many ranks in a ring of equal wires, in place of those measured. Empty: as measured.",
        )
        if world_size is not None:
            st.caption(
                "Where so many were not measured, the curve is stretched to them by the law of a "
                "ring of equal wires."
            )
        precision = st.selectbox(
            "Gradients are",
            PRECISIONS,
            key=KEYS["precision"],
            bind="query-params",
            help="The dtype of all gradients, in buckets and on the wire. Compute stays as recorded.",
        )
        slowest_rank = _factor("Slowest rank ×", "slowest_rank")
        if slowest_rank != 1.0:
            st.caption(
                "The slowest rank delays the assignment that is shown, DDP's default and the sweep "
                "over caps: the recommended cap is found beside it. The best buckets, wherever they "
                "are cut, are found for equal ranks."
            )
        interference = _factor("Interference ×", "interference")
        what_if = WhatIf(
            bandwidth=bandwidth,
            latency=latency,
            backward=backward,
            interference=interference,
            world_size=world_size,
            precision=None if precision == AS_RECORDED else precision,
            slowest_rank=slowest_rank,
        )
        # The preset follows the knobs, and the knobs the preset: it names where they stand.
        st.session_state["preset"] = next(
            (name for name, preset in PRESETS.items() if preset == what_if), CUSTOM
        )
        above.selectbox(
            "Preset",
            [*PRESETS, CUSTOM],
            key="preset",
            on_change=_take_preset,
            help="Sets all knobs below at once. Moving one of them afterwards makes it your own.",
        )
    return what_if


def standing() -> WhatIf:
    """Where the knobs stand on the page that has them, as another page sees it."""
    found = {name: st.session_state.get(key) for name, key in KEYS.items()}
    found["precision"] = None if found["precision"] == AS_RECORDED else found["precision"]
    return WhatIf(**{name: value for name, value in found.items() if value is not None})


def positions(what_if: WhatIf) -> dict[str, Any]:
    """By key, where the knobs stand for ``what_if``."""
    found = {KEYS[field.name]: getattr(what_if, field.name) for field in fields(WhatIf)}
    return found | {KEYS["precision"]: what_if.precision or AS_RECORDED}


def _take_preset() -> None:
    name = st.session_state["preset"]
    if name in PRESETS:
        for key, value in positions(PRESETS[name]).items():
            st.session_state[key] = value


def _factor(label: str, field: str) -> float:
    # A move is told by hand.js.
    return factor(label, SLIDERS[field], KEYS[field], HELP[field], on_change="ignore")


CAP_STOPS = (
    *(0.25, 0.5, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12.5, 16, 20),
    *(25, 32, 40, 50, 64, 100, 128, 200, 256, 512),
)
_SLIDER, _SHOWN = "cap_slider", "cap_slider_shown"
_DRAG = Path(drag.__path__[0])
_HAND = st.components.v2.component(
    "bucketsim_hand",
    js="".join((_DRAG / name).read_text(encoding="utf-8") for name in ("hand.js", "sliders.js")),
    css=".st-key-hand { display: none; }",
    isolate_styles=False,
)


# By key, where every knob of the sidebar stands at first; what is looked at is no knob.
DEFAULTS: dict[str, Any] = {
    "pick": "default",
    "cap": 25.0,
    "first": None,
    "caps": "1, 25",
    **{name: switch.default for name, switch in ALL.items()},
    **positions(WhatIf()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Where all knobs stand."""

    source: Asked
    choice: Choice
    what_if: WhatIf


def show(source: Asked) -> Knobs:
    """Draw the sidebar and read it, below what is looked at."""
    take_name("pick", PICK_WORDS)
    with st.sidebar:
        choice = _choice(source)
        what_if = _what_ifs()
        _listen([_SLIDER, *(KEYS[field] for field in SLIDERS)])
        st.button(
            "Reset all knobs",
            key="reset",
            on_click=_reset,
            icon=":material/restart_alt:",
            disabled=all(st.session_state.get(key, first) == first for key, first in DEFAULTS.items()),
            help="Back to DDP's default on the machine as measured.",
        )
    return Knobs(source=source, choice=choice, what_if=what_if)


def _listen(sliders: Iterable[str]) -> None:
    """Run the page anew once the hand has let go of one of the ``sliders`` (``hand.js``).

    They are keys of select sliders that were drawn in this run with ``on_change="ignore"``.
    """
    at = {slider: f"{st.session_state[slider]:g}" for slider in sliders}
    _HAND(key="hand", data={"at": at}, on_moved_change=lambda: None)


def take_slider() -> None:
    """Let the number follow the slider of the cap where a hand moved that; before any knob is drawn."""
    stop = st.session_state.get(_SLIDER)
    if stop in (None, st.session_state.get(_SHOWN, stop)):
        return
    st.session_state[_SHOWN] = stop
    st.session_state["cap"] = float(stop)
    _pick_cap()


def show_pick(pick: Pick, cap_mb: float | None = None) -> None:
    """Turn the knobs to an assignment, or to a cap alone, without one for the first bucket; for callbacks."""
    st.session_state["pick"] = pick
    if cap_mb is not None:
        st.session_state["cap"], st.session_state["first"] = float(cap_mb), None


def show_answer(pick: Pick, cap_mb: float | None, choice: Choice) -> None:
    """Turn the knobs to the answer to ``choice``, under the switches that it was found under; for callbacks.

    DDP's switches that ``choice`` does not show were turned for another assignment: they stay off.
    """
    shown: set[str] = set()

    def ask(switch: Switch) -> Any:
        shown.add(switch.name)
        return st.session_state.get(switch.name, switch.default)

    read(choice.pick, ask)
    found_under = dict(choice.options_under_ddp)
    for switch in DDP:
        if switch.name not in shown:
            st.session_state[switch.name] = found_under.get(switch.name, switch.default)
    show_pick(pick, cap_mb)


def _choice(source: Asked) -> Choice:
    pick: Pick = st.selectbox(
        "Assignment",
        [pick for pick in PICKS if pick != "given" or source.has_assignment],
        format_func=PICK_WORDS.__getitem__,
        key="pick",
        bind="query-params",
        help="Which assignment the page shows. DDP's default is not `bucket_cap_mb=25`: it has a "
        "small first bucket of 1 MiB, which `bucket_cap_mb` set to any number has not.",
    )
    cap = mib("Cap, MiB", "cap", 25.0, HELP["cap"], on_change=_pick_cap) or 0.0
    # The slider follows the number, and the number the slider: one knob, exact and quick.
    st.session_state[_SHOWN] = min(
        CAP_STOPS, key=lambda stop: max(stop, cap) / max(min(stop, cap), 1e-9)
    )  # in ratio
    if st.session_state.get(_SLIDER) != st.session_state[_SHOWN]:  # else it would be drawn over a hand's move
        st.session_state[_SLIDER] = st.session_state[_SHOWN]
    st.select_slider(
        "Cap, MiB (slider)",
        CAP_STOPS,
        format_func=lambda stop: f"{stop:g}",
        key=_SLIDER,
        on_change="ignore",  # of it tells hand.js
        label_visibility="collapsed",
    )
    first = mib("First bucket, MiB", "first", None, HELP["first"], on_change=_pick_cap)
    if pick != "cap":
        st.caption("The assignment above does not use these two. Change one to see `bucket_cap_mb` with it.")
    choice = Choice(pick=pick)
    if pick == "cap":
        choice = replace(choice, cap_mb=cap, first_mb=first)
    if pick == "cap-list":
        text = ask_caps("caps")
        try:
            choice = replace(choice, caps_mb=caps(text))
        except InputError as error:
            choice = _unreadable(choice, error)
    with st.expander("Switches"):
        try:
            choice = replace(choice, options=ask_switches(pick))
        except InputError as error:
            choice = _unreadable(choice, error)
    return choice


def ask_caps(key: str) -> str:
    """A cap for each bucket, as it is typed; see ``caps``."""
    return st.text_input(
        "Caps, MiB", value="1, 25", key=key, bind="query-params", max_chars=2000, help=HELP["caps"]
    )


def _unreadable(choice: Choice, error: InputError) -> Choice:
    """Tell the error beside its field, and on the page that cannot show such a choice."""
    st.error(plain(str(error)), icon=":material/error:")
    return replace(choice, unreadable=choice.unreadable or str(error))


def _reset() -> None:
    for key, value in DEFAULTS.items():
        if key in st.session_state:
            st.session_state[key] = value


def _pick_cap() -> None:
    st.session_state["pick"] = "cap"

"""The address of a page: what one may write by hand in it, that it says what the page shows, and what of it
is not legal."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any
from urllib.parse import parse_qs, urlencode

import streamlit as st
from streamlit.delta_generator import DeltaGenerator
from streamlit.runtime.scriptrunner import get_script_run_ctx
from streamlit.runtime.state.common import WidgetMetadata
from streamlit.runtime.state.query_params import is_empty_url_value, parse_url_param

from app.choosing import KEYS
from app.words import plain
from sim.units import format_number

_WAS_SET = "set_by_the_page"
_ARRIVED, _WRITTEN, _DOUBTS = "arrived_at", "written_in_the_address", "doubts_of_the_address"
_DROPPED, _MISSED = "dropped_from_the_address", "missed_in_the_address"
_MOST_NAMED = 8
# What one writes who goes by the labels or by torch's names; by key, with the key that is meant.
_MEANT = {
    **KEYS,
    "straggler": "slowest",
    "record": "run",
    "assignment": "pick",
    "bucket_cap_mb": "cap",
    "first_bucket_mb": "first",
    "bucket_cap_mb_list": "caps",
}
# Words that select boxes showed once, in addresses that were shared then; by bare name.
_FORMER = {
    "explicit cap": "cap",
    "one cap a bucket": "cap-list",
    **dict.fromkeys(("best bucket_cap_mb", "recommended bucket_cap_mb"), "best-cap"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """What is wrong with one key of the address, told for as long as its knob stands where it stood then."""

    words: str
    shown: Any = None


def take_name(key: str, words: Mapping[str, str]) -> None:
    """Let the address name an option of a select box by its bare name, before that box is drawn.

    ``bind="query-params"`` writes the words that a select box shows (``?pick=DeepSpeed+ZeRO-1``), and reads
    nothing else. A bare name (``?pick=zero1``) is put into words here, and the page starts again with them.
    """
    written = st.query_params.get(key, "")
    named = _FORMER.get(written, written)
    if named not in words or named in words.values():
        return
    if key in st.session_state:  # drawn before, as after "back" in the browser: the box owns its parameter
        st.session_state[key] = named
        _written().pop(key, None)
        return
    st.query_params[key] = words[named]
    _written()[key] = [words[named]]
    st.rerun()


def keep() -> None:
    """Set again what the page set last, where the browser did not know of it; before any knob is drawn.

    The browser sends all knobs as it has them. One that the page has just set comes back as it was before,
    beside the one that was turned meanwhile: a turn changes one knob, so where others differ, nobody turned
    what was set.
    """
    context = get_script_run_ctx()
    if context is None:
        return
    if context.page_script_hash != st.session_state.get(_ARRIVED) or context.is_history_navigation:
        # Streamlit drops what it cannot read from the address: what was written is known at arrival alone.
        st.session_state[_ARRIVED] = context.page_script_hash
        st.session_state[_WRITTEN] = written = _all_written()
        # A link's knob that the page before has, too, stands twice in the address; Streamlit drops both.
        st.session_state[_DROPPED] = {
            key: values[-1:]
            for key, values in parse_qs(context.query_string).items()
            if len(values) > 1 and key not in written
        }
        st.session_state[_DOUBTS] = {}
    for key, value in st.session_state.pop(_MISSED, {}).items():
        st.session_state[key] = value
    state = context.session_state._state
    with context.session_state.query_params() as address:
        bound = {key: address.get_binding_for_param(str(key)) for key in st.session_state}
    ids = {str(key): binding.widget_id for key, binding in bound.items() if binding is not None}
    turned = {key for key, widget_id in ids.items() if state._widget_changed(widget_id)}
    was_set: dict[str, Any] = st.session_state.get(_WAS_SET, {})
    if turned - was_set.keys():
        for key in turned & was_set.keys():
            st.session_state[key] = was_set[key]
    st.session_state[_WAS_SET] = {
        key: st.session_state[key] for key in ids if context.session_state.is_new_state_value(key)
    }


def tell() -> None:
    """Make the address say where every knob stands; to be called when the page is drawn.

    With ``bind="query-params"`` the browser writes a knob into the address when it is turned, and the server
    writes the whole address anew when it sets a knob itself, from what it knew when its run began. So a knob
    that is turned meanwhile is lost from the address, as is one that is turned while the browser draws it in
    another place. Where the knobs stand is known to the run that comes last: it has the last word. Nothing is
    sent where that is what the browser has said, or was told before: it would set back a slider that a hand
    moves meanwhile, of which the server hears later.
    """
    context = get_script_run_ctx()
    if context is None:
        return
    with context.session_state.query_params() as address:
        for key in st.session_state:
            binding = address.get_binding_for_param(str(key))
            metadata = binding and context.session_state._state.get_widget_metadata(binding.widget_id)
            if not metadata:
                continue
            value = st.session_state[key]
            if value == metadata.deserializer(None):
                address.discard_param_no_forward_msg(str(key))
            elif not _says(address.get_all(str(key)), value, metadata):
                address.set_corrected_value(str(key), metadata.serializer(value), metadata.value_type)
    if _all_written() != parse_qs(context.query_string, keep_blank_values=True):
        st.query_params.update({})  # sends the whole address


def doubt(place: DeltaGenerator, *, is_whole: bool = False) -> None:
    """Tell in ``place`` what of the address that one arrived by is not legal, as far as knobs are drawn.

    ``is_whole``: all of them are, so that what names none of them is told as well. Where Streamlit dropped a
    knob of the address, the page begins again with it.
    """
    context = get_script_run_ctx()
    if context is None:
        return
    written = _written()
    doubts: dict[str, Doubt] = st.session_state[_DOUBTS]
    dropped: dict[str, list[str]] = st.session_state[_DROPPED]
    missed: dict[str, Any] = {}
    with context.session_state.query_params() as address:
        bound = {str(key) for key in st.session_state if address.is_bound(str(key))}
        for key, values in list(written.items()):
            binding = address.get_binding_for_param(key)
            metadata = binding and context.session_state._state.get_widget_metadata(binding.widget_id)
            if metadata:
                del written[key]
                if not _is_legal(values, metadata):
                    doubts[key] = _doubt(key, values, metadata)
            elif is_whole:
                del written[key]
                doubts[key] = Doubt(words=_unknown(key, values, bound))
        for key, values in list(dropped.items()):
            binding = address.get_binding_for_param(key)
            metadata = binding and context.session_state._state.get_widget_metadata(binding.widget_id)
            if metadata:
                del dropped[key]
                if _is_legal(values, metadata) and not _says(values, st.session_state[key], metadata):
                    missed[key] = metadata.deserializer(parse_url_param(values, metadata.value_type))
                    address.set_corrected_value(key, metadata.serializer(missed[key]), metadata.value_type)
    if missed:
        st.session_state[_MISSED] = missed
        st.rerun()
    told = [one.words for key, one in doubts.items() if one.shown == st.session_state.get(key)]
    if told:
        place.error("  \n".join(map(plain, told)), icon=":material/link_off:")


def _all_written() -> dict[str, list[str]]:
    """The address as the server knows it, by key."""
    return {key: st.query_params.get_all(key) for key in st.query_params}


def _written() -> dict[str, list[str]]:
    """By key, what was written in the address that one arrived by and is not looked at yet."""
    written: dict[str, list[str]] = st.session_state.setdefault(_WRITTEN, {})
    return written


def _is_legal(written: list[str], metadata: WidgetMetadata[Any]) -> bool:
    """Whether the knob takes what is written in the address as it is."""
    try:
        parsed = parse_url_param(written, metadata.value_type)
        if metadata.formatted_options is not None:
            named = parsed if isinstance(parsed, list) else [parsed]
            return all(one in metadata.formatted_options for one in named)
        if is_empty_url_value(written):
            return metadata.clearable
        return bool(metadata.serializer(metadata.deserializer(parsed)) == parsed)
    except (ValueError, TypeError, IndexError):  # as streamlit does where an address cannot be read
        return False


def _doubt(key: str, written: list[str], metadata: WidgetMetadata[Any]) -> Doubt:
    shown = st.session_state[key]
    told = metadata.serializer(shown)
    told = ", ".join(map(str, told)) if isinstance(told, list) else told
    return Doubt(
        words=f"The address asks for {key}={_cut(written)}, which is not legal: give "
        f"{_legal(written, metadata)}. Shown instead: {'none' if told in (None, '') else told}.",
        shown=shown,
    )


def _legal(written: list[str], metadata: WidgetMetadata[Any]) -> str:
    """What a knob takes, in words; of many options those that are most like what is written come first."""
    of = getattr(metadata.deserializer, "__self__", None)
    options = metadata.formatted_options or list(getattr(of, "formatted_option_to_index", ()))
    if not options:
        if metadata.value_type == "bool_value":
            return "true or false"
        low, high = getattr(of, "min_value", None), getattr(of, "max_value", None)
        if low is None or high is None:
            return "another value"
        return f"a number {format_number(low, 6)} to {format_number(high, 6)}"
    like = get_close_matches(written[-1], options, _MOST_NAMED, 0.3)
    named = [*like, *(one for one in options if one not in like)]
    more = len(named) - _MOST_NAMED
    return f"one of {', '.join(named[:_MOST_NAMED])}{f' and {more} more' if more > 0 else ''}"


def _unknown(key: str, written: list[str], bound: set[str]) -> str:
    like = [_MEANT[key]] if _MEANT.get(key) in bound else get_close_matches(key, sorted(bound), 1)
    return (
        f"The address asks for {_cut([key])}={_cut(written)}, but no knob that is shown has that name: it "
        f"changes nothing.{f' Did you mean {like[0]}?' if like else ''}"
    )


def _cut(written: list[str]) -> str:
    text = ", ".join(written)
    return text if len(text) <= 60 else f"{text[:59]}…"


def link() -> None:
    """The whole address of what is shown, to copy; to be called after ``tell``, which makes it so."""
    if st.context.url is None:
        return
    with st.sidebar, st.popover("Copy link", icon=":material/link:", width="stretch"):
        st.code(f"{st.context.url}?{urlencode(_all_written(), doseq=True)}", language=None, wrap_lines=True)
        st.caption("It holds every knob. Uploads are not in it: whoever opens it has to give them again.")


def _says(written: list[str], value: object, metadata: WidgetMetadata[object]) -> bool:
    """Whether what is written in the address is ``value``, in whatever spelling."""
    try:
        return bool(written) and metadata.deserializer(parse_url_param(written, metadata.value_type)) == value
    except (ValueError, TypeError, IndexError):  # as streamlit does where an address cannot be read
        return False

"""The address of a page: what one may write by hand in it, and that it says what the page shows."""

from collections.abc import Mapping
from typing import Any

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx
from streamlit.runtime.state.common import WidgetMetadata
from streamlit.runtime.state.query_params import parse_url_param

_WAS_SET = "set_by_the_page"


def take_name(key: str, words: Mapping[str, str]) -> None:
    """Let the address name an option of a select box by its bare name, before that box is drawn.

    ``bind="query-params"`` writes the words that a select box shows (``?pick=DeepSpeed+ZeRO-1``), and reads
    nothing else. A bare name (``?pick=zero1``) is put into words here, and the page starts again with them.
    """
    named = st.query_params.get(key)
    if named is None or named not in words or named in words.values():
        return
    if key in st.session_state:  # drawn before, as after "back" in the browser: the box owns its parameter
        st.session_state[key] = named
        return
    st.query_params[key] = words[named]
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
    another place. Where the knobs stand is known to the run that comes last: it has the last word.
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
    st.query_params.update({})  # sends the whole address; the browser ignores what it has


def _says(written: list[str], value: object, metadata: WidgetMetadata[object]) -> bool:
    """Whether what is written in the address is ``value``, in whatever spelling."""
    try:
        return bool(written) and metadata.deserializer(parse_url_param(written, metadata.value_type)) == value
    except (ValueError, TypeError, IndexError):  # as streamlit does where an address cannot be read
        return False

"""Files of one's own: the uploader, what the files do not say, and what they were taken for."""

import streamlit as st

from app import cached_uploads
from app.cached_uploads import Outcome, UploadedFile
from app.views import imported
from app.words import labels
from app.words import uploads as words
from sim.nouns.hardware import MAX_RANKS
from sim.nouns.imported import ImportOptions
from sim.units import NS_PER_MS

_MOST_MS = 1e9
KEPT, TOLD = "uploaded_files", "told_of_uploaded_files"


def ask() -> Outcome | None:
    """What was uploaded: in this session, on whichever page; a widget forgets it when the page changes."""
    files: list[UploadedFile] = list(
        st.file_uploader(
            words.LABEL, accept_multiple_files=True, key="up", help=words.HELP["up"], on_change=_forget
        )
    )
    if files:
        st.session_state[KEPT] = files
    files = st.session_state.get(KEPT, [])
    if not files:
        return None
    if not st.session_state["up"]:
        st.caption(labels.plain(words.kept([file.name for file in files])))
        st.button("Forget these files", key="up_forget", on_click=_forget, icon=":material/delete:")
    st.session_state[TOLD] = _told()
    outcome = cached_uploads.read(files, st.session_state[TOLD])
    if outcome.uploaded is not None:
        imported.show(outcome.uploaded)
    return outcome


def one(label: str, key: str, help_text: str | None = None) -> UploadedFile | None:
    """One JSON file that was uploaded in this session: it is kept as those of ``ask`` are."""
    kept = f"{key}_kept"
    file: UploadedFile | None = st.file_uploader(
        label,
        type=["json"],
        key=key,
        help=help_text,
        on_change=lambda: st.session_state.pop(kept, None),
    )
    if file is not None:
        st.session_state[kept] = file
    elif kept in st.session_state:
        file = st.session_state[kept]
        st.caption(labels.plain(words.kept([file.name])))
    return file


def _forget() -> None:
    st.session_state.pop(KEPT, None)


def _told() -> ImportOptions:
    """What the user adds to the files."""
    with st.expander(words.TELL):
        ranks = st.number_input(
            "World size, ranks",
            min_value=1,
            max_value=MAX_RANKS,
            value=None,
            step=1,
            key="up_world_size",
            bind="query-params",
            placeholder="as the files say",
            help=words.HELP["world_size"],
        )
        times = {part: _milliseconds(part) for part in ("backward", "forward", "optimizer")}
    return ImportOptions(
        world_size=ranks,
        backward_ns=times["backward"],
        forward_ns=times["forward"],
        optimizer_ns=times["optimizer"],
    )


def _milliseconds(part: str) -> int | None:
    value = st.number_input(
        f"{part.capitalize()}, ms",
        min_value=0.0,
        max_value=_MOST_MS,
        value=None,
        step=1.0,
        format="%.6g",
        key=f"up_{part}_ms",
        bind="query-params",
        placeholder="as the files say",
        help=words.HELP[f"{part}_ms"],
    )
    return None if value is None else round(value * NS_PER_MS)

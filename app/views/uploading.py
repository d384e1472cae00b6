"""Files of one's own: the uploader, what the files do not say, and what they were taken for."""

from typing import Any

import streamlit as st

from app import cached_uploads
from app.cached_uploads import Outcome, UploadedFile
from app.views import imported
from app.words import labels
from app.words import uploads as words
from sim.nouns.hardware import MAX_RANKS
from sim.nouns.imported import ImportOptions

KEY, TOLD = "up", "told_of_uploads"


def ask() -> Outcome | None:
    """What was uploaded for Tune, Compare and Cluster, whichever of them asked for it."""
    files = kept_files(words.LABEL, KEY, words.HELP["up"], accept_multiple_files=True)
    if not files:
        return None
    st.session_state[TOLD] = _told()
    outcome = cached_uploads.read(files, st.session_state[TOLD])
    if outcome.uploaded is not None:
        imported.show(outcome.uploaded)
    return outcome


def uploaded() -> Outcome | None:
    """What ``ask`` was given in this session, with what was filled in there; for pages that do not ask."""
    files = st.session_state.get(_kept(KEY))
    return cached_uploads.read(files, st.session_state.get(TOLD, ImportOptions())) if files else None


def one(label: str, key: str, help_text: str | None = None) -> UploadedFile | None:
    """One JSON file that was uploaded in this session."""
    return next(iter(kept_files(label, key, help_text, type=["json"])), None)


def kept_files(label: str, key: str, help_text: str | None, **more: Any) -> list[UploadedFile]:
    """Ask for files; those of this session stay while one looks elsewhere, where a widget forgets them."""

    def forget() -> None:
        st.session_state.pop(_kept(key), None)

    given = st.file_uploader(label, key=key, help=help_text, on_change=forget, **more)
    if given:
        st.session_state[_kept(key)] = list(given) if more.get("accept_multiple_files") else [given]
    files: list[UploadedFile] = st.session_state.get(_kept(key), [])
    if files and not given:
        st.caption(labels.plain(words.kept([file.name for file in files])))
        st.button("Forget these files", key=f"{key}_forget", on_click=forget, icon=":material/delete:")
    return files


def _kept(key: str) -> str:
    return f"{key}_kept"


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
    return ImportOptions(world_size=ranks)

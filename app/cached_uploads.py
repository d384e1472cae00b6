"""What was made of uploads, remembered by their content.

A rerun knows a file by its id, which is its own in each session, and computes nothing of its bytes. What is
remembered is what was read, not the bytes, and by digest: whoever sees it has given the same files.
"""

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import streamlit as st

import sim
from sim.errors import SimError
from sim.nouns.imported import ImportOptions, Uploaded

_DIGESTS, _MOST_DIGESTS = "upload_digests", 2_000
# One at a time: what reading takes is bounded for one upload, not for those of all users together.
_READING = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """An uploaded file."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an upload holds, or in one line why it holds nothing; digests stand for the nouns in it."""

    key: str
    uploaded: Uploaded | None = None
    error: str | None = None
    workload_digest: str = ""
    hardware_digests: tuple[str, ...] = ()
    cluster_digest: str = ""


class UploadedFile(Protocol):
    """Of streamlit's uploaded file what is used here."""

    file_id: str
    name: str

    def getbuffer(self) -> memoryview:
        """The content, without a copy of it."""

    def getvalue(self) -> bytes:
        """The content."""


def read(files: Sequence[UploadedFile], options: ImportOptions) -> Outcome:
    """What the files hold together; an error is told in the outcome, and remembered as well."""
    digests = _digests(files)
    told = options.world_size
    names = sorted((file.name, digests[file.file_id]) for file in files)
    key = hashlib.sha256(repr((names, told)).encode("utf-8", "replace")).hexdigest()
    return _read(files, options, key)


def _digests(files: Sequence[UploadedFile]) -> dict[str, str]:
    """Digests by file id; each file is hashed once in a session."""
    known: dict[str, str] = st.session_state.get(_DIGESTS, {})
    found = {
        file.file_id: known.get(file.file_id) or hashlib.sha256(file.getbuffer()).hexdigest()
        for file in files
    }
    st.session_state[_DIGESTS] = found if len(known) > _MOST_DIGESTS else known | found
    return found


@st.cache_data(max_entries=32, show_spinner="Reading the upload …")
def _read(_files: Sequence[UploadedFile], _options: ImportOptions, key: str) -> Outcome:
    try:
        with _READING:
            uploaded = sim.read_uploads([(file.name, file.getvalue()) for file in _files], _options)
    except SimError as error:
        return Outcome(key=key, error=str(error))
    return Outcome(
        key=key,
        uploaded=uploaded,
        workload_digest="" if uploaded.workload is None else sim.digest(uploaded.workload),
        hardware_digests=tuple(sim.digest(one) for one in uploaded.hardware),
        cluster_digest="" if uploaded.cluster is None else sim.digest(uploaded.cluster),
    )

"""What to look at: a measured run, bundled files, or an upload. The same widgets on every page that asks.

``ask`` only draws; ``read`` opens files after it, so that an error in one leaves every widget in its place.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import streamlit as st

from app import cached
from app.cached import Inputs
from app.library import Library
from app.words import labels
from sim.errors import SimError

MEASURED, BUNDLED, UPLOAD = "measured", "bundled", "upload"
_START_WORDS = {MEASURED: "measured run", BUNDLED: "bundled files", UPLOAD: "upload"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """An uploaded file."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the widgets point to; ``record``, ``workload`` and ``hardware`` are names in the library."""

    record: str | None
    workload: str | Upload | None
    hardware: str | Upload | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What was read. ``record`` names the measured record in the library that belongs to it, if one does."""

    inputs: Inputs
    record: str | None


def ask(library: Library) -> Asked:
    """Draw the widgets, where the caller stands (the sidebar)."""
    starts = [UPLOAD]
    if library.workloads and library.hardware:
        starts.insert(0, BUNDLED)
    if library.records:
        starts.insert(0, MEASURED)
    start = st.selectbox(
        "Start from",
        starts,
        format_func=_START_WORDS.__getitem__,
        key="start",
        bind="query-params",
        help=labels.HELP["start"],
    )
    if start == MEASURED:
        return Asked(record=_named("Record", "record", library.records), workload=None, hardware=None)
    workload: str | Upload | None = None
    hardware: str | Upload | None = None
    if start == UPLOAD:
        workload, hardware = _upload("Workload JSON", "up_w"), _upload("Hardware JSON", "up_h")
    if workload is None and library.workloads:
        workload = _named("Workload", "workload", library.workloads)
    if hardware is None and library.hardware:
        hardware = _named("Hardware", "hardware", library.hardware)
    return Asked(record=None, workload=workload, hardware=hardware)


def _named(label: str, key: str, files: Mapping[str, Any]) -> str | None:
    return st.selectbox(label, list(files), key=key, bind="query-params")


def _upload(label: str, key: str) -> Upload | None:
    file = st.file_uploader(label, type=["json"], key=key, help=labels.HELP["upload"])
    return None if file is None else Upload(name=file.name, content=file.getvalue())


def read(library: Library, asked: Asked) -> Given | None:
    """The files that the widgets point to; None where one is still to be given.

    Raises:
        SimError: a file that cannot be read.
    """
    if asked.record is not None:
        folder = library.records[asked.record]
        workload = cached.load_workload(folder / "workload.json")
        hardware = cached.load_hardware(folder / "hardware.json")
    elif asked.workload is not None and asked.hardware is not None:
        if isinstance(asked.workload, Upload):
            workload = cached.parse_workload(asked.workload.content, asked.workload.name)
        else:
            workload = cached.load_workload(library.workloads[asked.workload])
        if isinstance(asked.hardware, Upload):
            hardware = cached.parse_hardware(asked.hardware.content, asked.hardware.name)
        else:
            hardware = cached.load_hardware(library.hardware[asked.hardware])
    else:
        return None
    inputs = Inputs(
        workload=workload[0],
        hardware=hardware[0],
        workload_digest=workload[1],
        hardware_digest=hardware[1],
    )
    return Given(inputs=inputs, record=asked.record or _record_of(library, inputs))


def nothing_to_show(library: Library) -> None:
    """What a page says where nothing was chosen yet."""
    st.info(
        "There is nothing to look at yet: upload a workload and a hardware in the sidebar."
        + (
            " No bundled files were found; `bucketsim dash --traces DIR` names them."
            if library.is_empty
            else ""
        )
    )
    st.markdown(
        "- `bucketsim record` makes a workload of your model.\n"
        "- `bucketsim calibrate` makes a hardware of your machine.\n"
        "- `bucketsim validate` replays assignments on real ranks and makes a record of them."
    )


def _record_of(library: Library, inputs: Inputs) -> str | None:
    """The record whose digests are the same, if there is one."""
    for name, folder in library.records.items():
        try:
            _, workload = cached.load_workload(folder / "workload.json")
            _, hardware = cached.load_hardware(folder / "hardware.json")
        except SimError:
            continue  # a record that is broken, or still being written, belongs to nothing yet
        if f"{workload} {hardware}" == inputs.key:
            return name
    return None

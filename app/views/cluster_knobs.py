"""The sidebar of the Cluster page: which machine, and what of it can be set."""

from dataclasses import dataclass
from typing import Any

import streamlit as st

from app import cached
from app.cached_uploads import Upload
from app.library import Library
from app.views import addresses, uploading
from app.words import cluster as labels_cluster
from app.words.uploads import computed_words, uploaded_words
from sim.nouns.workload import Workload

UPLOAD, _FOLLOWED = "upload", "workload_followed"
COMPUTING = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of a preset and its widget: a number, a switch, or one of ``choices``."""

    name: str
    label: str
    default: Any
    choices: tuple[Any, ...] = ()
    most: int = 100_000


def _hosts(default: int) -> Setting:
    return Setting(name="hosts", label="Hosts", default=default, most=20_000)


def _leaf(default: int) -> Setting:
    return Setting(name="hosts_per_leaf", label="Hosts per leaf switch", default=default)


_OVERSUBSCRIPTION = Setting(
    name="oversubscription", label="Oversubscription", default=1.0, choices=(1.0, 1.5, 2.0, 3.0, 4.0, 8.0)
)
_PCIE = Setting(name="pcie_gen", label="PCIe generation", default=4, choices=(3, 4, 5))
_SOCKETS = Setting(name="sockets", label="Sockets", default=2, choices=(1, 2))
_PEER = Setting(name="peer_to_peer", label="GPUs reach each other over PCIe", default=True)

_GBIT = Setting(name="gbit_per_s", label="Network, Gbit/s", default=10, choices=(1, 10, 25, 40, 100, 200))

# What each preset lets one set here; what is not listed keeps the preset's own value.
PRESETS: dict[str, tuple[Setting, ...]] = {
    "dgx_h100": (_hosts(4), _leaf(32), _OVERSUBSCRIPTION),
    "dgx_a100": (_hosts(4), _leaf(20), _OVERSUBSCRIPTION),
    "dgx_v100": (_hosts(1), _leaf(24)),
    "p5": (_hosts(4),),
    "p4de": (_hosts(4),),
    "gh200_slingshot": (_hosts(4), _leaf(4)),
    "nvl72": (_hosts(1), _leaf(32), _OVERSUBSCRIPTION),
    "pcie_box": (Setting(name="gpus", label="GPUs", default=4, most=16), _PCIE, _SOCKETS, _PEER),
    "pcie_hosts": (
        _hosts(4),
        Setting(name="gpus", label="GPUs per host", default=4, most=16),
        _GBIT,
        Setting(name="protocol", label="Protocol", default="tcp", choices=("tcp", "rdma")),
        _PCIE,
        _SOCKETS,
        Setting(name="peer_to_peer", label="GPUs reach each other over PCIe", default=False),
        _OVERSUBSCRIPTION,
    ),
    "hgx_ethernet": (
        _hosts(4),
        _GBIT,
        Setting(name="generation", label="GPUs", default="hopper", choices=("ampere", "hopper")),
        _OVERSUBSCRIPTION,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the sidebar asks for: a preset with its settings, or an upload; neither before one is given.

    ``workload`` is a name in the library, or that of ``uploaded``. ``computing`` is how many times as long
    all that it computes takes.
    """

    preset: str | None
    settings: dict[str, Any]
    upload: Upload | None
    workload: str | None
    computing: float
    most_hosts: int
    uploaded: tuple[Workload, str] | None = None

    def recorded(self, library: Library) -> tuple[Workload, str]:
        """The workload as it was recorded, and its digest."""
        assert self.workload is not None
        if self.workload in library.workloads:
            return cached.load_workload(library.workloads[self.workload])
        assert self.uploaded is not None
        return self.uploaded


def show(library: Library, looked_at: str | None) -> Asked:
    """Draw the sidebar and read it; ``looked_at`` is the workload that the visitor was turned to last."""
    addresses.take_name("machine", labels_cluster.MACHINE_WORDS)
    with st.sidebar:
        machine = st.selectbox(
            "Machine",
            [*PRESETS, UPLOAD],
            format_func=labels_cluster.MACHINE_WORDS.__getitem__,
            key="machine",
            bind="query-params",
            help=labels_cluster.HELP["machine"],
        )
        settings, upload = {}, None
        if machine == UPLOAD:
            file = uploading.one("Cluster JSON", "up_c", labels_cluster.HELP["up_cluster"])
            upload = None if file is None else Upload(name=file.name, content=bytes(file.getbuffer()))
        else:
            settings = settings_of(machine)
        st.divider()
        workload, uploaded = None, uploaded_workload()
        names = [*library.workloads, *([] if uploaded is None else [uploaded_words(uploaded[0].name)])]
        if looked_at in names and looked_at != st.session_state.get(_FOLLOWED):
            st.session_state[_FOLLOWED] = looked_at
            if "scaled" not in st.query_params:  # else the address names one
                st.session_state["scaled"] = looked_at
        if names:
            workload = st.selectbox(
                "Workload",
                names,
                key="scaled",
                bind="query-params",
                help=labels_cluster.HELP["scaled"],
            )
        computing = st.select_slider(
            "Computing ×",
            COMPUTING,
            value=1.0,
            format_func=lambda factor: f"{factor:g}",
            key="computing",
            bind="query-params",
            help=labels_cluster.HELP["computing"],
        )
        most = st.select_slider(
            "Scale up to, hosts",
            labels_cluster.HOST_STOPS,
            value=64,
            key="most_hosts",
            bind="query-params",
            help=labels_cluster.HELP["most_hosts"],
        )
    return Asked(
        preset=None if machine == UPLOAD else machine,
        settings=settings,
        upload=upload,
        workload=workload,
        computing=computing,
        most_hosts=most,
        uploaded=uploaded,
    )


def uploaded_workload() -> tuple[Workload, str] | None:
    """The workload that was uploaded on another page, if there is one."""
    outcome = uploading.uploaded()
    if outcome is None or outcome.uploaded is None or outcome.uploaded.workload is None:
        return None
    return outcome.uploaded.workload, outcome.workload_digest


def in_tune(asked: Asked, library: Library) -> dict[str, str] | None:
    """The address at which Tune plays the workload on this machine; None where Tune cannot have it."""
    if asked.preset is None or asked.workload not in library.workloads or asked.computing != 1.0:
        return None
    settings = {one.name: one.default for one in PRESETS[asked.preset]}
    return {
        "start": "bundled files",
        "workload": asked.workload,
        "hardware": computed_words(asked.preset),
        **{
            f"{asked.preset}_{name}": str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in asked.settings.items()
            if value != settings[name]
        },
    }


def settings_of(preset: str) -> dict[str, Any]:
    """Draw what a ready-made cluster lets one set, where the caller stands, and read it."""
    return {one.name: _widget(preset, one) for one in PRESETS[preset]}


def _widget(preset: str, setting: Setting) -> Any:
    key = f"{preset}_{setting.name}"
    help_text = labels_cluster.HELP.get(setting.name)
    if setting.choices:
        return st.selectbox(
            setting.label,
            setting.choices,
            index=setting.choices.index(setting.default),
            key=key,
            bind="query-params",
            help=help_text,
        )
    if isinstance(setting.default, bool):
        return st.toggle(setting.label, value=setting.default, key=key, bind="query-params", help=help_text)
    return st.number_input(
        setting.label,
        min_value=1,
        max_value=setting.most,
        value=setting.default,
        step=1,
        key=key,
        bind="query-params",
        help=help_text,
    )

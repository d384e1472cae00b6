"""dash and doctor: the screen, and whether this machine can close the loop."""

import json
import os
import platform
import shutil
import socket
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from sim.cli.printing import emit, note, table
from sim.errors import InputError, MachineError


def dash(
    traces: Annotated[
        Path | None, typer.Option("--traces", help="Directory of recordings; default: the bundled ones.")
    ] = None,
    watch: Annotated[
        Path | None, typer.Option("--watch", help="Directory of further records to show.")
    ] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port on 127.0.0.1.")] = None,
) -> None:
    """Open the dashboard on 127.0.0.1."""
    from app.launch import command

    for folder in (traces, watch):
        if folder is not None and not folder.is_dir():
            raise InputError(f"{folder}: not a directory")
    port = port or _free_port(8501)
    argv = command(port=port, traces=traces, watch=watch)
    note(f"dashboard: http://127.0.0.1:{port} (Ctrl-C ends it)")
    os.execv(argv[0], argv)


def _free_port(first: int) -> int:
    """The first port from ``first`` on that nothing listens on."""
    for port in range(first, first + 100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
    raise MachineError(f"dash: ports {first} to {first + 99} are all taken; name one with --port")


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Say what this machine has, and whether the loop can close here."""
    checks: dict[str, str] = {"python": platform.python_version()}
    for package in ("bucketsim", "torch", "simpy", "networkx", "plotly", "streamlit"):
        try:
            checks[package] = version(package)
        except PackageNotFoundError:
            checks[package] = "missing"
    checks["cpus"] = str(os.cpu_count())
    tools = all(shutil.which(tool) for tool in ("ip", "tc"))
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    checks["cluster in a box"] = "yes" if tools and root else "no: needs root and iproute2 (ip, tc)"
    checks["gpu"] = "nvidia-smi found" if shutil.which("nvidia-smi") else "none found"
    if as_json:
        emit(json.dumps(checks, indent=1))
        return
    table("this machine", ["what", "found"], [[name, value] for name, value in checks.items()])
    missing = [name for name, value in checks.items() if value == "missing"]
    note(
        f"install: pip install {' '.join(missing)}"
        if missing
        else "the loop can close here: record, calibrate, tune, validate over gloo"
    )

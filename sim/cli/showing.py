"""dash: the screen."""

import os
import socket
from pathlib import Path
from typing import Annotated

import typer

import sim
from sim.cli.printing import note
from sim.errors import InputError, MachineError


def dash(
    traces: Annotated[
        Path | None, typer.Option("--traces", help="Directory of recordings; default: the bundled ones.")
    ] = None,
    watch: Annotated[
        Path | None,
        typer.Option(
            "--watch", help="Directory that a job writes to with sim.record, or of further records."
        ),
    ] = None,
    hardware: Annotated[
        Path | None,
        typer.Option("--hardware", help="The machine of the watched job, as calibrate writes it."),
    ] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port on 127.0.0.1.")] = None,
) -> None:
    """Open the dashboard on 127.0.0.1."""
    from app.launch import command

    for folder in (traces, watch):
        if folder is not None and not folder.is_dir():
            raise InputError(f"{folder}: not a directory")
    if hardware is not None:
        sim.load_hardware(hardware)
    if port is not None and (obstacle := port_obstacle(port)) is not None:
        raise InputError(f"--port: {port} is not legal: {obstacle}; give one that is free, or none")
    port = port or _free_port(8501)
    argv = command(port=port, traces=traces, watch=watch, hardware=hardware)
    note(f"dashboard: http://127.0.0.1:{port} (Ctrl-C ends it)")
    os.execv(argv[0], argv)


def _free_port(first: int) -> int:
    """The first port from ``first`` on that nothing listens on."""
    for port in range(first, first + 100):
        if port_obstacle(port) is None:
            return port
    raise MachineError(f"dash: ports {first} to {first + 99} are all taken; name one with --port")


def port_obstacle(port: int) -> str | None:
    """Why nobody can listen on a port; None where one can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was just left is free
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return error.strerror or str(error)
    return None

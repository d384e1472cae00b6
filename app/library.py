"""The files at hand: bundled workloads and hardware, and measured records."""

from dataclasses import dataclass, field
from pathlib import Path

import sim
from app.launch import Settings

LIVE = "live: "  # what the names of records in the watched directory begin with


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """Paths by the name that the page shows, sorted.

    ``records`` are those to start from: what was just measured, caps on even machines, and other systems.
    ``all_records`` are those and every other, by their folder under the traces directory.
    """

    workloads: dict[str, Path]
    hardware: dict[str, Path]
    records: dict[str, Path]
    all_records: dict[str, Path] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to start from but an upload."""
        return not (self.records or (self.workloads and self.hardware))

    def name_among_all(self, record: str | None) -> str | None:
        """What ``all_records`` call one of ``records``; None where there is no such record."""
        path = self.records.get(record or "")
        return next((name for name, other in self.all_records.items() if other == path), None)


def find(settings: Settings) -> Library:
    """What the traces directory and the watched one hold now."""
    traces = settings.traces or Path("no traces")
    # First: what was just measured is what one wants to see.
    live = {} if settings.watch is None else _records(settings.watch, LIVE)
    return Library(
        workloads=_documents(traces / "workloads"),
        hardware=_documents(traces / "hardware"),
        records=live | _records(traces / "measured", "") | _records(traces / "systems", "systems/"),
        all_records=live | _records(traces, ""),
    )


def _documents(home: Path) -> dict[str, Path]:
    return {str(path.relative_to(home).with_suffix("")): path for path in sorted(home.rglob("*.json"))}


def _records(folder: Path, prefix: str) -> dict[str, Path]:
    if not folder.is_dir():
        return {}
    inside = {path: path.relative_to(folder) for path in sim.find_records(folder)}
    return {f"{prefix}{path.name if at == Path() else at}": path for path, at in inside.items()}

"""Words of uploads and of ready-made machines: labels, help, summaries made of figures."""

from collections.abc import Sequence

from app.words import cluster as labels_cluster
from app.words.labels import counted
from sim.nouns.hardware import Hardware
from sim.nouns.imported import Uploaded
from sim.units import format_ms, format_size

LABEL = "Files"
HELP: dict[str, str] = {
    "up": "Drag any of these here, several at once; each is told by its content. Traces of torch.profiler "
    "(Kineto, .json or .json.gz, one a rank), nccl-tests output (text or -J JSON), recordings "
    "(rank-0.jsonl, …), our own workload, hardware, cluster and assignment JSON, or all files of a measured "
    "record. 50 MB a file; for larger ones `bucketsim import` on the command line makes small files to "
    "upload.",
    "workload": "What each GPU computes in a step: gradients, and when backward makes them ready.",
    "hardware": "What carries the gradients: measured by `bucketsim calibrate` or read from an upload, or "
    "computed for a ready-made cluster by NCCL's cost model from data sheets.",
    "world_size": "How many ranks the files are of, where they do not say it. Empty: as the files say.",
}
TELL = "Fill in what the files lack: ranks"
COMPUTED_CAPTION = (
    "Computed from data sheets by NCCL's cost model; nobody measured it. The Cluster page shows the machine."
)
_TITLES = {
    "found": "Found in the files",
    "assumed": "Assumed, as they do not say it",
    "missing": "Missing",
    "dropped": "Left out",
    "doubtful": "Doubtful",
}


def kept(names: Sequence[str]) -> str:
    """What is still in use after the page was changed."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"Still in use: {', '.join(names[:3])}{more}. Give others to replace them."


def not_uploaded(noun: str, name: str) -> str:
    """That a bundled part stands beside what was uploaded."""
    which = f"on {name}" if noun == "hardware" else f"of {name}"
    return f"The upload holds no {noun}. What is shown is {which}, which is not yours: choose in the sidebar."


def computed_words(preset: str) -> str:
    """What a ready-made machine is called among the hardware."""
    return f"computed: {labels_cluster.MACHINE_WORDS[preset]}"


def uploaded_words(name: str, world_size: int | None = None) -> str:
    """What an uploaded machine is called among the hardware."""
    name = " ".join(name.split())
    name = name if len(name) <= 60 else f"{name[:59]}…"
    return f"uploaded: {name}" + ("" if world_size is None else f", {counted(world_size, 'rank')}")


def summary(uploaded: Uploaded) -> str:
    """An upload in one line: ``kineto: 161 gradients, 44.6 MiB, backward 24.1 ms, from 8 ranks``."""
    words = []
    if uploaded.workload is not None:
        workload = uploaded.workload
        words += [
            counted(len(workload.gradients), "gradient"),
            format_size(workload.total_bytes),
            f"backward {format_ms(workload.backward_ns)}",
        ]
    if len(uploaded.ranks) > 1:
        words.append(f"from {len(uploaded.ranks)} ranks")
    words += _machines(uploaded.hardware)
    if uploaded.cluster is not None:
        words.append(f"the cluster {uploaded.cluster.name}")
    if uploaded.assignment is not None:
        words.append(f"an assignment of {counted(len(uploaded.assignment.bucket_indices), 'bucket')}")
    if uploaded.record is not None:
        words.append(counted(len(uploaded.record.candidates), "measured assignment"))
    return f"{', '.join(uploaded.formats)}: {', '.join(words) or 'no workload and no hardware'}"


def notes(uploaded: Uploaded) -> list[tuple[str, tuple[str, ...]]]:
    """Titles and sentences of what was found, assumed, missing and left out, as far as there are any."""
    groups = ((title, getattr(uploaded, name)) for name, title in _TITLES.items())
    return [(title, sentences) for title, sentences in groups if sentences]


def _machines(hardware: tuple[Hardware, ...]) -> list[str]:
    if not hardware:
        return []
    sizes = ", ".join(str(one.world_size) for one in hardware[:6])
    more = f" and {len(hardware) - 6} more" if len(hardware) > 6 else ""
    return [f"hardware of {sizes}{more} rank{'' if sizes == '1' else 's'}"]

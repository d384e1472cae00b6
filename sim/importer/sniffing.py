"""Which format a file has, told by what is in it."""

import os
import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from sim.errors import InputError
from sim.importer.links.columns import named_collective
from sim.importer.links.text_tables import has_table
from sim.importer.opening import open_bytes
from sim.importer.scanning import json_keys, utf8_chunks

FORMATS = ("kineto", "nccl-tests", "flight-recorder", "ddp-log", "chakra", "recording")
DOCUMENTS = ("workload", "hardware")
# Of a file whose first bytes do not tell what it is, the rest is not read; logs may begin with much else.
MOST_BYTES, MOST_JSON_BYTES, MOST_KEYS = 32 << 20, 8 << 20, 4096

_RANKS = re.compile(r"[0-9]{1,6}(x[0-9]{1,6})?")
_RANK_FILE = re.compile(r"rank-[0-9]+\.jsonl")
# Members of what DistributedDataParallel._get_ddp_logging_data() returns that nothing else has.
_DDP_KEYS = frozenset(
    (
        "bucket_sizes",
        "rebuilt_bucket_sizes",
        "avg_backward_comm_time",
        "avg_backward_compute_time",
        "avg_backward_compute_comm_overlap_time",
        "avg_forward_compute_time",
        "prev_iteration_grad_ready_order_indices",
        "rebuilt_per_bucket_param_indices",
        "initial_bucket_sizes",
        "bucket_cap_bytes",
        "has_rebuilt_buckets",
    )
)
_DDP_TEXT = re.compile(r"['\"](?:" + "|".join(sorted(_DDP_KEYS)) + r")['\"]\s*:")


def recognise(path: str | os.PathLike[str], documents: Sequence[str] = DOCUMENTS) -> str:
    """``kineto``, ``nccl-tests``, ``flight-recorder``, ``ddp-log``, ``chakra``, ``recording`` (its directory
    or one rank's file), or the kind of one of our own documents, of those that are legal: ``documents``.

    Told by the head of the file: a Kineto trace of any size within its first events.

    Raises:
        InputError: none of these, or a file that ``open_bytes`` refuses (a pickle, an archive).
    """
    source = Path(path)
    if source.is_dir():
        if any(_RANK_FILE.fullmatch(entry.name) for entry in source.iterdir()):
            return "recording"
        raise InputError(f"{source}: a directory without rank-<r>.jsonl; give files or a recording")
    with open_bytes(source) as stream:
        chunks = utf8_chunks(stream, MOST_BYTES)
        head = next(chunks, b"")
        if not head.strip():
            raise InputError(f"{source}: the file is empty; {_LEGAL}")
        is_json = head.lstrip()[:1] in (b"{", b"[")
        every = chain([head], chunks)
        found = _of_json(_first(every, MOST_JSON_BYTES), source, documents) if is_json else _of_text(every)
    if found is None and is_json:
        # Logs begin with brackets too: [1,0]<stdout>:
        with open_bytes(source) as stream:
            found = _of_text(utf8_chunks(stream, MOST_BYTES))
    if found is not None:
        return found
    if b"\0" in head:
        raise InputError(f"{source}: a binary file; {_LEGAL}")
    raise InputError(f"{source}: not recognised; {_LEGAL}")


_LEGAL = (
    "give a Kineto trace, nccl-tests' output or another table of sizes and times, a flight recorder's dump, "
    "DDP's logging data or a Chakra execution trace as JSON, a recording, or a workload or hardware file"
)


def _first(chunks: Iterator[bytes], most: int) -> Iterator[bytes]:
    """Chunks of ``most`` bytes together."""
    for chunk in chunks:
        yield chunk[:most]
        most -= len(chunk)
        if most <= 0:
            return


def _of_json(chunks: Iterator[bytes], source: Path, documents: Sequence[str]) -> str | None:
    """The format of a JSON document, as soon as its keys tell it."""
    seen: set[tuple[int, str]] = set()
    top: dict[str, str | None] = {}
    for depth, key, value in json_keys(chunks):
        if (depth, key) in seen and depth > 1:
            continue
        seen.add((depth, key))
        if len(seen) > MOST_KEYS:
            return None
        if depth == 1:
            top[key] = value
        if (found := _told_by(top, seen)) is None:
            continue
        if found not in (*FORMATS, *documents):
            legal = f"{', '.join(documents[:-1])} or {documents[-1]}"
            raise InputError(f"{source}: kind: {found!r} is not legal here; give a {legal}")
        return found
    below = [key for depth, key in seen if depth == 2]
    profile = below if all(_RANKS.fullmatch(key) for key in top) else list(top)
    if profile and all(named_collective(key) for key in profile):
        return "nccl-tests"  # nnscaler's profile: lists by collective, or by ranks and collective
    if "schema" in top and "nodes" in top:
        return "chakra"
    return "flight-recorder" if "entries" in top else None


def _told_by(top: dict[str, str | None], seen: set[tuple[int, str]]) -> str | None:
    kind = top.get("kind")
    if "kind" in top and "schema_version" in top:
        return kind or "none"
    if kind == "import" and "format" in top:
        return kind  # the summary that an import leaves
    is_event = {(2, "ph"), (2, "name")} <= seen or {(2, "ph"), (2, "ts")} <= seen
    if "traceEvents" in top or {"schemaVersion", "deviceProperties"} <= set(top) or (not top and is_event):
        return "kineto"
    nodes = {(3, "ctrl_deps"), (3, "rf_id"), (3, "op_schema"), (3, "fw_parent")} & seen
    if "nodes" in top and ("schema" in top or nodes):
        return "chakra"
    keys = set(top)
    if "average_bus_bandwidth" in top or ("args" in top and {"nccl_version", "config", "results"} & keys):
        return "nccl-tests"
    if "entries" in top and {"pg_config", "pg_status", "nccl_version", "comm_lib_version", "version"} & set(
        top
    ):
        return "flight-recorder"
    if any(key in _DDP_KEYS for _, key in seen):
        return "ddp-log"
    return None


def _of_text(chunks: Iterator[bytes]) -> str | None:
    """The format of a text: nccl-tests' and other tables, or DDP's logging data in a log."""
    kept = ""
    for chunk in islice(chunks, 64):
        text = kept + chunk.decode("utf-8", "replace")
        if has_table(text):
            return "nccl-tests"
        if _DDP_TEXT.search(text):
            return "ddp-log"
        kept = text[text.rfind("\n") + 1 :][-4096:]
    return None

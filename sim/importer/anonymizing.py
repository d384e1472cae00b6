"""An import without names, paths and hosts, so that it may be given away."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from sim.importer.imported import Imported, RankRow, each_sentence
from sim.importer.readers import FORMATS, READABLE
from sim.nouns.assignment import Assignment, MadeFor
from sim.nouns.ddp_switches import SWITCHES
from sim.nouns.hardware import Hardware
from sim.nouns.measurement import Measurement
from sim.nouns.workload import DTYPE_BYTES, Gradient, Workload

# A version number may stand under these and their ``_version``; elsewhere it may be an address.
_SOFTWARE = "comm_lib cuda cuda_driver cuda_runtime driver format gloo hip nccl python rccl schema tool torch"

# Keys of details, provenance, environments and extensions that name nobody.
_KEYS = """
accumulation_steps after_backward_ns all_gather all_reduce all_to_all anchored assignment assumed auto
autocast backend backward_ns backward_prefetch backward_starts backwards band barrier behind_others_ns
beside_the_curves broadcast bucket_bytes bucket_cap_bytes bucket_cap_mb bucket_cap_mb_list bucket_indices
buckets buffers bytes clock collective collectives comm_slowdown communication compute_slowdown copies
copy_in copy_in_bytes_per_s copy_in_ns copy_out copy_out_bytes_per_s copy_out_ns count curve
curves_in_the_step curves_without_all_reduce ddp ddp_kwargs details device device_name device_type devices
doubtful dropped dropped_warmup_steps dtype end_ns environment estimated every extensions factor
first_bucket_mb flop_bound_share flops flops_per_byte forward_ns forward_prefetch found gather
gloo_num_threads gradients greatest high hook_cost_ns hooked_backward_ns in_place_over_out_of_place in_step
in_step_durations_ns index init_sync iteration iterations kind last_arriver launch_cost_ns launch_ns layouts
least least_bytes level low made_from matched_collectives max max_ns mean mean_ns measured measured_step_ns
measured_sync_end_ns median median_ns min min_ns missing missing_ranks mode most_bytes no_sync_backward_ns
num_bytes num_elements num_nodes number of operators optimizer optimizer_ns optimizer_seen
optimizer_step_only_ns overlap_ratio p10 p10_ns p25 p50 p75 p90 p90_ns p95 p95_ns p99 p99_ns param_dtype
parameters place plain_backward_ns points policy provenance quantile ranges rank rank_is ranks ratio
ready_includes ready_ns ready_order rebuilt_buckets recorded recorded_ranks recv reduce reduce_dtype
reduce_scatter repeats requires reshard_after_forward roofline rows scatter second_step_ns send settings
shape source sparse spread statistic std std_ns step_ns steps sync_end_ns systems tensors threads times
torch_compile torn_ranks traced_ranks transfer_ns value values_read_as_1 wait waited_for_last_ns warmup work
world_size
"""

# Words of sentences that name nobody.
# In lower case, without the s of a plural. What hyphens, dots and underscores join is looked up in parts.
_WORDS = """
a accumulate accumulategrad accumulation adam adamw add after against agg agree ahead algorithm align alike
all allgather allreduce alltoall alone also always among an anchor and another are around arrival arrive
arriver as assignment assumed at auto autograd average b back backend backward bandwidth barrier base
batches be because before began begin begins behind belong below benchmark beside between beyond bf both
bound broadcast bucket bucketsim buffer built bus but by byte call callable came can cannot cap carry
categories category changed channel clock coalesced collective column comes comm command communication
compiled completed compress compressed computation compute computed constructor contain contradict copies
copy cost could count counted cpu cuda curve cut ddp default details device did differ different dims
disagree distance distributed distributeddataparallel divided do does done drawn drift dtype dump dur
duration each eager edge either element else empty enable end ended engine entries entry estimate estimated
evenly event every exact execution explicit exported factor failure fast faster few figure file fills find
finer finest fire firing first fits flight float follow followed for format former forward four fp from fsdp
fsdp2 full fully function fused gather gb gib give given gloo goes gpu grad gradient graph group had half
hardware has have held here hold hook host how idle if import in index indices info init input inside int
interference into is it iterations its job join json kb keeps kept kernel key kib kind kineto know known
last lasted late later launch launched launches lay layout least leave left legal length less level lie
light line link list live load log logged logger logging long longer longest loss lower lr made margin max
mb mean measure measured measurement median merged metric mib micro min minutes miss misses missing model
modelled module more most ms msccl mscclpp msg name nccl nearest neither nelems never no node noise none
noop nor not nothing nowhere nranks ns number numbered of off offset often on once one only operator
optimizer or order ordering other out output outside over overlap overlaps own pair paired param parameter
part pattern pause per percentile perf place policy powersgd prediction process prof profile profiler
profileractivity profilerstep proportion put quartile ran rank ratio rccl reach reached read ready rebuilt
record recorded recorder recording recv reduce reduced reducescatter reduction repeat repeated replicate
rest results reverse rid right root row run runtime s same sample sampled say scaled scatter schedule
scheduled schema seconds seen sees send sent sentence set settings several sgd shape shard share shift short
shortest shown shows side simulate since single size skip slope slow slowdown slowed slower smallest so
something split stands start started starting static step storage stream stretched such sum summary sure
sync synchronisation synchronised system table take taken tell tensor test than that the their them
themselves then there these they this those thread three tie time timing to together told too took torch
trace trained training transfer travels true truth tune two type under unit unknown unless unsure until
unused up upon upper us use used value vary version view void wait waited waiting warm warmup warn warning
was well were what when where which while who whole whose wire with within without word work workload world
writes written wrong x zero
"""

VERSION_KEYS = frozenset(_SOFTWARE.split()) | {f"{name}_version" for name in _SOFTWARE.split()}
KEYS = frozenset(_KEYS.split()) | set(SWITCHES) | VERSION_KEYS | set(FORMATS)
WORDS = frozenset(_WORDS.split())

GONE = "..."
Noun = TypeVar("Noun", Workload, Hardware, Measurement, Assignment)
BACKENDS = ("nccl", "rccl", "gloo", "mpi", "ucc", "xccl", "hccl")
_VERSION = re.compile(r"v?\d{1,5}(\.\d{1,5}){0,3}([+-](cu|rocm|cpu)\.?[\d.]{0,12})?")
_ADDRESS = re.compile(r"\d+([.-]\d+){3,}")
_DEVICE = re.compile(r"(cuda|cpu|xpu|hip|mps|hpu|npu|meta)(:\d{1,4})?")
_ACCELERATORS = """
NVIDIA AMD Intel Tesla GeForce RTX GTX RX Quadro TITAN Instinct Radeon Gaudi Ada Generation Blackwell Hopper
PRO Pro Server Max-Q Workstation Edition Laptop GPU Graphics Ti D XT XTX Super SUPER PCIe PCIE NVL OAM
"""
_DEVICE_WORDS = frozenset(_ACCELERATORS.split())
_DEVICE_MODEL = re.compile(
    r"((A|B|H|K|L|P|T|V|GB|GH|MI|HL|SXM|HBM)-?\d{1,4}[A-Za-z]{0,3}|\d{3,4}|\d{1,3}GB)"
    r"(-(SXM\d?|PCIE|\d{1,3}GB|PG\d{3}|\d{3}|LS|N))*"
)
_QUOTED = re.compile(r"(?<!\w)(['\"])(.*?)\1(?!\w)")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?(%|x)?")
_RULE = re.compile(r"A\d(\.\d{1,2})?")
_EDGES = "()[]{},;:.!?"


def anonymize(imported: Imported) -> Imported:
    """``imported`` without what tells whose it is.

    Names of parameters, modules, workloads, machines and files give way to numbered ones ("gradient 12",
    "host 1"). Provenance, details, environments and extensions keep the keys of ``KEYS``, and
    under them numbers and booleans, texts of listed words, dtypes, versions of software and models of
    accelerators: sizes, shapes, times, versions and the device model are what a reader needs. In sentences a
    quotation, and what is neither a listed word nor a number, becomes "...".
    """
    hosts = _numbered("host", [row.host for row in imported.ranks])
    return replace(
        imported,
        format=imported.format if imported.format in READABLE else "import",
        name="import",
        workload=None if imported.workload is None else _workload(imported.workload),
        hardware=tuple(
            _stripped(hardware, name="hardware" if len(imported.hardware) == 1 else f"hardware {number}")
            for number, hardware in enumerate(imported.hardware)
        ),
        measurements=tuple(
            _measurement(measurement, f"measurement {number}")
            for number, measurement in enumerate(imported.measurements)
        ),
        ranks=tuple(_rank(row, hosts) for row in imported.ranks),
        **each_sentence(imported, _sentence),
        details=_object(imported.details),
    )


def _numbered(what: str, names: Iterable[str | None]) -> dict[str, str]:
    """A new name for each: ``what`` and a number, equal for equal names only."""
    distinct = dict.fromkeys(name for name in names if name is not None)
    return {name: f"{what} {number}" for number, name in enumerate(distinct)}


def _rank(row: RankRow, hosts: Mapping[str, str]) -> RankRow:
    return replace(row, host=None if row.host is None else hosts[row.host])


def _workload(workload: Workload) -> Workload:
    devices = _numbered("device", [gradient.device for gradient in workload.gradients])

    def plain(gradient: Gradient) -> Gradient:
        device = gradient.device
        if device is not None and not _DEVICE.fullmatch(device):
            device = devices[device]
        return replace(gradient, name=f"gradient {gradient.index}", device=device)

    return _stripped(workload, name="workload", gradients=tuple(map(plain, workload.gradients)))


def _measurement(measurement: Measurement, name: str) -> Measurement:
    asked = measurement.asked
    if asked is not None:
        made_for = None if asked.made_for is None else _made_for(asked.made_for)
        asked = _stripped(asked, made_for=made_for)
    backend = measurement.backend if measurement.backend in BACKENDS else "other"
    return _stripped(measurement, name=name, backend=backend, asked=asked)


def _made_for(made_for: MadeFor) -> MadeFor:
    names = tuple(f"gradient {number}" for number in range(len(made_for.names)))
    dtypes = tuple(dtype if dtype in DTYPE_BYTES else GONE for dtype in made_for.dtypes)
    return replace(made_for, workload="workload", names=names, dtypes=dtypes)


def _stripped(noun: Noun, **changes: Any) -> Noun:
    """``noun`` with ``changes``; its dicts, which may hold anything, keep only what names nobody."""
    held = {one.name: getattr(noun, one.name) for one in fields(noun)}
    kept: dict[str, Any] = {name: _object(value) for name, value in held.items() if isinstance(value, dict)}
    return replace(noun, **kept, **changes)


def _object(value: Mapping[str, Any]) -> dict[str, Any]:
    """The members whose keys are listed or are numbers (sizes, ranks), as far as their values name nobody."""
    kept = {}
    for key, item in value.items():
        if isinstance(key, str) and (key in KEYS or (key.isascii() and key.isdigit())):
            kept[key] = _value(item, key)
    return {key: item for key, item in kept.items() if item is not None or value[key] is None}


def _value(value: Any, key: str) -> Any:
    """Numbers and booleans as they are; texts, lists and objects as far as they name nobody, else None."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return value if _names_nothing(value, key) else None
    if isinstance(value, Mapping):
        return _object(value)
    if isinstance(value, (list, tuple)):
        items = [_value(item, key) for item in value]
        return [item for item, own in zip(items, value, strict=True) if item is not None or own is None]
    return None


def _names_nothing(text: str, key: str) -> bool:
    """Whether ``text`` is a device, its model, a version under a version's key, or listed words only."""
    if key in VERSION_KEYS and _VERSION.fullmatch(text) and not _ADDRESS.fullmatch(text):
        return True
    return _DEVICE.fullmatch(text) is not None or _is_device_model(text) or _sentence(text) == text


def _is_device_model(text: str) -> bool:
    words = text.split(" ")
    named = any(word in _DEVICE_WORDS for word in words)
    return named and all(word in _DEVICE_WORDS or _DEVICE_MODEL.fullmatch(word) for word in words)


def _sentence(text: str) -> str:
    """``text`` with each quotation, and each word that is not listed, replaced; runs of them by one "..."."""
    words: list[str] = []
    in_device = False  # "A10" is kept behind a maker's name ("NVIDIA A10"); alone it may be anything
    for chunk in _QUOTED.sub(GONE, text).split():
        core = chunk.strip(_EDGES + "'\"")
        in_device = core in _DEVICE_WORDS or (in_device and _DEVICE_MODEL.fullmatch(core) is not None)
        if chunk != GONE and (not core or in_device or _is_plain(core)):
            words.append(chunk)
        elif words[-1:] != [GONE]:
            words.append(GONE)
    return " ".join(words)


def _is_plain(core: str) -> bool:
    """Whether ``core`` is a number, dtype, backend, device, rule ("A3.5"), or listed words, also joined."""
    if _ADDRESS.fullmatch(core):
        return False
    if core in DTYPE_BYTES or core in BACKENDS:
        return True
    if any(pattern.fullmatch(core) for pattern in (_NUMBER, _RULE, _DEVICE)):
        return True
    parts = [part for part in re.split(r"[-._'=()]", core) if part]
    return all(_is_listed(part.lower()) or (part.isdigit() and len(part) < 4) for part in parts)


def _is_listed(word: str) -> bool:
    return word in WORDS or word.removesuffix("s") in WORDS

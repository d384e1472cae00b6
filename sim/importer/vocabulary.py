"""The keys and the words that may be written out whatever import they stand in; all others are left out.

Those of one format alone stand with it, in ``TraceFormat.keys`` and ``TraceFormat.words``.
"""

from sim.importer.readers import FORMATS
from sim.nouns.ddp_switches import SWITCHES

# A version number may stand under these and their ``_version``; elsewhere it may be an address.
_SOFTWARE = "comm_lib cuda cuda_driver cuda_runtime driver format gloo hip nccl python rccl schema tool torch"

_KEYS = """
after_backward_ns all_gather all_reduce all_to_all anchored assignment assumed auto autocast backend
backward_ns backwards band beside_the_curves broadcast bucket_bytes bucket_cap_bytes bucket_cap_mb
bucket_cap_mb_list bucket_indices buckets buffers bytes clock collective collectives comm_slowdown
communication compute_slowdown copies copy_in copy_in_bytes_per_s copy_in_ns copy_out copy_out_bytes_per_s
copy_out_ns count curve curves_in_the_step ddp ddp_kwargs details device device_name device_type devices
doubtful dropped dtype end_ns environment estimated every extensions factor first_bucket_mb flop_bound_share
flops flops_per_byte forward_ns found gather gloo_num_threads gradients greatest high hook_cost_ns
hooked_backward_ns in_step in_step_durations_ns index init_sync iteration iterations kind last_arriver
launch_cost_ns launch_ns layouts least least_bytes level low made_from max max_ns mean mean_ns measured
measured_step_ns measured_sync_end_ns median median_ns min min_ns missing mode most_bytes num_bytes
num_elements number of operators optimizer optimizer_ns optimizer_step_only_ns overlap_ratio p10 p10_ns p50
p90 p90_ns p95 p95_ns p99 p99_ns parameters place plain_backward_ns points policy provenance quantile ranges
rank ranks ratio ready_includes ready_ns ready_order rebuilt_buckets recorded reduce reduce_scatter repeats
requires roofline rows scatter second_step_ns settings shape source sparse spread statistic std std_ns
step_ns steps sync_end_ns systems tensors threads times torch_compile transfer_ns value values_read_as_1
wait warmup work world_size
"""

# In lower case, without the s of a plural. What hyphens, dots and underscores join is looked up in parts.
_WORDS = """
a accumulate accumulation adam adamw add after against agree ahead align alike all allgather allreduce
alltoall alone also always among an anchor and another are around arrival arrive arriver as assignment
assumed at auto autograd average b back backend backward bandwidth barrier base batches be because before
began begin begins behind belong below benchmark beside between beyond bf both bound broadcast bucket
bucketsim buffer built bus but by byte call callable came can cannot cap carry categories category changed
channel clock coalesced collective column comes comm command communication compiled completed compress
compressed computation compute computed constructor contain contradict copies copy cost count counted cpu
cuda curve cut ddp default details device did differ different dims disagree distance distributed
distributeddataparallel divided do does done drawn drift dtype dump dur duration each eager edge either
element else empty enable end ended engine entries entry estimate estimated evenly event every exact
execution explicit exported factor failure fast faster few figure file fills find finer finest fire firing
first fits flight float follow followed for format former forward four fp from fsdp full function fused
gather gb gib give given gloo goes gpu grad gradient graph group had half hardware has have held here hold
hook host how idle if import in index indices info init input inside int interference into is it iterations
its job join json kb keeps kept kernel key kib kind know known last lasted late later launch launched
launches lay layout least leave left legal length less level lie light line link list live load log logged
logger logging long longer longest loss lower lr made margin max mb mean measure measured measurement median
merged metric mib micro min minutes miss misses missing model modelled more most ms msg name nearest neither
never no node noise none noop nor not nothing nowhere ns number numbered of off offset often on once one only
operator optimizer or order ordering other out output outside over overlap overlaps own pair paired param
parameter part pattern pause per percentile place policy powersgd prediction process prof profile profiler
proportion quartile ran rank ratio rccl reach reached read ready rebuilt record recorded recorder recording
recv reduce reduced reducescatter repeat repeated rest results reverse rid right row run runtime s same
sample sampled say scaled scatter schedule scheduled schema seconds seen sees send sent sentence set settings
several sgd shape shift short shortest shown shows side since single size skip slope slow slowdown slowed
slower smallest so something split stands start started starting static step storage stream stretched such
sum summary sure sync synchronisation synchronised system table take taken tell tensor test than that the
their them themselves then there these they this those thread three tie time timing to together told too took
torch trace training transfer travels true truth tune two type under unknown unless unsure until unused up
upon upper us use used value vary version view void wait waited waiting warm warmup warn warning was well
were what when where which while who whole whose wire with within without word work workload world writes
written wrong x zero
"""

VERSION_KEYS = frozenset(_SOFTWARE.split()) | {f"{name}_version" for name in _SOFTWARE.split()}
KEYS = (
    frozenset(_KEYS.split())
    | set(SWITCHES)
    | VERSION_KEYS
    | set(FORMATS)
    | {key for one in FORMATS.values() for key in one.keys.split()}
)
WORDS = frozenset(_WORDS.split()) | {word for one in FORMATS.values() for word in one.words.split()}

"""DDP's communication hooks, one row each: what a hook sends and computes in place of an all-reduce (A3.17).

From a row in ``HOOKS`` follow the simulated step, its memory, the lines to paste, the refusals, the words of
the dashboard, what an import takes from a recording, and how real ranks register the hook. A new hook needs a
row here, its rule in ``sim/systems/RULES.md``, and in the tests what it sends (``SENT_AS`` of
``tests/systems/test_ddp_switches.py``). The hook must be torch's own, since the lines to paste import it.
Ranks that are measured import this table, so it imports no third-party package.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sim.nouns.ddp_switches import OLDEST, Version
from sim.nouns.memory import Holding
from sim.nouns.workload import DTYPE_BYTES, Gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One all-reduce of a hook: what travels, and what is computed around it.

    ``before_bytes`` is memory traffic before the launch, bytes read plus bytes written: a copy of N bytes
    counts 2 N. ``after_bytes`` is the traffic from the end of the all-reduce until its result can be used.
    ``before_products`` and ``after_products`` are the bytes among them that a product of a matrix with
    several vectors reads. A processor may read these more slowly than it copies.
    """

    num_bytes: int
    elements: int
    dtype: str
    before_bytes: int = 0
    after_bytes: int = 0
    before_products: int = 0
    after_products: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SentBucket:
    """What a hook is called with: the gradients of a bucket, and its buffer.

    ``num_bytes`` is the size of the buffer on the wire; a sparse gradient sends indices and values (A3.18).
    ``dtype`` is the buffer's.
    """

    gradients: Sequence[Gradient]
    num_bytes: int
    dtype: str

    @property
    def elements(self) -> int:
        """Elements of all gradients in the bucket."""
        return sum(one.num_bytes // DTYPE_BYTES[one.dtype] for one in self.gradients)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A bucket that a hook has reduced: the bytes of its gradients and of each all-reduce, and when.

    ``start_ns`` is where the hook begins, ``end_ns`` where its result can be used.
    """

    bucket_bytes: int
    message_bytes: tuple[int, ...]
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number or flag of a hook's state: its default there, the least legal integer, the page's words."""

    default: bool | int | float
    least: int = 1
    help: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommHook:
    """A hook as a job registers it: its row, and the numbers of its state, defaults included."""

    kind: "HookKind"
    numbers: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Torch's name without ``_hook``."""
        return self.kind.name

    @property
    def warm_up(self) -> int:
        """The last iteration in which it all-reduces as usual."""
        return self.numbers[self.kind.warm_up] if self.kind.warm_up else 0


Send = Callable[[CommHook, SentBucket], list[Message]]
Hold = Callable[[CommHook, Sent], list[Holding]]


def _holds_nothing(hook: CommHook, sent: Sent) -> list[Holding]:
    return []


def _no_problem(numbers: Mapping[str, Any]) -> str:
    return ""


def _no_obstacle(bucket_count: int) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookKind:
    """One hook of torch's.

    Args:
        name: torch's name without ``_hook``.
        module: where it is, in ``torch.distributed.algorithms.ddp_comm_hooks``.
        since: the first torch that has it, ``OLDEST`` or newer.
        words: the page's words for what it sends.
        sends: the all-reduces of one bucket, each launched when the one before is done.
        holds: what it needs in memory beside the buckets.
        dtype: what it sends whatever the bucket's dtype; None: the bucket's own.
        compresses: whether it is there to send fewer bytes.
        state: the class of its state, in ``module``; empty: it has none.
        numbers: by name, what its state is made with.
        problem: what is wrong with numbers that are legal one by one; empty if nothing is.
        warm_up: the number that is the last iteration in which it all-reduces as usual; empty: there is none.
        counter: the attribute of its state that counts iterations up to ``warm_up``.
        note: a sentence for the report of a step, if the hardware has no ``low_rank_bytes_per_s``.
        no_sparse: why sparse gradients are refused; empty if they are not.
        recorded: whether its name in DDP's log says all that the prediction of a recorded job needs.
        not_on_cpu: why real ranks on the CPU cannot run it with this many buckets; empty if they can.
        tried: policy and numbers that real ranks try; None: it is not tried.
    """

    name: str
    module: str
    since: Version = OLDEST
    words: str = ""
    sends: Send
    holds: Hold = _holds_nothing
    dtype: str | None = None
    compresses: bool = False
    state: str = ""
    numbers: Mapping[str, Number] = field(default_factory=dict)
    problem: Callable[[Mapping[str, Any]], str] = _no_problem
    warm_up: str = ""
    counter: str = ""
    note: str = ""
    no_sparse: str = ""
    recorded: bool = True
    not_on_cpu: Callable[[int], str] = _no_obstacle
    tried: tuple[str, Mapping[str, Any]] | None = ("ddp", {})


def send_all(hook: CommHook, bucket: SentBucket) -> list[Message]:
    """The bucket as it is, divided in place before."""
    size = bucket.num_bytes
    return [
        Message(num_bytes=size, elements=bucket.elements, dtype=bucket.dtype, before_bytes=2 * size),
    ]


def _send_none(hook: CommHook, bucket: SentBucket) -> list[Message]:
    return []


def _send_narrow(hook: CommHook, bucket: SentBucket) -> list[Message]:
    """The bucket in the hook's own dtype: cast and divided in place before, cast back after."""
    dtype = hook.kind.dtype
    assert dtype is not None
    narrow = bucket.num_bytes * DTYPE_BYTES[dtype] // DTYPE_BYTES[bucket.dtype]
    return [
        Message(
            num_bytes=narrow,
            elements=bucket.elements,
            dtype=dtype,
            before_bytes=bucket.num_bytes + 3 * narrow,
            after_bytes=narrow + bucket.num_bytes,
        )
    ]


def _hold_narrow(hook: CommHook, sent: Sent) -> list[Holding]:
    return [
        Holding(
            what="narrow copies",
            num_bytes=sum(sent.message_bytes),
            start_ns=sent.start_ns,
            end_ns=sent.end_ns,
        )
    ]


def _send_power_sgd(hook: CommHook, bucket: SentBucket) -> list[Message]:
    """Three all-reduces: what is not compressed (perhaps nothing), all Ps, all Qs.

    The memory traffic is that of error feedback and of three matrix products: one before the first message,
    one before the last and one after it. With rank 1 each is a product of a matrix with one vector, which
    takes no longer than its memory traffic.
    """
    numbers = hook.numbers
    left = rows = columns = matrices = multiplied = 0
    for gradient in bucket.gradients:
        n = gradient.shape[0] if gradient.shape else 1
        m = math.prod(gradient.shape[1:])
        rank = min(n, m, numbers["matrix_approximation_rank"])
        if (n + m) * rank * numbers["min_compression_rate"] < n * m:
            rows, columns, matrices = rows + n * rank, columns + m * rank, matrices + n * m
            multiplied += n * m * (rank > 1)
        else:
            left += n * m
    width, dtype = DTYPE_BYTES[bucket.dtype], bucket.dtype
    remembered = (left + matrices) * numbers["use_error_feedback"]
    return [
        Message(
            num_bytes=width * left,
            elements=left,
            dtype=dtype,
            before_bytes=width * (5 * remembered + 2 * left + matrices + rows),
            after_bytes=width * 4 * left,
            before_products=width * multiplied,
        ),
        Message(
            num_bytes=width * rows,
            elements=rows,
            dtype=dtype,
            after_bytes=width * (matrices + 2 * rows + columns),
            after_products=width * multiplied,
        ),
        Message(
            num_bytes=width * columns,
            elements=columns,
            dtype=dtype,
            after_bytes=width * (2 * columns + rows + matrices + 3 * remembered),
            after_products=width * multiplied,
        ),
    ]


def _hold_power_sgd(hook: CommHook, sent: Sent) -> list[Holding]:
    """Ps, Qs and what is not compressed, and for error feedback the error, the gradients as they were, and
    the next error beside the last one. ``warm_start`` keeps Ps and Qs. Before it compresses: nothing.
    """
    if len(sent.message_bytes) == 1:
        return []
    start_ns, end_ns, whole = sent.start_ns, sent.end_ns, sent.bucket_bytes
    left, *factors = sent.message_bytes
    keeps = hook.numbers["warm_start"]
    held = [Holding(what="PowerSGD: Ps and Qs", num_bytes=sum(factors))] if keeps else []
    under_way = left if keeps else left + sum(factors)
    if hook.numbers["use_error_feedback"]:
        held.append(Holding(what="PowerSGD: error", num_bytes=whole))
        under_way += whole
        next_error = under_way + whole
        held.append(
            Holding(what="PowerSGD: and the next error", num_bytes=next_error, start_ns=end_ns, end_ns=end_ns)
        )
    what = "PowerSGD: what is sent, gradients as they were"
    return [*held, Holding(what=what, num_bytes=under_way, start_ns=start_ns, end_ns=end_ns)]


def _power_sgd_problem(numbers: Mapping[str, Any]) -> str:
    start = numbers["start_powerSGD_iter"]
    if start > 1 or not (numbers["use_error_feedback"] or numbers["warm_start"]):
        return ""
    return (
        f"comm_hook.start_powerSGD_iter={start} is not legal; torch expects more than 1 if "
        f"use_error_feedback or warm_start is enabled"
    )


def _needs_nccl(bucket_count: int) -> str:
    return "torch refuses it without NCCL"


def _needs_one_bucket(bucket_count: int) -> str:
    if bucket_count == 1:
        return ""
    return (
        f"with {bucket_count} buckets over gloo it is a race in torch, whose later all-reduces are launched "
        f"from gloo's threads, in an order of each rank's own; give it one bucket (single)"
    )


HOOKS: Mapping[str, HookKind] = {
    one.name: one
    for one in (
        HookKind(name="allreduce", module="default_hooks", sends=send_all),
        HookKind(
            name="fp16_compress",
            module="default_hooks",
            words="16-bit gradients",
            sends=_send_narrow,
            holds=_hold_narrow,
            dtype="float16",
            compresses=True,
        ),
        HookKind(
            name="bf16_compress",
            module="default_hooks",
            words="16-bit gradients",
            sends=_send_narrow,
            holds=_hold_narrow,
            dtype="bfloat16",
            compresses=True,
            not_on_cpu=_needs_nccl,
            tried=None,
        ),
        HookKind(
            name="powerSGD",
            module="powerSGD_hook",
            words="PowerSGD's low-rank factors",
            sends=_send_power_sgd,
            holds=_hold_power_sgd,
            compresses=True,
            state="PowerSGDState",
            numbers={
                "matrix_approximation_rank": Number(
                    default=1, help="PowerSGD: the rank of the factors that are sent."
                ),
                "start_powerSGD_iter": Number(
                    default=1000, least=0, help="PowerSGD: all-reduces as usual until this iteration."
                ),
                "min_compression_rate": Number(
                    default=2.0,
                    help="PowerSGD: a tensor is compressed only if that shrinks it by this factor.",
                ),
                "use_error_feedback": Number(
                    default=True,
                    help="PowerSGD: what compression left out is added to the next step's gradients.",
                ),
                "warm_start": Number(
                    default=True,
                    help="PowerSGD: the factors of the last step are where the next ones start.",
                ),
            },
            problem=_power_sgd_problem,
            warm_up="start_powerSGD_iter",
            counter="iter",
            note="PowerSGD's matrix products are not counted, only its memory traffic: the hardware has no "
            "low_rank_bytes_per_s",
            no_sparse="PowerSGD does not reduce sparse gradients",
            recorded=False,
            not_on_cpu=_needs_one_bucket,
            tried=("single", {"matrix_approximation_rank": 4, "start_powerSGD_iter": 2}),
        ),
        HookKind(
            name="noop", module="debugging_hooks", words="nothing (noop)", sends=_send_none, recorded=False
        ),
    )
}

"""A trace in columns is what ``json`` reads of it, however it is cut into pieces."""

import json
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings

from sim.errors import InputError
from sim.importer.kineto import events
from sim.importer.kineto.events import collective_of, kind_of, read_events
from tests.effort import tries
from tests.importer.built_traces import Dialect, Job, build
from tests.importer.test_kineto_built import built

JOB = Job(shapes=((4,),), buckets=(1,), gradient_ns=(9_000,), transfer_ns=(3_000,), forward_ns=((7_000,),))


def read(content: bytes, chunk: int = 1 << 20) -> events.TraceEvents:
    pieces = mock.patch.object(events, "_CHUNK_BYTES", chunk)
    with pieces, tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(content)
        file.flush()
        return read_events(file.name)


def ns(text: str) -> int:
    whole, _, rest = text.partition(".")
    return int(whole + rest.ljust(3, "0"))


@settings(max_examples=tries(60), deadline=None)
@given(built())
def test_columns_are_what_the_file_says(case: tuple[Job, Dialect]) -> None:
    """In pieces of 200 bytes or of the whole file; indented, with NaN and line ends in it, or not."""
    text = build(*case)[0][0]
    document = json.loads(text, parse_float=str, parse_int=str)
    given = document if isinstance(document, list) else document["traceEvents"]
    on_device = [one for one in given if one["cat"].lower() in ("kernel", "gpu_memcpy")]
    expected = sorted((ns(one["ts"]), ns(one["ts"]) + ns(one["dur"]), one["name"]) for one in on_device)
    odd = text.replace('"args": {', '"x": [{"a": NaN}, {"b": [-Infinity, {}]}], "y": "},\n{", "args": {\n')
    for content in (text, odd, text.replace("},", "}\n  ,\t")):
        for chunk in (200, 1 << 20):
            trace = read(content.encode(), chunk)
            found = zip(*(trace.gpu[key].tolist() for key in ("start", "end", "name")), strict=True)
            assert sorted((start, end, trace.names[name]) for start, end, name in found) == expected


def test_every_cut_of_a_trace_is_an_error() -> None:
    content = build(JOB, Dialect())[0][0].encode()
    for end in range(len(content)):
        with pytest.raises(InputError, match="not JSON"):
            read(content[:end])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "truncated"),
        (b" \n", "truncated"),
        (b"7", "Expected `object`"),
        (b'{"traceEvents": {}}', "traceEvents must be a list"),
        (b'{"traceEvents": []}', "no events"),
        (b'{"traceEvents": [1,]}', "not JSON"),
        (b'{"traceEvents": [{}, 1]}', r"traceEvents from number 0 on: Expected `object`.* `\$\[1\]`"),
        (b"[{}] []", "not JSON"),
        (b"[" * 200_000, "nested too deeply"),
        (b'[{"a":' * 200_000, "nested too deeply"),
        (b'[{"name": "\xff"}]', "not JSON"),
        (b'{"host_name": "\xff", "traceEvents": [{}]}', "not JSON"),
        (b'[{"name": "\\ud800"}]', "not JSON"),
        (b'[{"name": 1e999}]', "Number out of range"),
        ("[{}]".encode("utf-16"), "not JSON"),
    ],
)
def test_what_is_no_trace_is_an_error_of_one_line(content: bytes, why: str) -> None:
    with pytest.raises(InputError, match=why) as error:
        read(content)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("dur", ["1.500", "2"])
def test_a_last_event_without_a_time_is_an_error(dur: str) -> None:
    event = f'{{"ph": "X", "cat": "kernel", "name": "k", "ts": 1780000000000000{dur[1:]}, "dur": {dur}}}'
    with pytest.raises(InputError, match="ts: None is not legal"):
        read(f'[{event}, {{"ph": "X", "cat": "kernel", "name": "k", "dur": {dur}}}]'.encode())


def test_a_trace_takes_the_memory_of_its_file(tmp_path: Path) -> None:
    """Twice the file would hold it as bytes and as text; objects of all events ten times."""
    import tracemalloc

    event = b'{"ph": "X", "cat": "python_function", "name": "f", "ts": 1.5, "dur": 2, "args": {"a": 1}},\n'
    path = tmp_path / "large.json"
    path.write_bytes(b'{"traceEvents": [' + event * 300_000 + b'{"ph": "X"}]}')
    tracemalloc.start()
    read_events(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.7 * path.stat().st_size


# What kernels do, by names of several versions of CUDA, NCCL, ROCm and RCCL.

COLLECTIVES = {
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)": "all_reduce",
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)": "all_reduce",
    "ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_f32(ncclSymkDevWorkArgs4K)": "all_reduce",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "reduce_scatter",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_gather",
    "ncclDevKernel_Broadcast_RING_LL(ncclDevComm*, unsigned long, ncclWork*)": "broadcast",
    "ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)": "reduce",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": "send_recv",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem) [clone .kd]": "all_reduce",
    "void allreduce7<float>(float*, mscclpp::DeviceHandle<mscclpp::MemoryChannel>*, int)": "all_reduce",
    "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>) [clone .kd]": None,
    "mscclKernel_Sum_float_LL_false(ncclDevComm*, mscclAlgo*, mscclWork*)": None,
}
WORDS = {  # c10d's own
    **{"allreduce_coalesced": "all_reduce", "_reduce_scatter_base": "reduce_scatter", "send": "send"},
    **{"alltoall_base_": "all_to_all", "allgather_into_tensor_coalesced": "all_gather", "monitored": None},
    **{"barrier": "barrier", "recv_any_source": "recv"},
}
KINDS = {
    "communication": tuple(COLLECTIVES),
    "memory": ("Memcpy DtoD (Device -> Device)", "Memcpy HtoD (Pinned -> Device)", "Memset (Device)"),
    "computation": (
        "volta_sgemm_128x64_nt",
        "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nt",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(at::native::ReduceOp<float>)",
        "Cijk_Ailk_Bljk_SB_MT64x64x16_SE_K1",
        "void multi_tensor_apply_kernel<TensorListMetadata<4> >(int)",
    ),
}


def test_a_kernel_is_told_by_its_name_or_its_collective_by_the_operators() -> None:
    for kind, names in KINDS.items():
        assert {kind_of("kernel", name) for name in names} == {("gpu", kind)}
    told = COLLECTIVES | WORDS
    assert {name: collective_of(name) for name in told} == told
    assert collective_of(None, 7, "ncclDevKernel_Generic_4(ncclWork*)", "_allgather_base") == "all_gather"

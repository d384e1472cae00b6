"""What kernels do, by names of several versions of CUDA, NCCL, ROCm and RCCL."""

import pytest

from sim.importer.kineto.events import collective_of, is_communication, is_computation

COLLECTIVES = {
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)": "all_reduce",
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)": "all_reduce",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)": "all_reduce",
    "ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_f32(ncclSymkDevWorkArgs4K)": "all_reduce",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "reduce_scatter",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_gather",
    "ncclDevKernel_Broadcast_RING_LL(ncclDevComm*, unsigned long, ncclWork*)": "broadcast",
    "ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)": "reduce",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": "send_recv",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem) [clone .kd]": "all_reduce",
    "void allreduce7<float>(float*, mscclpp::DeviceHandle<mscclpp::MemoryChannel>*, int)": "all_reduce",
    "void mscclpp::allgather6<false>(void*, mscclpp::DeviceHandle<mscclpp::MemoryChannel>*)": "all_gather",
}
SILENT = (
    "ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)",
    "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>) [clone .kd]",
    "mscclKernel_Sum_float_LL_false(ncclDevComm*, mscclAlgo*, mscclWork*)",
    "mscclKernel_MinMax_half_Simple_true(ncclDevComm*, mscclAlgo*, mscclWork*) [clone .kd]",
)
MEMORY = ("Memcpy DtoD (Device -> Device)", "Memcpy HtoD (Pinned -> Device)", "Memset (Device)")
COMPUTATION = (
    "volta_sgemm_128x64_nt",
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nt",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(at::native::ReduceOp<float>)",
    "Cijk_Ailk_Bljk_SB_MT64x64x16_SE_K1",
    "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64> >(Flash_bwd_params)",
    "void multi_tensor_apply_kernel<TensorListMetadata<4> >(int)",
)


@pytest.mark.parametrize("name", [*COLLECTIVES, *SILENT, *MEMORY, *COMPUTATION])
def test_a_kernel_communicates_copies_or_computes(name: str) -> None:
    assert is_communication(name) == (name in (*COLLECTIVES, *SILENT))
    assert is_computation(name) == (name in COMPUTATION)


@pytest.mark.parametrize(("name", "collective"), COLLECTIVES.items())
def test_a_communication_kernel_names_its_collective(name: str, collective: str) -> None:
    assert collective_of(name) == collective


@pytest.mark.parametrize("name", SILENT)
def test_a_generic_kernel_names_none_and_the_operator_does(name: str) -> None:
    assert collective_of(name) is None
    assert collective_of(name, "allreduce") == "all_reduce"
    assert collective_of(None, 7, "_allgather_base", name) == "all_gather"


@pytest.mark.parametrize(
    ("word", "collective"),
    [
        ("allreduce_coalesced", "all_reduce"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("alltoall_base_", "all_to_all"),
        ("allgather_into_tensor_coalesced", "all_gather"),
        ("broadcast_", "broadcast"),
        ("barrier", "barrier"),
        ("send", "send"),
        ("recv_any_source", "recv"),
        ("monitored", None),
    ],
)
def test_c10ds_own_words(word: str, collective: str | None) -> None:
    assert collective_of(word) == collective

"""The products of a low-rank approximation, as PowerSGD's hook makes them of each matrix (A3.17)."""

import time
from typing import Any

import torch

from sim.validator.ranks.pacing.paced_module import sleep_until
from sim.validator.ranks.pacing.stepping import common_start
from sim.validator.ranks.probes.curve_probes import mean_over_ranks
from sim.validator.ranks.process.rank_like import RankLike

_ROWS, _COLUMNS, _RANK = 1024, 512, 4
_MATRICES = 16  # 32 MiB: more than a cache holds
_PRODUCTS = 3
_SWEEP_BYTES = 192 << 20


def low_rank_products(rank: RankLike) -> dict[str, Any]:
    """Times ``P = M Q``, ``Q = M^T P`` and ``M = P Q^T`` for 16 matrices M, after sweeping the caches.

    ``samples_ns`` is processor time, one value a repeat. ``num_bytes`` counts each M once in each product.
    """
    broom = torch.zeros(_SWEEP_BYTES // 4)
    matrices = [torch.full((1, _ROWS, _COLUMNS), 0.5) for _ in range(_MATRICES)]
    ps = [torch.empty(1, _ROWS, _RANK) for _ in matrices]
    qs = [torch.full((1, _COLUMNS, _RANK), _COLUMNS**-0.5) for _ in matrices]
    found = []
    for repeat in range(rank.job["copy_repeats"] + 2):
        broom.add_(1)
        for q in qs:
            q.fill_(_COLUMNS**-0.5)  # products of these neither grow nor vanish
        sleep_until(common_start())
        begun = time.thread_time_ns()
        for matrix, p, q in zip(matrices, ps, qs, strict=True):
            torch.bmm(matrix, q, out=p)
        for matrix, p, q in zip(matrices, ps, qs, strict=True):
            torch.bmm(matrix.transpose(1, 2), p, out=q)
        for matrix, p, q in zip(matrices, ps, qs, strict=True):
            torch.bmm(p, q.transpose(1, 2), out=matrix)
        if repeat >= 2:
            found.append(time.thread_time_ns() - begun)
        for matrix in matrices:
            matrix.fill_(0.5)
    num_bytes = _PRODUCTS * sum(matrix.nbytes for matrix in matrices)
    return {"num_bytes": num_bytes, "samples_ns": mean_over_ranks(found, rank)}

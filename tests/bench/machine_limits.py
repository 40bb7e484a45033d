"""What this machine can do at most, measured: GEMM peak and read bandwidth (torch, all cores)."""
import time

import torch


def best_of(repeats, run):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def gemm_flops(dtype, size=2048, repeats=8):
    """FLOP/s of a square matrix product at `dtype`."""
    a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
    a @ b
    return 2 * size**3 / best_of(repeats, lambda: a @ b)


def read_bandwidth(size_bytes=1 << 29, repeats=5):
    """Bytes/s of a sum over an array that no cache holds."""
    x = torch.ones(size_bytes // 4)
    x.sum()
    return size_bytes / best_of(repeats, lambda: x.sum())

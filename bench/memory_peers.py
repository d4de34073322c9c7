#!/usr/bin/env python3
"""The host's time for a cached allocation and free of PyTorch's CUDA allocator: a JSON list of rows,
empty where there is no PyTorch or no device. The allocator is called without a tensor around it;
interpreter_ns is what two calls of built-in functions take in the same loop.
  memory_peers.py [threads]"""

import json
import sys
import time


def pair_ns(torch, size, batch=64, batches=1200, warm=200):
    raw, release = (
        torch._C._cuda_cudaCachingAllocator_raw_alloc,
        torch._C._cuda_cudaCachingAllocator_raw_delete,
    )
    stream = torch.cuda.current_stream().cuda_stream
    times = []
    for i in range(batches):
        begin = time.perf_counter_ns()
        for _ in range(batch):
            release(raw(size, stream))
        if i >= warm:
            times.append((time.perf_counter_ns() - begin) / batch)
    times.sort()
    return times[len(times) // 2], times[len(times) * 99 // 100]


def loop_ns(batch=64, batches=1200):
    times = []
    for _ in range(batches):
        begin = time.perf_counter_ns()
        for _ in range(batch):
            abs(max(1, 2))
        times.append((time.perf_counter_ns() - begin) / batch)
    return sorted(times)[len(times) // 2]


def main():
    try:
        import torch

        available = torch.cuda.is_available() and sys.argv[1:] != ["2"]
    except ImportError:
        available = False
    rows = []
    for size in (256, 65536, 1048576, 33554432) if available else ():
        median, p99 = pair_ns(torch, size)
        rows.append(
            {
                "name": f"torch_pair_{size}_live0",
                "device": torch.cuda.get_device_name(),
                "threads": 1,
                "p50_ns": median,
                "p99_ns": p99,
                "interpreter_ns": loop_ns(),
            }
        )
    print(json.dumps(rows))


if __name__ == "__main__":
    main()

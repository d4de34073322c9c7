#!/usr/bin/env python3
"""Times the layer against other packages that are installed here, on the same inputs in one run.

usage: semicrf_peers.py [THREADS]

Prints a JSON list of rows for bench/run: `ms` is ours, `reference_ms` the other package's, named in
`reference`; `error` is the largest difference of the losses and gradients, relative to the largest
value. Rows whose other package is missing, or does not fit the memory, are left out; stderr says so.
Every timing is the median of repeated runs after one to warm up, with the device waited for.
"""

import json
import statistics
import sys
import time
import warnings

import torch

import segfuse
import segfuse.torch as st


def timed(body, device):
    """Milliseconds, and what the last run returned."""

    def once():
        begin = time.perf_counter()
        result = body()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - begin), result

    first, result = once()
    times = []
    while len(times) < 3 or (sum(times) < 1000 and len(times) < 50):
        taken, result = once()
        times.append(taken)
        if first > 5000 and times:
            break
    return statistics.median(times), result


def difference(ours, theirs):
    worst = 0.0
    for a, b in zip(ours, theirs, strict=False):
        worst = max(worst, float((a.double() - b.double()).abs().max() / b.double().abs().max()))
    return worst


def row(name, device, threads, reference, ours, theirs):
    our_ms, our_values = timed(ours, device)
    their_ms, their_values = timed(theirs, device)
    kind = "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)
    return {
        "name": name,
        "device": kind,
        "threads": threads,
        "ms": our_ms,
        "error": difference(our_values, their_values),
        "reference_ms": their_ms,
        "reference": reference,
    }


def linear_chain(device, threads, rows_, frames, classes):
    """Loss and gradients of a linear-chain CRF, against pytorch-crf."""
    import torchcrf

    torch.manual_seed(1)
    theirs = torchcrf.CRF(classes, batch_first=True).to(device)
    ours = st.SemiMarkovCRF(classes, 1).to(device)
    ours.load_state_dict(
        {
            "initial": theirs.start_transitions,
            "final": theirs.end_transitions,
            "transition": theirs.transitions,
            "durations.theta": torch.zeros(1, classes),
        }
    )
    emission = torch.randn(rows_, frames, classes, device=device, requires_grad=True)
    labels = torch.randint(classes, (rows_, frames), device=device)

    def run_ours():
        loss = ours(emission, labels, reduction="sum")
        return loss.detach(), *torch.autograd.grad(loss, [emission, ours.transition])

    def run_theirs():
        loss = -theirs(emission, labels, reduction="sum")
        return loss.detach(), *torch.autograd.grad(loss, [emission, theirs.transitions])

    name = f"peer_linear_loss_grad_B{rows_}_T{frames}_C{classes}"
    return row(name, device, threads, "pytorch-crf 0.7.2", run_ours, run_theirs)


def edges_of(emission, transition, duration):
    """log_potentials (B, T, K + 1, C, C) of torch-struct; docs/migration.md says why."""
    batch, frames, classes = emission.shape
    longest = len(duration)
    sums = torch.nn.functional.pad(emission.cumsum(1), (0, 0, 1, 0))
    edges = emission.new_full((batch, frames, longest + 1, classes, classes), -1e9)
    for d in range(1, min(longest, frames) + 1):
        content = sums[:, d:] - sums[:, :-d] + duration[d - 1]
        edges[:, : frames - d + 1, d] = content[..., None] + transition.T
        edges[:, 0, d] = -1e9
        edges[:, 0, d, :, 0] = content[:, 0]
    return edges


def semi_markov(device, threads, rows_, frames, longest, classes):
    """Log-partition and gradients of a semi-Markov CRF, against torch-struct, whose edge scores are
    made from the same inputs beforehand and are not timed."""
    import torch_struct

    torch.manual_seed(1)
    emission = torch.randn(rows_, frames, classes, device=device)
    transition = torch.randn(classes, classes, device=device)
    duration = torch.randn(longest, classes, device=device)
    lengths = torch.full((rows_,), frames, device=device)
    edges = edges_of(emission, transition, duration).requires_grad_()
    leaves = [x.clone().requires_grad_() for x in (emission, transition, duration)]

    def run_ours():
        value = st.log_partition(*leaves, lengths=lengths)
        gradients = torch.autograd.grad(value.sum(), leaves)
        return value.detach(), gradients[2]

    def run_theirs():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = torch_struct.SemiMarkovCRF(edges, lengths=lengths + 1)
            value = model.partition
        (counts,) = torch.autograd.grad(value.sum(), [edges])
        return value.detach(), counts.sum((0, 1, 4))[1:]

    name = f"peer_partition_grad_B{rows_}_T{frames}_K{longest}_C{classes}"
    return row(name, device, threads, "torch-struct 0.5", run_ours, run_theirs)


def plain_losses(table, transition, gold):
    """-log p(gold) of segment scores (B, T, K, C) and a matrix, or one for each boundary: the recursion
    as PyTorch's operations on all rows, durations and labels at once, a boundary after the other."""
    batch, frames, longest, classes = table.shape
    durations = torch.arange(longest)
    starts = torch.arange(frames)[:, None] - durations  # of what ends with each frame
    ending = table[:, starts.clamp(min=0), durations].unbind(1)
    matrices = [transition] * frames if transition.dim() == 2 else transition.unbind(0)
    entered = [table.new_zeros(batch, classes)]
    for t in range(frames):
        n = min(longest, t + 1)
        before = torch.stack(entered[: -1 - n : -1], 1)
        value = torch.logsumexp(before + ending[t][:, :n], 1)
        if t + 1 < frames:
            entered.append(torch.logsumexp(value[:, :, None] + matrices[t + 1], 1))
    scores = []
    for b, row in enumerate(gold):
        s, d, c = (torch.tensor(column) for column in zip(*row, strict=True))
        changes = transition[c[:-1], c[1:]]
        if transition.dim() == 3:
            changes = transition[s[1:], c[:-1], c[1:]]
        scores.append(table[b, s, d - 1, c].sum() + changes.sum())
    return torch.logsumexp(value, 1) - torch.stack(scores)


def segment_table(device, threads, rows_, frames, longest, classes, by_time):
    """Loss and gradients with a table of segment scores, and with transitions by time."""
    torch.manual_seed(1)
    table = torch.randn(rows_, frames, longest, classes, device=device, requires_grad=True)
    shape = (frames, classes, classes) if by_time else (classes, classes)
    transition = torch.randn(shape, device=device, requires_grad=True)
    zeros = [torch.zeros(n, device=device) for n in ((rows_, frames, classes), (longest, classes))]
    matrix = torch.zeros(classes, classes, device=device) if by_time else transition
    gold = [[(t, 5, (b + t) % classes) for t in range(0, frames, 5)] for b in range(rows_)]
    packed = segfuse.Segmentations.from_rows(gold)

    def run_ours():
        tables = {"segment_scores": table, "transition_scores": transition if by_time else None}
        loss = st.loss(zeros[0], matrix, zeros[1], packed, **tables, reduction="sum")
        return loss.detach(), *torch.autograd.grad(loss, [table, transition])

    def run_theirs():
        loss = plain_losses(table, transition, gold).sum()
        return loss.detach(), *torch.autograd.grad(loss, [table, transition])

    kind = "table_by_time" if by_time else "table"
    name = f"peer_{kind}_loss_grad_B{rows_}_T{frames}_K{longest}_C{classes}"
    return row(name, device, threads, "PyTorch, vectorised", run_ours, run_theirs)


def attempt(rows, make, *arguments):
    try:
        rows.append(make(*arguments))
    except ImportError as error:
        print(f"bench: {error}; its rows are left out", file=sys.stderr)
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if "memory" not in str(error):
            raise
        print(
            f"bench: {make.__name__}{arguments[2:]} does not fit the memory of {arguments[0]}",
            file=sys.stderr,
        )


def main():
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    torch.set_num_threads(threads)
    segfuse.set_threads(threads)
    cpu = torch.device("cpu")
    rows = []
    attempt(rows, linear_chain, cpu, threads, 32, 1000, 39)
    # torch-struct multiplies matrices over (duration, label) pairs: sizes stay small.
    attempt(rows, semi_markov, cpu, threads, 2, 100, 6, 6)
    attempt(rows, segment_table, cpu, threads, 8, 1000, 30, 20, False)
    attempt(rows, segment_table, cpu, threads, 8, 1000, 30, 20, True)
    if torch.cuda.is_available() and threads == 1:
        gpu = torch.device("cuda")
        attempt(rows, linear_chain, gpu, 1, 32, 1000, 39)
        attempt(rows, semi_markov, gpu, 1, 2, 100, 6, 6)
        attempt(rows, semi_markov, gpu, 1, 4, 200, 10, 10)
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

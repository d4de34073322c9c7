"""Trains an encoder with a semi-Markov CRF on several processes, with DDP or FSDP2.

    pip install . torch && torchrun --standalone --nproc-per-node 2 examples/train_ddp.py [--fsdp]

Each process takes a GPU of its own (NCCL) where the machine has one for each, else the CPU (gloo).
The data are drawn from a known model. The rows of a batch are dealt out to the ranks, which need
not get equally many; see "Several processes" in docs/python_torch.md. At the end the ranks compare
their parameters, and rank 0 decodes unseen rows.
"""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import segfuse
from segfuse.torch import SemiMarkovCRF

MEANS, LONGEST, FEATURES, FRAMES = (5, 11, 20), 28, 6, 120
CLASSES = len(MEANS)


class Tagger(torch.nn.Module):
    """The loss is `forward`, which is what DDP and FSDP wrap."""

    def __init__(self):
        super().__init__()
        self.crf = SemiMarkovCRF(CLASSES, LONGEST, self_transitions=False)
        self.encoder = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, 32), torch.nn.GELU(), torch.nn.Linear(32, self.crf.num_scores)
        )

    def forward(self, features, labels, reduction="sum"):
        return self.crf(self.encoder(features), labels, reduction=reduction)

    def decode(self, features):
        return self.crf.decode(self.encoder(features))


def sample(rows, seed):
    """Features (B, T, F) and labels (B, T) of a model whose labels last `MEANS` frames or so."""
    d = torch.arange(1, LONGEST + 1)[:, None]
    duration = torch.log_softmax(-0.5 * ((d - torch.tensor(MEANS)) / 1.5) ** 2, dim=0)
    transition = torch.zeros(CLASSES, CLASSES).fill_diagonal_(-torch.inf)
    drawn = segfuse.sample_prior(transition, duration, rows=rows, min_frames=FRAMES, seed=seed)
    labels = torch.as_tensor(drawn.to_labels())[:, :FRAMES]
    noise = torch.randn(rows, FRAMES, FEATURES, generator=torch.Generator().manual_seed(seed))
    return torch.eye(CLASSES, FEATURES)[labels] + noise, labels


def share(features, labels, device):
    """The rows of this rank; the last rank may get fewer, or none."""
    each = -(-len(features) // dist.get_world_size())
    own = slice(each * dist.get_rank(), each * (dist.get_rank() + 1))
    return features[own].to(device), labels[own].to(device)


def train(model, features, labels, device, steps, rows):
    """The mean loss over all rows of each step, on all ranks."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    losses = []
    for step in range(steps):
        batch = (torch.arange(rows) + rows * step) % len(features)
        own = share(features[batch], labels[batch], device)
        optimizer.zero_grad()
        # DDP and FSDP take the mean of the gradients over ranks. The sum over the rows of this
        # rank, times ranks / rows of all ranks, makes that the mean over rows.
        loss = model(*own) * (dist.get_world_size() / rows)
        loss.backward()
        optimizer.step()
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)  # for the log alone
        losses.append(mean.item() / FRAMES)
    return losses


def apart(model):
    """The largest difference of a parameter from that of rank 0, over all ranks."""
    found = torch.zeros((), device=next(model.parameters()).device)
    for parameter in model.parameters():
        first = parameter.detach().clone()
        dist.broadcast(first, 0)
        found = torch.maximum(found, (first - parameter).abs().max())
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return found.item()


def run(options, device):
    """All that holds a model: freed, with DDP's part of it, when the process group is destroyed."""
    torch.manual_seed(0)  # the same model on each rank
    model = Tagger().to(device)
    parallel = fully_shard(model) if options.fsdp else DistributedDataParallel(model)
    features, labels = sample(rows=64, seed=1)
    losses = train(parallel, features, labels, device, options.steps, options.rows)

    whole = model
    if options.fsdp:  # every rank gathers the parameters into a model of its own
        whole = Tagger().to(device)
        whole.load_state_dict({name: x.full_tensor() for name, x in model.state_dict().items()})
    unseen, gold = sample(rows=32, seed=2)
    difference = apart(whole)
    if dist.get_rank() == 0:
        found = whole.decode(unseen.to(device)).to_labels().cpu()
        print(f"{dist.get_world_size()} ranks on {device.type}, {options.rows} rows a step")
        print(f"loss per frame: {losses[0]:.3f} -> {losses[-1]:.3f}")
        print(f"unseen rows: frames right {(found == gold).float().mean():.3f}")
        print(f"largest difference between the parameters of two ranks: {difference:g}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fsdp", action="store_true", help="share the parameters out, too (FSDP2)")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rows", type=int, default=15, help="of a batch, on all ranks together")
    options = parser.parse_args()

    on_cuda = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_cuda else torch.device("cpu")
    if on_cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
        segfuse.set_threads(1)  # the processes share the cores
    dist.init_process_group("nccl" if on_cuda else "gloo")
    run(options, device)
    # Modules of FSDP refer to each other and to the group, which has to end before Python does.
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

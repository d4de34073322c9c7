"""The training step of `segfuse_bench_ranks N step` in PyTorch: its encoder, segfuse's CRF behind it,
and DistributedDataParallel, eager and with the encoder compiled by Inductor.

    python -m torch.distributed.run --standalone --nproc-per-node N bench/ranks_peers.py
"""

import os

import torch
from torch import distributed, nn

import precision_peers as peers
from segfuse.torch import SemiMarkovCRF

ROWS, FRAMES = 64, 800


class Whole(nn.Module):
    """The loss of a batch."""

    def __init__(self):
        super().__init__()
        self.encoder = peers.Encoder([peers.Convolution(d) for d in (1, 2, 4, 8)])
        self.crf = SemiMarkovCRF(peers.CLASSES, peers.LONGEST)
        self.head = nn.Linear(peers.WIDTH, self.crf.num_scores)

    def forward(self, x, labels):
        return self.crf(self.head(self.encoder(x)), labels).mean() / (FRAMES // 10)


def all_ready():
    torch.cuda.synchronize()
    distributed.barrier()
    torch.cuda.synchronize()


def measure(rank, how):
    torch._dynamo.reset()
    peers.allow_tf32(False)
    torch.manual_seed(rank)
    whole = Whole().cuda()
    if how == "inductor":
        whole.encoder = torch.compile(whole.encoder)
    x = torch.randn(ROWS, FRAMES, peers.FEATURES, device="cuda")
    labels = torch.randint(peers.CLASSES, (ROWS, FRAMES // 10), device="cuda")
    labels = labels.repeat_interleave(10, 1)
    for model in (whole, nn.parallel.DistributedDataParallel(whole, device_ids=[rank])):
        optimizer = torch.optim.AdamW(whole.parameters(), lr=1e-4, fused=True)

        def step(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            model(x, labels).backward()
            nn.utils.clip_grad_norm_(whole.parameters(), 1)
            optimizer.step()

        ms = peers.ms_of(step, steps=6, warm_up=6, ready=all_ready)
        if rank == 0:
            ranks = "no exchange" if model is whole else "DistributedDataParallel"
            print(f"{how}, {ranks}: {ms:.2f} ms", flush=True)


def main():
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
    for how in ("eager", "inductor"):
        measure(rank, how)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

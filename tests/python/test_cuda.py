"""CUDA tensors: the same results as on the CPU."""

import numpy as np
import pytest
from conftest import SCORES, random_model

import segfuse
from segfuse._arrays import kind_of
from segfuse._device import packed_from_labels

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
st = pytest.importorskip("segfuse.torch")


cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
GOLD = torch.tensor([[0, 0, 1, 1, 1], [-100] * 5, [1, 0, 0, -100, -100]])
ROWS = [[(0, 2, 0), (2, 3, 1)], [], [(0, 1, 1), (1, 2, 0)]]


@cuda
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("with_lengths", [False, True])
@pytest.mark.parametrize("longest", [1, 2, 3, 7])
def test_segments_from_labels_on_the_device(dtype, split, with_lengths, longest):
    rng = np.random.default_rng(longest)
    lengths = np.array([20, 0, 1, 13])
    labels = np.repeat(rng.integers(0, 3, size=(4, 20)), rng.integers(1, 4), axis=1)[:, :20]
    labels[np.arange(20) >= lengths[:, None]] = -100
    longest = longest if split else 20
    expected = segfuse.Segmentations.from_labels(
        labels, max_duration=longest, num_classes=3, long_runs="split" if split else "error"
    )
    given = torch.from_numpy(lengths).cuda() if with_lengths else None
    there = torch.from_numpy(labels).to("cuda", dtype)
    columns, found_lengths = packed_from_labels(
        kind_of(there), there.T.contiguous().T, given, longest, 3, ignore=-100, split=split
    )
    assert found_lengths.tolist() == lengths.tolist()
    pointer, start, duration, label = (column.cpu().numpy() for column in columns)
    n = pointer[-1]
    assert expected == segfuse.Segmentations(pointer, start[:n], duration[:n], label[:n])


def inputs_on(device, model, dtype=torch.float64):
    def convert(array):
        tensor = torch.from_numpy(array)
        return tensor.to(device, dtype if tensor.is_floating_point() else None)

    return model.inputs(convert)


def same(found, expected, tolerance=1e-10):
    assert found.is_cuda
    torch.testing.assert_close(found.cpu(), expected, rtol=tolerance, atol=tolerance)


@cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("full", [False, True])
def test_functions(dtype, full):
    model = random_model(full=full)
    here, there = (inputs_on(device, model, dtype) for device in ("cpu", "cuda"))
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    same(segfuse.log_partition(**there), segfuse.log_partition(**here), tolerance)
    for gold in ({"labels": GOLD}, {"labels": GOLD.cuda()}, {"segments": ROWS}):
        on_cpu = {name: x.cpu() if name == "labels" else x for name, x in gold.items()}
        same(segfuse.loss(**there, **gold), segfuse.loss(**here, **on_cpu), tolerance)
        same(segfuse.score(**there, **gold), segfuse.score(**here, **on_cpu), tolerance)
    weights = [0.5, 1.0, -2.0]
    _, found = segfuse.loss_and_gradients(**there, labels=GOLD, weights=weights)
    _, expected = segfuse.loss_and_gradients(**here, labels=GOLD, weights=weights)
    for name in SCORES:
        if getattr(expected, name) is not None:
            same(getattr(found, name), getattr(expected, name), tolerance)
    found, expected = segfuse.posteriors(**there), segfuse.posteriors(**here)
    for name in ("label", "start", "end", "boundary", "log_partition"):
        same(getattr(found, name), getattr(expected, name), tolerance)
    assert found.entropy is None and found.duration is None
    best = segfuse.viterbi(**there)
    assert best == segfuse.viterbi(**here)
    assert best.start.is_cuda and len(best.start) == best.num_segments
    assert torch.equal(best.to_labels().cpu(), segfuse.viterbi(**here).to_labels())
    same(segfuse.loss(**there, segments=best), segfuse.loss(**here, segments=list(best)), tolerance)


@cuda
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_autograd(reduction):
    torch.manual_seed(0)
    crf = st.SemiMarkovCRF(4, 5, boundary_scores=True, self_transitions=False).double()
    emission = torch.randn(3, 20, 12, dtype=torch.float64, requires_grad=True)
    labels = torch.arange(20).div(3, rounding_mode="floor").remainder(4).repeat(3, 1)
    labels[1, 11:] = -100
    weights = torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64)

    def gradients(layer, scores, gold):
        layer.zero_grad()
        value = layer(scores, gold, reduction=reduction)
        total = value if reduction == "mean" else value @ weights.to(value.device)
        found = torch.autograd.grad(total, [scores, *layer.parameters()])
        return [value.detach(), *found]

    expected = gradients(crf, emission, labels)
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            moved = st.SemiMarkovCRF(4, 5, boundary_scores=True, self_transitions=False)
            moved = moved.double().cuda()
            there = emission.detach().cuda().requires_grad_()
            found = gradients(moved, there, labels.cuda())
        torch.cuda.synchronize()
        for a, b in zip(found, expected, strict=True):
            same(a, b)
    st.check()


@cuda
def test_nothing_waits_for_the_device():
    crf = st.SemiMarkovCRF(4, 5).cuda()
    emission = torch.randn(3, 20, 4, device="cuda", requires_grad=True)
    labels = torch.arange(20, device="cuda").remainder(4).repeat(3, 1)
    lengths = torch.tensor([20, 3, 0], device="cuda")
    for reduction in ("mean", "none"):  # the second time nothing is compiled
        for _ in range(2):
            torch.cuda.set_sync_debug_mode("error")
            try:
                crf(emission, labels, lengths, reduction).sum().backward()
            finally:
                torch.cuda.set_sync_debug_mode("default")
    assert emission.grad.isfinite().all()


@cuda
def test_compile_autocast_and_scaler():
    crf = st.SemiMarkovCRF(4, 5).cuda()
    encoder = torch.nn.Linear(6, 4).cuda()
    features = torch.randn(3, 20, 6, device="cuda")
    labels = torch.arange(20, device="cuda").remainder(4).repeat(3, 1)
    optimizer = torch.optim.SGD([*crf.parameters(), *encoder.parameters()], lr=0.1)
    scaler = torch.amp.GradScaler(init_scale=256.0)  # no step is skipped
    compiled = torch.compile(lambda x: crf(encoder(x), labels), backend="aot_eager", fullgraph=True)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = compiled(features)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[2] < losses[0]


@cuda
def test_errors_on_the_device():
    model = random_model()
    there = inputs_on("cuda", model)
    bad = there["emission"].clone()
    bad[2, 1, 1] = torch.nan
    with pytest.raises(segfuse.DataError, match="emission at batch 2, time 1, class 1 is NaN"):
        segfuse.log_partition(**there | {"emission": bad})
    segfuse.log_partition(**there)
    with pytest.raises(segfuse.DataError, match="the label is not in"):
        segfuse.loss(**there, labels=GOLD + 1)
    with pytest.raises(segfuse.DataError, match="length of batch 1"):
        segfuse.log_partition(**there | {"lengths": torch.tensor([5, 9, 3])})
    st.loss(**there | {"emission": bad}, gold=GOLD)
    with pytest.raises(segfuse.DataError, match="batch 2, time 1"):
        st.check()
    mixed = there | {"transition": there["transition"].cpu()}
    with pytest.raises(
        segfuse.UsageError, match="transition is on the CPU, but emission is on cuda"
    ):
        segfuse.log_partition(**mixed)
    with pytest.raises(segfuse.UsageError, match="move the arrays"):
        segfuse.k_best(**there, n=2)
    with pytest.raises(segfuse.UsageError, match="works on the CPU only"):
        segfuse.loss(**there, labels=GOLD, tail=[0.0, 0.0])


@cuda
def test_other_libraries_on_the_device():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    with pytest.raises(segfuse.UsageError, match="on GPUs segfuse takes PyTorch"):
        segfuse.log_partition(cupy.zeros((1, 4, 2)), np.zeros((2, 2)), np.zeros((3, 2)))

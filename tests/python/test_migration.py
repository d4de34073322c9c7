"""What docs/migration.md says about other packages, against those packages where they are installed."""

import warnings

import numpy as np
import pytest

import segfuse

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
st = pytest.importorskip("segfuse.torch")

B, T, C = 3, 7, 4
LENGTHS = torch.tensor([7, 4, 1])
MASK = torch.arange(T) < LENGTHS[:, None]


@pytest.fixture
def theirs():
    torchcrf = pytest.importorskip("torchcrf", reason="pytorch-crf is not installed")
    torch.manual_seed(0)
    return torchcrf.CRF(C, batch_first=True)


@pytest.fixture
def ours(theirs):
    """The layer with the parameters of pytorch-crf, as docs/migration.md moves them."""
    crf = st.SemiMarkovCRF(C, 1)
    crf.load_state_dict(
        {
            "initial": theirs.start_transitions,
            "final": theirs.end_transitions,
            "transition": theirs.transitions,
            "durations.theta": torch.zeros(1, C),
        }
    )
    return crf


def test_pytorch_crf_likelihood(theirs, ours):
    emission = torch.randn(B, T, C, requires_grad=True)
    tags = torch.randint(C, (B, T))
    for reduction in ("none", "sum", "mean"):
        expected = -theirs(emission, tags, mask=MASK, reduction=reduction)
        found = ours(emission, tags, LENGTHS, reduction)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    expected = torch.autograd.grad(-theirs(emission, tags, mask=MASK), emission)[0]
    found = torch.autograd.grad(ours(emission, tags, LENGTHS, "sum"), emission)[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    padded = tags.masked_fill(~MASK, -100)  # instead of the mask
    torch.testing.assert_close(ours(emission, padded), ours(emission, tags, LENGTHS))


def test_pytorch_crf_parameters_get_the_same_gradients(theirs, ours):
    emission, tags = torch.randn(B, T, C), torch.randint(C, (B, T))
    (-theirs(emission, tags, mask=MASK)).backward()
    ours(emission, tags, LENGTHS, "sum").backward()
    pairs = [(ours.initial, theirs.start_transitions), (ours.final, theirs.end_transitions)]
    pairs.append((ours.transition, theirs.transitions))
    for a, b in pairs:
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-5)


def test_pytorch_crf_decode(theirs, ours):
    emission = torch.randn(B, T, C)
    expected = theirs.decode(emission, mask=MASK)
    labels = ours.decode(emission, LENGTHS).to_labels()
    assert [row[row != -100].tolist() for row in labels] == expected


def potentials_of(emission, transition, duration):
    """log_potentials (B, T, K + 1, C, C) of torch-struct, as docs/migration.md writes them."""
    batch, frames, classes = emission.shape
    longest = len(duration)
    sums = torch.nn.functional.pad(emission.cumsum(1), (0, 0, 1, 0))
    edges = torch.full((batch, frames, longest + 1, classes, classes), -1e9)
    for d in range(1, min(longest, frames) + 1):
        content = sums[:, d:] - sums[:, :-d] + duration[d - 1]
        edges[:, : frames - d + 1, d] = content[..., None] + transition.T
        edges[:, 0, d] = -1e9
        edges[:, 0, d, :, 0] = content[:, 0]  # the first segment has no transition
    return edges


@pytest.mark.parametrize("frames", [7, 5])
def test_torch_struct(frames):
    """Rows of one length: torch-struct 0.5 loses segments of rows longer than the shortest."""
    torch_struct = pytest.importorskip("torch_struct", reason="torch-struct is not installed")
    torch.manual_seed(0)
    longest, classes = 3, 2
    emission, lengths = torch.randn(B, frames, classes), torch.full((B,), frames)
    transition, duration = torch.randn(classes, classes), torch.randn(longest, classes)
    edges = potentials_of(emission, transition, duration).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own making
        theirs = torch_struct.SemiMarkovCRF(edges, lengths=lengths + 1)
    inputs = {"emission": emission, "transition": transition, "duration": duration}
    inputs["lengths"] = lengths
    expected = segfuse.log_partition(**inputs).float()
    torch.testing.assert_close(theirs.partition, expected, rtol=1e-5, atol=1e-5)
    marginals = theirs.marginals.detach()  # (B, T, K + 1, new, old)
    posteriors = segfuse.posteriors(**inputs)
    torch.testing.assert_close(marginals.sum((2, 4)), posteriors.start, rtol=1e-4, atol=1e-5)
    by_duration = marginals.sum((1, 4))[:, 1:]
    torch.testing.assert_close(by_duration, posteriors.duration, rtol=1e-4, atol=1e-5)
    best = segfuse.viterbi(**inputs)
    argmax = theirs.argmax.detach()
    for row in range(B):
        places = argmax[row].nonzero().tolist()  # n, d, new, old
        assert [(n, d, new) for n, d, new, _ in places] == best[row]


def test_conventions_of_streaming_semi_crfs():
    """Kernels on cumulative scores whose first segment takes a transition from any label."""
    torch.manual_seed(0)
    longest, classes = 3, 2
    emission, transition = torch.randn(1, 5, classes), torch.randn(classes, classes)
    duration = torch.randn(longest, classes)
    sums = torch.nn.functional.pad(emission.double().cumsum(1), (0, 0, 1, 0))[0]
    alpha = [torch.zeros(classes, dtype=torch.float64)]
    for t in range(1, 6):
        terms = []
        for k in range(1, min(longest, t) + 1):
            content = sums[t] - sums[t - k] + duration[k - 1]
            terms.append(torch.logsumexp(alpha[t - k][:, None] + transition, 0) + content)
        alpha.append(torch.logsumexp(torch.stack(terms), 0))
    implied = torch.logsumexp(transition, 0)
    found = segfuse.log_partition(emission, transition, duration, initial=implied)
    assert found.item() == pytest.approx(torch.logsumexp(alpha[-1], 0).item(), abs=1e-6)
    # Scores from cumulative scores, in double so that nothing is lost.
    back = segfuse.log_partition(
        sums.diff(dim=0)[None], transition.double(), duration.double(), initial=implied.double()
    )
    assert back.item() == pytest.approx(found.item(), abs=1e-6)
    assert np.isfinite(found.item())

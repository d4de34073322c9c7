"""Under the doctor's dispatch mode PyTorch takes the paths that it takes without one."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.nn import functional as F

from segfuse.torch._watch import dispatch
from segfuse.torch._watch.dispatch import Dispatch


class Names(Dispatch):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def long(*numbers):
    return torch.tensor(numbers)


LABELS = torch.tensor([[1, 2, 3], [2, 2, 4]])


def losses(of):
    """A loss and its gradient, in several forms."""
    torch.manual_seed(0)
    x = torch.randn(12, 2, 8, requires_grad=True)
    out = []
    for loss in (
        lambda p: of(p, LABELS, long(12, 10), long(3, 3)),
        lambda p: of(p, LABELS, [12, 10], (3, 3), reduction="sum"),
        lambda p: of(
            p, LABELS.flatten(), long(12, 10).int(), long(3, 3).short(), zero_infinity=True
        ),
        lambda p: of(p[:, 0], LABELS[0], torch.tensor(12), torch.tensor(3), blank=7),
        lambda p: torch.ctc_loss(p, LABELS, long(12, 10), target_lengths=long(3, 3), reduction=2),
    ):
        x.grad = None
        value = loss(x.log_softmax(-1))
        value.backward()
        out += [value.detach(), x.grad]
    return out


def test_ctc_loss_gets_lists_of_lengths():
    before = torch.ctc_loss
    expected = losses(F.ctc_loss)
    with Names() as mode:
        found = losses(F.ctc_loss)
    assert torch.ctc_loss is before
    for a, b in zip(expected, found, strict=True):
        assert torch.equal(a, b)
    assert {name for name in mode.names if "_ctc" in name} == {
        "aten._ctc_loss.default", "aten._ctc_loss_backward.default",
    }  # fmt: skip


def test_wrong_lengths_have_the_error_that_they_have_without_a_mode():
    def error():
        with pytest.raises(RuntimeError) as caught:
            F.ctc_loss(torch.zeros(12, 2, 8), LABELS, long(12.0, 10.0), long(3, 3))
        return str(caught.value)

    without = error()
    with Names():
        assert error() == without


@pytest.mark.parametrize("takes", [True, False])
def test_cudnn_gets_the_tensors_that_it_takes(takes, monkeypatch):
    class OnGpu(torch.Tensor):
        is_cuda = True

    def use_cudnn(_log_probs, _targets, lengths, _target_lengths, blank):
        assert torch.is_tensor(lengths) and blank == 0
        return takes

    monkeypatch.setattr(torch, "_use_cudnn_ctc_loss", use_cudnn)
    monkeypatch.setattr(dispatch, "_ctc_loss", lambda *arguments: arguments)
    lengths = long(12, 10), long(3, 3)
    given = dispatch.ctc_loss(torch.zeros(12, 2, 8).as_subclass(OnGpu), LABELS, *lengths)
    if takes:
        assert given[2] is lengths[0] and given[3] is lengths[1]
    else:
        assert given[2:] == ([12, 10], [3, 3], 0)


@pytest.mark.filterwarnings("ignore")
def test_scripts_are_compiled_as_without_a_mode():
    with Names():
        loss = torch.jit.script(torch.nn.CTCLoss())
    x = torch.randn(12, 2, 8).log_softmax(-1)
    assert loss(x, LABELS, long(12, 10), long(3, 3)) > 0

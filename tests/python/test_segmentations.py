import copy
import pickle

import numpy as np
import pytest

import segfuse
from segfuse import Segmentations

ROWS = [[(0, 2, 1), (2, 1, 0)], [], [(0, 4, 2)]]


def test_rows_round_trip():
    y = Segmentations.from_rows(ROWS)
    assert len(y) == 3 and y.num_segments == 3
    assert list(y) == ROWS
    assert y[0] == ROWS[0] and y[-1] == ROWS[-1]
    np.testing.assert_array_equal(y.row_pointer, [0, 2, 2, 3])
    assert repr(y) == "Segmentations(3 rows, 3 segments)"
    with pytest.raises(IndexError, match="row 3 of 3"):
        y[3]


def test_equality_is_that_of_the_rows():
    assert Segmentations.from_rows(ROWS) == Segmentations.from_rows(ROWS)
    assert Segmentations.from_rows(ROWS) != Segmentations.from_rows(ROWS[:2])
    assert Segmentations.from_rows(ROWS) != ROWS
    for same in (copy.deepcopy, lambda y: pickle.loads(pickle.dumps(y))):
        assert same(Segmentations.from_rows(ROWS)) == Segmentations.from_rows(ROWS)


def test_labels_and_back():
    y = Segmentations.from_rows(ROWS)
    labels = y.to_labels()
    np.testing.assert_array_equal(labels, [[1, 1, 0, -100], [-100] * 4, [2, 2, 2, 2]])
    assert Segmentations.from_labels(labels, max_duration=4, num_classes=3) == y
    assert y.to_labels(6, ignore=-1).shape == (3, 6)
    with pytest.raises(segfuse.UsageError, match="covers frames 0 to 4"):
        y.to_labels(3)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_labels_with_lengths_and_splits(dtype):
    labels = np.array([[5, 5, 5, 5, 5], [1, 1, 0, 9, 9]], dtype=dtype)
    options = {"max_duration": 2, "num_classes": 6, "long_runs": "split"}
    y = Segmentations.from_labels(labels, [5, 3], **options)
    assert list(y) == [[(0, 2, 5), (2, 2, 5), (4, 1, 5)], [(0, 2, 1), (2, 1, 0)]]
    assert y.frames == 5


def test_strided_labels():
    labels = np.array([[0, 9, 0, 9, 1], [1, 9, 1, 9, 1]])[:, ::2]
    y = Segmentations.from_labels(labels, max_duration=3, num_classes=2)
    assert list(y) == [[(0, 2, 0), (2, 1, 1)], [(0, 3, 1)]]


def test_the_library_of_the_labels_is_kept(torch):
    labels = torch.tensor([[0, 0, 1]])
    y = Segmentations.from_labels(labels, max_duration=3, num_classes=2)
    assert isinstance(y.start, torch.Tensor) and isinstance(y.to_labels(), torch.Tensor)
    assert torch.equal(y.to_labels(), labels)
    assert y == Segmentations.from_rows([[(0, 2, 0), (2, 1, 1)]])


def test_malformed_arrays_are_refused():
    with pytest.raises(segfuse.UsageError, match="row_pointer runs from 0 to 5"):
        Segmentations(np.array([0, 5]), *[np.array([1])] * 3).to_labels(9)
    with pytest.raises(segfuse.UsageError, match="covers frames -1 to 0"):
        Segmentations(np.array([0, 1]), np.array([-1]), np.array([1]), np.array([0])).to_labels(9)

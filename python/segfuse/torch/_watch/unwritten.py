"""Memory that no operation has written yet, as of torch.empty."""

from __future__ import annotations

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from .judge import weak_of
from .operation import storage_key
from .place import Place

_MANY = 4096


class Unwritten:
    """Storages, and where they were allocated."""

    def __init__(self) -> None:
        # The weak reference keeps the key from being given to another storage.
        self._places: dict[int, tuple[StorageWeakRef, Place]] = {}

    def allocated(self, tensor: Tensor, place: Place) -> None:
        self._places[storage_key(tensor)] = (weak_of(tensor), place)
        if len(self._places) > _MANY:
            for key in [key for key, known in self._places.items() if known[0].expired()]:
                del self._places[key]

    def written(self, tensor: Tensor) -> None:
        if self._places:
            self._places.pop(storage_key(tensor), None)

    def place_of(self, tensor: Tensor) -> Place | None:
        """Where it was allocated, if nothing has written it."""
        known = self._places.get(storage_key(tensor)) if self._places else None
        return None if known is None else known[1]

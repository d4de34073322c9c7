"""Memory that no operation has written yet, as of torch.empty."""

from __future__ import annotations

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from .judge import weak_of
from .operation import covers_storage, storage_key
from .place import Place

_MANY = 4096


class Unwritten:
    """Storages, and where they were allocated."""

    def __init__(self) -> None:
        # The weak reference keeps the key from being given to another storage.
        self._places: dict[int, tuple[StorageWeakRef, Place]] = {}
        self._partly: dict[int, tuple[StorageWeakRef, Place]] = {}

    def allocated(self, tensor: Tensor, place: Place) -> None:
        self._partly.pop(storage_key(tensor), None)
        self._places[storage_key(tensor)] = (weak_of(tensor), place)
        _without_the_dead(self._places)

    def written(self, tensor: Tensor) -> None:
        if self._places or self._partly:
            key = storage_key(tensor)
            known = self._places.pop(key, None)
            if covers_storage(tensor):
                self._partly.pop(key, None)
            elif known is not None:
                self._partly[key] = known
                _without_the_dead(self._partly)

    def moved(self, target: Tensor, place: Place) -> None:
        """A copy of memory that is partly unwritten lies there."""
        self._partly[storage_key(target)] = (weak_of(target), place)
        _without_the_dead(self._partly)

    def is_partly_written(self, tensor: Tensor) -> bool:
        """Whether operations have written parts of its storage, perhaps one after the other."""
        return storage_key(tensor) in self._partly

    def place_of(self, tensor: Tensor) -> Place | None:
        """Where it was allocated, if nothing has written it."""
        known = self._places.get(storage_key(tensor)) if self._places else None
        return None if known is None else known[1]


def _without_the_dead(known: dict[int, tuple[StorageWeakRef, Place]]) -> None:
    if len(known) > _MANY:
        for key in [key for key, (weak, _) in known.items() if weak.expired()]:
            del known[key]

"""What was made of somebody's texts stays for the next look, under a digest: what is kept must be fit to be shown, its source is not kept."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_Made = TypeVar("_Made")


class Kept(Generic[_Made]):
    """The `most` values that were asked for last. Safe in several threads; two that ask at once may both make it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Hashable, _Made] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, texts: tuple[str, ...], others: Hashable, make: Callable[[], _Made]) -> _Made:
        """The value made of exactly these texts and `others`, everything else that it depends on."""
        key = (_digest(texts), others)
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        made = make()
        with self._lock:
            self._values[key] = made
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return made

    def __len__(self) -> int:
        return len(self._values)


def _digest(texts: tuple[str, ...]) -> bytes:
    whole = hashlib.sha256()
    for text in texts:
        part = text.encode("utf-8", "surrogatepass")
        whole.update(len(part).to_bytes(8, "big") + part)
    return whole.digest()

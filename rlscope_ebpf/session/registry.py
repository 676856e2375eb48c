"""What ids mean: strings, operation paths and names by their hash, handed out once as definitions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.categories import UNKNOWN_OPERATION
from rlscope_ebpf.model.events import TEXT_MAX, TextKind
from rlscope_ebpf.model.tables import Definition, PathInfo, StringInfo

Ints = NDArray[np.int64]


class KeyIndex:
    """Maps 64-bit keys to non-negative integers; whole arrays are looked up at once."""

    __slots__ = ("_keys", "_known", "_new", "_values")

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        self._new: list[int] = []
        self._keys: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._values: Ints = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: int) -> int:
        """The key's value, or -1."""
        return self._known.get(key, -1)

    def add(self, key: int, value: int) -> None:
        """Add a key that is not there yet."""
        self._known[key] = value
        self._new.append(key)

    def lookup(self, keys: NDArray[np.uint64]) -> Ints:
        """Values of all keys, same shape; -1 where a key is unknown."""
        if self._new:
            self._merge()
        if not len(self._keys):
            return np.full(len(keys), -1, np.int64)
        at = self._keys.searchsorted(keys)
        np.minimum(at, len(self._keys) - 1, out=at)
        values: Ints = self._values[at]
        missing = self._keys[at] != keys
        if missing.any():
            values[missing] = -1
        return values

    def _merge(self) -> None:
        keys = np.concatenate([self._keys, np.array(self._new, np.uint64)])
        values = np.concatenate([self._values, np.array([self._known[key] for key in self._new], np.int64)])
        order = np.argsort(keys, kind="stable")  # one long sorted run and a short tail: nearly linear
        self._keys, self._values = keys[order], values[order]
        self._new.clear()


class Registry:
    """Interns strings and operation paths and remembers which definitions are still to be handed out.

    Ids count from 1; string 0 is the empty text, path 0 the time outside any operation.
    """

    def __init__(self) -> None:
        self.truncated_names = 0  # texts that fill their record, so they may have been longer
        self.unknown_names = 0  # uses of a hash whose text never came
        self._pending: list[Definition] = []
        self._strings: dict[str, int] = {"": 0}
        self._names = KeyIndex()  # hash -> string id
        self._values = KeyIndex()  # low half of the hash of key and value -> string id
        self._paths = KeyIndex()  # parent << 32 | name -> path id
        self._path_names: list[tuple[int, int]] = [(0, 0)]

    def define(self, definition: Definition) -> None:
        """Hand out a definition with the next batch."""
        self._pending.append(definition)

    def drain(self) -> list[Definition]:
        """Definitions made since the last call, in the order in which they may refer to one another."""
        pending, self._pending = self._pending, []
        return pending

    def string(self, text: str) -> int:
        """Id of a text."""
        known = self._strings.get(text)
        if known is None:
            known = self._strings[text] = len(self._strings)
            self.define(StringInfo(known, text))
        return known

    def path(self, parent: int, name: int) -> int:
        """Id of the operation with string id `name` inside path `parent`."""
        key = parent << 32 | name
        known = self._paths.get(key)
        if known < 0:
            known = len(self._path_names)
            self._path_names.append((parent, name))
            self._paths.add(key, known)
            self.define(PathInfo(known, parent, name))
        return known

    def path_of(self, names: Sequence[str]) -> list[int]:
        """Path ids of nested operations, outermost first: one per level."""
        paths: list[int] = []
        for name in names:
            paths.append(self.path(paths[-1] if paths else 0, self.string(name)))
        return paths

    def paths(self, parents: Ints, names: Ints) -> Ints:
        """Path ids of operations `names` (string ids) inside `parents` (path ids), element by element."""
        keys = (parents.astype(np.uint64) << np.uint64(32)) | names.astype(np.uint64)
        ids = self._paths.lookup(keys)
        missing = ids < 0
        if missing.any():
            for key in np.unique(keys[missing]).tolist():
                self.path(key >> 32, key & 0xFFFFFFFF)
            ids = self._paths.lookup(keys)
        return ids

    def names(self, hashes: NDArray[np.uint64]) -> Ints:
        """String ids of names by hash; where no text came, the id of "(unknown)", and it is counted."""
        return self._known_or_unknown(self._names.lookup(hashes))

    def values(self, hashes: NDArray[np.uint64]) -> Ints:
        """String ids of metadata values by the low half of their hash, like `names`."""
        return self._known_or_unknown(self._values.lookup(hashes))

    def add_name(self, key: int, text: str) -> None:
        """Learn a name by its hash; the first one stays."""
        if self._names.get(key) < 0:
            self._names.add(key, self.string(text))

    def add_texts(self, texts: NDArray[np.void]) -> None:
        """Learn names and values (TEXT_DTYPE records); other kinds of text are left to whom they concern.

        A text is sent once per name and process, so this loop runs per name, not per event.
        """
        index_of = {int(TextKind.NAME): self._names, int(TextKind.VALUE): self._values}
        for record in texts:
            index = index_of.get(int(record["kind"]))
            key = int(record["key"])
            if index is None or index.get(key) >= 0:
                continue
            length = min(int(record["length"]), TEXT_MAX - 1)
            text = record["text"].tobytes()[:length].decode("utf-8", "replace")
            if length == TEXT_MAX - 1:
                self.truncated_names += 1
                text = text.rstrip("\ufffd")  # a character cut in half
            index.add(key, self.string(text))

    def _known_or_unknown(self, ids: Ints) -> Ints:
        missing = ids < 0
        count = int(np.count_nonzero(missing))
        if count:
            self.unknown_names += count
            ids[missing] = self.string(UNKNOWN_OPERATION)
        return ids

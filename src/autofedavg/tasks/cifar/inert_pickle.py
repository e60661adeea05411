"""Reads arrays, numbers and text out of a pickle without running any code from it.

Two barriers. All instructions are checked before the first is executed, and only those that build
plain values pass. The three NumPy names in such files map to stand-ins that only store their
arguments; every other name is refused.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from autofedavg.core.errors import DataError

PLAIN = {
    "PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1",
    "BININT2", "LONG1", "SHORT_BINSTRING", "BINSTRING", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8",
    "SHORT_BINUNICODE", "BINUNICODE", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE",
    "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_DICT", "SETITEM", "SETITEMS", "BINPUT", "LONG_BINPUT",
    "MEMOIZE", "BINGET", "LONG_BINGET", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD",
}  # fmt: skip
MOST = 2**40  # no axis is longer
MEMO = 1_000_000  # largest memo number: memory is allocated for it


class _Inert:
    """Stores its arguments and its state."""

    __slots__ = ("arguments", "state")

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Array(_Inert):
    """The stand-in for `numpy.ndarray` and its constructor."""

    __slots__ = ()


class _Kind(_Inert):
    """The stand-in for `numpy.dtype`."""

    __slots__ = ()


KNOWN = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
}


class _Unpickler(pickle._Unpickler):
    """Python's unpickler, because instructions of the one in C cannot be replaced."""

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in KNOWN:
            raise DataError(f"it imports {module}.{name}, which data does not need")
        return KNOWN[module, name]

    def put_items(self) -> None:
        self._put(self.pop_mark())

    def put_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._put([key, value])

    def _put(self, items: list[Any]) -> None:
        # Hashing deeply nested tuples can take forever, or overflow the stack.
        if not isinstance(self.stack[-1], dict) or any(
            type(key) not in (bytes, str) for key in items[::2]
        ):
            raise DataError("its values have names that are not text")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    dispatch[pickle.SETITEM[0]] = put_item
    dispatch[pickle.SETITEMS[0]] = put_items


def load(content: bytes) -> Any:
    """The plain values in a pickle, bytes for text of Python 2; raises DataError on others."""
    try:
        for instruction, argument, _ in pickletools.genops(content):
            if instruction.name not in PLAIN:
                raise DataError(f"it holds the instruction {instruction.name}")
            if instruction.name == "LONG_BINPUT" and int(argument or 0) > MEMO:
                raise DataError(f"it reserves memory for {argument} values")
        return _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except DataError:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise DataError(f"it is not a valid pickle ({type(error).__name__}: {reason})") from error


def array_of_bytes(value: Any, columns: int) -> np.ndarray:
    """A loaded (rows, columns) array of unsigned bytes; raises DataError on anything else."""
    state = value.state if isinstance(value, _Array) else None
    if not (isinstance(state, tuple) and len(state) == 5):
        raise DataError("it does not hold an array")
    _, shape, kind, fortran, raw = state
    unsigned = isinstance(kind, _Kind) and kind.arguments[:1] in ((b"u1",), ("u1",), ("|u1",))
    whole = isinstance(shape, tuple) and all(type(n) is int and 0 <= n < MOST for n in shape)
    if not (unsigned and whole and fortran is False and isinstance(raw, bytes)):
        raise DataError("its array is not one of unsigned bytes, row by row")
    if len(shape) != 2:
        raise DataError(f"its array has {len(shape)} axes, expected 2")
    if shape[1] != columns or len(raw) != math.prod(shape):
        raise DataError(
            f"its array has the shape {shape} and {len(raw)} bytes, expected (N, {columns})"
        )
    return np.frombuffer(raw, dtype=np.uint8).reshape(shape)

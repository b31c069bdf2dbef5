"""Reads and writes at addresses, copies, and two calls of the operating system, for compiled code over many files.

One call must reach hundreds of mapped files: addresses go in as numbers, and the caller keeps the maps open meanwhile,
which nothing here can check. The calls of the operating system are here for the same reason: one release of the GIL for
all reads of a batch.
"""
# ruff: noqa: ARG001 - Numba takes the parameters of an intrinsic from its names and passes all of them

import os
from collections.abc import Callable
from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = [
    "copy_bytes",
    "file_bytes",
    "load16",
    "load32",
    "load64",
    "load8",
    "prefetch",
    "read_at",
    "store32",
]

_ir = cgutils.ir  # types of LLVM's language

_Typed = tuple[Any, Callable[[Any, Any, Any, Any], Any]]
_as_intrinsic: Callable[[Callable[..., _Typed]], Callable[..., Any]] = intrinsic


def _load(kind: Any) -> _Typed:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], context.get_value_type(kind).as_pointer())
        value = builder.load(pointer)
        value.align = 1  # the arrays of an .idx start at byte 34
        return value

    return kind(types.int64), generate


@_as_intrinsic
def load8(typing_context: Any, address: Any) -> _Typed:
    """Unsigned 8-bit integer at an address (int64)."""
    return _load(types.uint8)


@_as_intrinsic
def load16(typing_context: Any, address: Any) -> _Typed:
    """Unsigned 16-bit integer at an address (int64) of any alignment."""
    return _load(types.uint16)


@_as_intrinsic
def load32(typing_context: Any, address: Any) -> _Typed:
    """Signed 32-bit integer at an address (int64) of any alignment."""
    return _load(types.int32)


@_as_intrinsic
def load64(typing_context: Any, address: Any) -> _Typed:
    """Signed 64-bit integer at an address (int64) of any alignment."""
    return _load(types.int64)


@_as_intrinsic
def store32(typing_context: Any, address: Any, value: Any) -> _Typed:
    """Writes a signed 32-bit integer to an address (int64) of any alignment."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], context.get_value_type(types.int32).as_pointer())
        builder.store(arguments[1], pointer, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int32), generate


@_as_intrinsic
def copy_bytes(typing_context: Any, target: Any, source: Any, count: Any) -> _Typed:
    """Copies `count` bytes from the address `source` to the address `target`; the ranges do not overlap. All int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target = builder.inttoptr(arguments[0], cgutils.voidptr_t)
        source = builder.inttoptr(arguments[1], cgutils.voidptr_t)
        cgutils.raw_memcpy(builder, target, source, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@_as_intrinsic
def prefetch(typing_context: Any, address: Any) -> _Typed:
    """Asks the processor to bring the cache line of an address (int64); never faults, whatever the address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = _ir.IntType(32)
        kind = _ir.FunctionType(_ir.VoidType(), [cgutils.voidptr_t, word, word, word])
        function = builder.module.declare_intrinsic("llvm.prefetch", (cgutils.voidptr_t,), kind)
        pointer = builder.inttoptr(arguments[0], cgutils.voidptr_t)
        builder.call(function, [pointer, word(0), word(3), word(1)])  # to read, kept near, data
        return context.get_dummy_value()

    return types.void(types.int64), generate


@_as_intrinsic
def file_bytes(typing_context: Any, descriptor: Any) -> _Typed:
    """Bytes of an open file by its descriptor (int64), as int64; -1 where it cannot be told. Moves its position."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, long = _ir.IntType(32), _ir.IntType(64)
        kind = _ir.FunctionType(long, [word, long, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "lseek")
        return builder.call(function, [builder.trunc(arguments[0], word), long(0), word(os.SEEK_END)])

    return types.int64(types.int64), generate


@_as_intrinsic
def read_at(typing_context: Any, descriptor: Any, ranges: Any, count: Any, start: Any) -> _Typed:
    """Reads a file from byte `start` into memory ranges, one after the other, by one `preadv`.

    `ranges` is the address of `count` pairs of address and length, at most 1,024; all int64. The bytes read, which may
    be fewer, or -1.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, long = _ir.IntType(32), _ir.IntType(64)
        kind = _ir.FunctionType(long, [word, cgutils.voidptr_t, word, long])
        function = cgutils.get_or_insert_function(builder.module, kind, "preadv")
        pointer = builder.inttoptr(arguments[1], cgutils.voidptr_t)
        return builder.call(
            function, [builder.trunc(arguments[0], word), pointer, builder.trunc(arguments[2], word), arguments[3]]
        )

    return types.int64(types.int64, types.int64, types.int64, types.int64), generate

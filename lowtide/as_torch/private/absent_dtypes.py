"""dtypes that PyTorch has and lowtide does not: to be compared with, and refused when used."""

from __future__ import annotations

from typing import Any

import ml_dtypes

import lowtide as _lt


class AbsentDtype:
    """A dtype that no tensor has: it equals itself alone, and no operation takes it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"torch.{self.name}"


NAMES = """complex32 quint8 qint8 qint32 quint4x2 quint2x4 bits8 bits16 bits1x8 bits2x4 bits4x2
float4_e2m1fn_x2 int1 int2 int3 int4 int5 int6 int7 uint1 uint2 uint3 uint4 uint5 uint6 uint7
float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"""
FUNCTIONS = {name: AbsentDtype(name) for name in NAMES.split()}
FUNCTIONS["chalf"] = FUNCTIONS["complex32"]


class finfo(_lt.finfo):
    """Limits of a floating type, those of the absent 8-bit ones among them."""

    def __init__(self, type: Any = None) -> None:
        if not isinstance(type, AbsentDtype):
            super().__init__(type)
            return
        if not type.name.startswith("float8"):
            raise TypeError(f"finfo takes a floating dtype; got {type!r}.")
        info: Any = ml_dtypes.finfo(getattr(ml_dtypes, type.name))  # type: ignore[no-untyped-call]
        self.dtype, self.bits = type.name, int(info.bits)
        self.eps, self.max, self.min = float(info.eps), float(info.max), float(info.min)
        self.tiny = self.smallest_normal = float(info.smallest_normal)
        self.resolution = float(info.resolution)

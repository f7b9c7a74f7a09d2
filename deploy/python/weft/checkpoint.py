# SPDX-License-Identifier: Apache-2.0
"""A checkpoint opened from Python: safetensors files mapped into memory, slices of all ranks put together.

A tensor that one rank saved whole is a view of the mapped file, without a copy; one that was cut over ranks is put
together when it is asked for. common/ckpt/README.md has the format.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_STEP = re.compile(r"step-(\d+)\.a(\d+)")
_FILE = re.compile(r"[A-Za-z0-9._-]+\.safetensors")
# What numpy calls a dtype of safetensors. numpy has no bfloat16: those are read as u16 and widened, or, for torch, viewed.
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "U32": "<u4", "U8": "u1"}
_STATES = ("m/", "v/", "momentum/")  # of the optimiser, before the name of its parameter


def _newest(folder: Path) -> Path:
    """`folder` itself if it is a checkpoint; else the newest committed one in this folder of a job's."""
    if (folder / "MANIFEST.json").exists():
        return folder
    found = [(int(m[2]), int(m[1]), p) for p in folder.iterdir() if (m := _STEP.fullmatch(p.name)) and (p / "COMMIT").exists()]
    if not found:
        raise FileNotFoundError(f"{folder}: neither a checkpoint nor a folder of checkpoints that has one")
    return max(found)[2]


class Checkpoint(Mapping[str, Any]):
    """The tensors of a checkpoint by their names. `step` and `manifest` say what it is."""

    def __init__(self, folder: str | os.PathLike[str], *, to: str, optimizer: bool, tensors: str | None) -> None:
        import numpy

        if to not in ("numpy", "torch"):
            raise ValueError(f"to: numpy or torch, not {to!r}")
        self._numpy, self._to = numpy, to
        self.folder = _newest(Path(folder))
        text = (self.folder / "MANIFEST.json").read_bytes()
        if (self.folder / "COMMIT").read_text().strip() != hashlib.sha256(text).hexdigest():
            raise ValueError(f"{self.folder}: COMMIT does not seal this MANIFEST.json: the checkpoint is damaged")
        self.manifest: dict[str, Any] = json.loads(text)
        self.step: int = self.manifest["step"]
        self._files = {f["name"]: f["bytes"] for f in self.manifest["files"]}
        self._maps: dict[str, Any] = {}
        names = {t["name"] for t in self.manifest["tensors"]}
        states = {before + name for before in _STATES for name in names}
        self._tensors = {
            t["name"]: t
            for t in self.manifest["tensors"]
            if (optimizer or t["name"] not in states) and fnmatch.fnmatchcase(t["name"], tensors or "*")
        }

    def __len__(self) -> int:
        return len(self._tensors)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __repr__(self) -> str:
        return f"<weft checkpoint of step {self.step}, {len(self)} tensors, {self.folder}>"

    def _map(self, name: str) -> Any:
        if name not in self._maps:
            if not _FILE.fullmatch(name) or name not in self._files:
                raise ValueError(f"{self.folder}: {name!r} is no file of this checkpoint")
            path = self.folder / name
            if path.stat().st_size != self._files[name]:
                raise ValueError(f"{path} has {path.stat().st_size} bytes, not {self._files[name]}: it is damaged")
            self._maps[name] = self._numpy.memmap(path, dtype="u1", mode="r")
        return self._maps[name]

    def _slice(self, piece: Mapping[str, Any], dtype: str) -> Any:
        offset, size, shape = piece["offset"], piece["bytes"], piece["shape"]
        whole = self._map(piece["file"])
        if not 0 <= offset <= offset + size <= len(whole) or math.prod(shape) * self._numpy.dtype(dtype).itemsize != size:
            raise ValueError(f"{self.folder}/{piece['file']}: a slice lies outside of the file")
        return whole[offset : offset + size].view(dtype).reshape(shape)

    def __getitem__(self, name: str) -> Any:
        t = self._tensors[name]
        if t["dtype"] not in _DTYPES:
            raise ValueError(f"{self.folder}: tensor {name!r} is of {t['dtype']}, which is not read here")
        dtype, shape, slices = _DTYPES[t["dtype"]], tuple(t["shape"]), t["slices"]
        if len(slices) == 1 and tuple(slices[0]["shape"]) == shape:
            array = self._slice(slices[0], dtype)
        else:
            array = self._numpy.zeros(shape, dtype)  # slices that overlap leave holes, not what memory held
            if sum(math.prod(piece["shape"]) for piece in slices) != array.size:
                raise ValueError(f"{self.folder}: the slices of tensor {name!r} do not cover it")
            for piece in slices:
                box = tuple(slice(a, a + n) for a, n in zip(piece["start"], piece["shape"]))
                array[box] = self._slice(piece, dtype)
        array = array[tuple(slice(n) for n in t["unpadded"])]
        return self._as_torch(array, t["dtype"]) if self._to == "torch" else self._as_numpy(array, t["dtype"])

    def _as_numpy(self, array: Any, dtype: str) -> Any:
        """numpy's own types: bf16 as float32, in which every bf16 is exact."""
        if dtype != "BF16":
            return array
        return (array.astype("<u4") << 16).view("<f4")

    def _as_torch(self, array: Any, dtype: str) -> Any:
        import torch

        # torch has no read-only tensors, and the file is mapped to be read only: a copy.
        own = self._numpy.array(array, order="C")
        return torch.from_numpy(own.view("<i2")).view(torch.bfloat16) if dtype == "BF16" else torch.from_numpy(own)


def load(
    folder: str | os.PathLike[str], *, to: str = "numpy", optimizer: bool = False, tensors: str | None = None
) -> Checkpoint:
    """A checkpoint's tensors as {name: array}, each read when it is asked for.

    folder: a checkpoint (…/step-00000500.a1) or a job's folder of them, then its newest.
    to: "numpy" (bf16 becomes float32) or "torch". optimizer: the optimiser's state too, as m/NAME and v/NAME.
    tensors: a glob over names, as "layers/0/*". Without the rows that padding adds.
    `weft ckpt verify` compares every byte with its digest; this compares sizes and the manifest's seal."""
    return Checkpoint(folder, to=to, optimizer=optimizer, tensors=tensors)

"""Masks as they come: arrays, tensors, files."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

DTYPES = "a mask is bool, or uint8 or (little-endian) int64 of 0 and 1"  # the same sentence as for files of the command
SHAPES = "an array is [heads, q, kv] or [batch, heads, q, kv], a file [lanes, q, kv] or [layers, lanes, q, kv]"
LAYERS = "; with layers=True an array is [layers, heads, q, kv] or [layers, batch, heads, q, kv]"


def _only_array(arrays: Any, path: str) -> Any:
    names = list(arrays)
    if len(names) != 1:
        raise ValueError(f"{path}: holds {', '.join(names) or 'nothing'}; a file of masks holds one array")
    return arrays[names[0]]


def _read(path: str) -> np.ndarray:
    extension = os.path.splitext(path)[1]
    if extension == ".npy":
        return np.load(path, allow_pickle=False)
    if extension == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return _only_array(arrays, path)
    if extension in (".pt", ".pth"):
        import torch

        loaded = torch.load(path, map_location="cpu", weights_only=True)
        return np.asarray(_only_array(loaded, path) if isinstance(loaded, dict) else loaded)
    raise ValueError(f"{path}: masks are read from .npy, .npz and .pt")


def _bits(array: np.ndarray) -> np.ndarray:
    """uint8 of 0 and 1."""
    if array.dtype == bool:
        return np.ascontiguousarray(array).view(np.uint8)
    if array.dtype not in (np.dtype(np.uint8), np.dtype(np.int64)):
        raise ValueError(f"a mask of dtype {array.dtype}: {DTYPES}")
    if array.size and (array.min() < 0 or array.max() > 1):
        raise ValueError(f"a mask that holds {array[(array != 0) & (array != 1)].flat[0]}: {DTYPES}")
    return np.ascontiguousarray(array, np.uint8)


def one_layer_of(mask: Any, batch: int | None) -> np.ndarray:
    """[batch, heads, q, kv] of uint8, for calls that take one layer."""
    if isinstance(mask, (str, os.PathLike)):
        array = _read(os.fspath(mask))
        if array.ndim > 3:
            raise ValueError(f"{os.fspath(mask)}: shape {array.shape} has layers; load it and give one of them, [lanes, q, kv]")
        mask = array
    return layers_of(mask, batch, layers=False, shapes=SHAPES)[0]


def layers_of(mask: Any, batch: int | None, layers: bool, shapes: str = SHAPES + LAYERS) -> list[np.ndarray]:
    """A mask per layer, [batch, heads, q, kv] of uint8, whatever was given; one batch item is repeated."""
    is_file = isinstance(mask, (str, os.PathLike))
    array = _bits(_read(os.fspath(mask)) if is_file else np.asarray(mask))
    if is_file and array.ndim == 4 and not layers:
        raise ValueError(f"{os.fspath(mask)}: shape {array.shape} has layers; give layers=True; {shapes}")
    rank = array.ndim - (1 if layers else 0)
    if rank != 3 and (is_file or rank != 4):
        raise ValueError(f"a mask of shape {array.shape}{' with layers=True' if layers else ''}: {shapes}")
    if not layers:
        array = array[None]
    if rank == 3:
        array = array[:, None]
    if batch is not None and array.shape[1] == 1:
        array = np.broadcast_to(array, (array.shape[0], batch, *array.shape[2:]))
    return [np.ascontiguousarray(layer) for layer in array]

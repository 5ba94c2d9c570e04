"""Stand-ins with the methods of a PyTorch tensor, which is too large a package to install for a test."""

from typing import Any

import numpy as np


class Tensor:
    """Values that are reached only as one reaches a tensor's: detached, on the CPU, then as NumPy."""

    def __init__(self, values: Any, dtype: Any = None, *, where: str = "gpu with gradient") -> None:
        self._values = np.asarray(values, dtype)
        self._where = where

    def detach(self) -> "Tensor":
        return type(self)(self._values, where="gpu")

    def cpu(self) -> "Tensor":
        assert self._where == "gpu"
        return type(self)(self._values, where="cpu")

    def numpy(self) -> Any:
        assert self._where == "cpu"
        return self._values


class Bfloat16Tensor(Tensor):
    """A tensor of an element type that NumPy does not have."""

    def numpy(self) -> Any:
        raise TypeError("Got unsupported ScalarType BFloat16")

    def float(self) -> Tensor:
        return Tensor(self._values.astype(np.float32), where="cpu")


class HostileTensor(Tensor):
    def detach(self) -> "Tensor":
        raise RuntimeError("the key is sk-live-do-not-log")

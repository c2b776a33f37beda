"""Files of weights and the storages behind them: safetensors, and who asks for shared memory."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.testbed.training import Rows, array, fill, filled, program

DTYPES = (
    "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool uint16 uint32 uint64 "
    "float8_e4m3fn float8_e5m2 complex64"
).split()
LAYOUTS = ("whole", "scalar", "empty", "part", "transposed", "stepped", "expanded", "shared")
ROUTES = ("bytes", "mmap", "pread", "tensor", "slice")


def numbers(x: Any) -> np.ndarray:
    """Values of any dtype as float64; of a complex number its two parts."""
    x = torch.view_as_real(x) if x.dtype.is_complex else x
    found = np.array(x.tolist(), dtype=np.float64)
    return np.append(found.ravel(), [*x.shape, x.element_size()])


def outcome(call: Any) -> np.ndarray:
    """What a call gives as numbers, or which error it raises."""
    try:
        return numbers(call())
    except (RuntimeError, ValueError, KeyError) as error:
        first = str(error).strip().split("`")[0].split(":")[0]
        return np.frombuffer(f"{type(error).__name__} {first[:60]}".encode(), np.uint8)


def drawn(rng: random.Random, dtype: str, layout: str) -> dict[str, Any]:
    """Tensors under names, of one dtype and layout."""
    rows, columns = rng.randrange(1, 5), rng.randrange(2, 5)
    values = [rng.randrange(2 if dtype == "bool" else 100) for _ in range(rows * columns)]
    base = torch.tensor(values, dtype=torch.float32).reshape(rows, columns)
    x = base.to(getattr(torch, dtype))
    if layout == "scalar":
        x = x[0, 0].clone()
    elif layout == "empty":
        x = torch.empty(0, columns, dtype=x.dtype)
    elif layout == "part":
        x = x[rows - 1 :]
    elif layout == "transposed":
        x = x.t()
    elif layout == "stepped":
        x = x[:, ::2]
    elif layout == "expanded":
        x = x[:1].expand(3, columns)
    if layout == "shared":
        return {"a": x, "b": x[:1]}
    return {"a": x, "b": torch.ones(3, dtype=torch.uint8)}


@program("safetensors", "float32")
def every_dtype_layout_and_route() -> Rows:
    from safetensors import safe_open
    from safetensors.torch import load, load_file, save, save_file

    def read(tensors: Any, path: Path, route: str) -> Any:
        if route == "bytes":
            return load(save(tensors))["a"]
        save_file(tensors, path, metadata={"format": "pt"})
        if route in ("mmap", "pread"):
            return load_file(path, backend=route)["a"]
        with safe_open(path, framework="pt", device="cpu") as file:
            assert file.metadata() == {"format": "pt"}
            assert sorted(file.keys()) == sorted(file.offset_keys()) == ["a", "b"]
            if route == "tensor":
                return file.get_tensor("a")
            part = file.get_slice("a")
            return part[:1] if part.get_shape() else part[...]

    rng, rows = random.Random(0), {}
    with tempfile.TemporaryDirectory() as folder:
        for dtype in DTYPES:
            for layout in LAYOUTS:
                for route in ROUTES:
                    tensors = drawn(rng, dtype, layout)
                    path = Path(folder, f"{dtype} {layout} {route}")
                    name = f"{dtype} {layout} {route}"
                    rows[name] = outcome(lambda t=tensors, p=path, r=route: read(t, p, r))
    return rows


@program("safetensors", "float32")
def what_is_read_may_be_written() -> Rows:
    from safetensors.torch import load_file, save_file

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.safetensors")
        save_file({"a": filled(3, 4), "b": filled(2, salt=1)}, path)
        first = load_file(path)
        first["a"].mul_(2).add_(1)
        weight = torch.nn.Parameter(first["b"])
        (weight**2).sum().backward()
        with torch.no_grad():
            weight.sub_(weight.grad)
        again = load_file(path)  # the file stays as it was
    return {
        "a": array(first["a"]),
        "b": array(weight),
        **{f"again {k}": array(again[k]) for k in again},
    }


class Tied(torch.nn.Module):
    """Two layers with one weight, and a buffer that is part of another."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.register_buffer("table", torch.arange(6.0))
        self.register_buffer("head", self.table[:2].clone())


@program("safetensors", "float32")
def models_with_shared_weights() -> Rows:
    from safetensors import safe_open
    from safetensors.torch import load_model, save_file, save_model

    model, other = fill(Tied()), Tied()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.safetensors")
        refused = outcome(lambda: save_file(model.state_dict(), path))
        save_model(model, str(path))
        missing, unexpected = load_model(other, path)
        with safe_open(path, framework="pt") as file:
            kept, names = file.metadata(), sorted(file.keys())
        wrong = outcome(lambda: load_model(torch.nn.Linear(2, 2), path))
    assert not missing
    assert not unexpected
    assert kept == {"b.weight": "a.weight"}
    assert names == ["a.bias", "a.weight", "b.bias", "head", "table"]
    assert other.a.weight is other.b.weight
    found = {name: array(value) for name, value in other.state_dict().items()}
    return {"refused": refused, "wrong": wrong, **found}


@program("accelerate", "float32")
def storages_and_tied_parameters() -> Rows:
    from accelerate import PartialState
    from accelerate.utils import find_tied_parameters, id_tensor_storage, retie_parameters
    from accelerate.utils.modeling import compute_module_sizes, load_state_dict
    from accelerate.utils.other import clean_state_dict_for_safetensors, save

    model = fill(Tied())
    PartialState(cpu=True)  # its logger asks for it
    tied = find_tied_parameters(model)
    assert [sorted(group) for group in tied] == [["a.weight", "b.weight"]]
    device, start, size = id_tensor_storage(model.table)
    assert (device, start) == (torch.device("cpu"), model.table.data_ptr())
    assert id_tensor_storage(model.table[2:]) == (device, start, size)
    state = clean_state_dict_for_safetensors(model.state_dict())
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "m.safetensors"))
        save(model.state_dict(), path, safe_serialization=True)
        read = load_state_dict(path)
        mapped = load_state_dict(path, device_map={"": "cpu"})
    assert set(read) == set(mapped) == set(state)
    model.b.weight = torch.nn.Parameter(torch.zeros(4, 4))
    retie_parameters(model, tied)
    assert model.b.weight is model.a.weight
    sizes = compute_module_sizes(model)
    rows = {name: array(value) for name, value in read.items()}
    return {**rows, "sizes": np.array([size, *(sizes[k] for k in sorted(sizes))])}


@program("transformers", "float32")
def storages_of_parts() -> Rows:
    from transformers.pytorch_utils import id_tensor_storage

    x = filled(4, 6)
    parts = [x, x[1], x.t(), x[:, ::2], x.clone(), torch.empty(0), x.detach(), x.data]
    found = [id_tensor_storage(part) for part in parts]
    alike = [[a == b for b in found] for a in found]
    sizes = [size for _, _, size in found]
    offsets = [part.storage_offset() for part in parts]
    lent = torch.tensor([]).set_(x.untyped_storage(), 6, (2, 2), (6, 1))
    raw = torch.ByteStorage._from_buffer(b"lowtide")
    return {
        "alike": np.array(alike, dtype=float),
        "sizes": np.array(sizes),
        "offsets": np.array(offsets),
        "set": array(lent),
        "typed": np.array(x.storage().tolist()),
        "bytes": array(torch.ByteTensor(raw)),
    }

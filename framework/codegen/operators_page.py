"""Generator of ``docs/operators.md``: every op, what it saves, and differences to PyTorch.

``python -m lowtide.framework.codegen.operators_page`` rewrites the page, ``--check`` fails if it is
out of date; a test holds it current. Everything is read off the declarations, but for two lists
below: differences from PyTorch, and PyTorch's names that are not here.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .. import ops
from ..distributions.sampling import implicit_gradients as _draws
from ..ops.registry import FUNCTIONS, OPS, Op
from ..tensor import Tensor

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operators.md"
PACKAGE = ops.__name__
FACES = ("nn.functional", "linalg", "fft", "special", "signal.windows")  # beside the package
OUTSIDE = _draws.__package__  # the one other folder that declares ops

# Where a function differs from PyTorch's of the same name, on purpose.
DIFFERS: dict[str, str] = {
    "as_strided_scatter": "the gradient of what is replaced is zero; PyTorch's fails its gradcheck",
    "complex": "float16 parts make complex64: there is no complex32",
    "nextafter": "the result does not require grad; PyTorch's does, and its backward fails",
    "ctc_loss": "the gradient is that of the function; PyTorch adds `exp(log_probs)` to it, which "
    "`log_softmax` before it cancels. Sequences of infinite loss get a zero gradient, not NaN. "
    "Has second gradients",
    "embedding_bag": "`scale_grad_by_freq` divides each row by its own count. Has second gradients",
    "grid_sample": "has second gradients",
    "interpolate": "no mode `lanczos`; bytes only by the nearest. Where a scale leaves every size "
    "as it is, the gradient is that of the function; PyTorch mixes resampling and copying between "
    "forward and backward",
    "addbmm": "integer tensors refuse a fractional `beta` or `alpha`; PyTorch cuts it to 0",
    "addmv": "integer tensors refuse a fractional `beta` or `alpha`; PyTorch cuts it to 0",
    "baddbmm": "integer tensors refuse a fractional `beta` or `alpha`; PyTorch cuts it to 0",
    **dict.fromkeys(
        ("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1"),
        "right to 1e-15 in float64, PyTorch's to some 1e-7. Has gradients",
    ),
    **dict.fromkeys(
        (
            "modified_bessel_k0",
            "modified_bessel_k1",
            "scaled_modified_bessel_k0",
            "scaled_modified_bessel_k1",
            "spherical_bessel_j0",
            "airy_ai",
            "chebyshev_polynomial_t",
            "chebyshev_polynomial_u",
            "chebyshev_polynomial_v",
            "chebyshev_polynomial_w",
            "shifted_chebyshev_polynomial_t",
            "shifted_chebyshev_polynomial_u",
            "shifted_chebyshev_polynomial_v",
            "shifted_chebyshev_polynomial_w",
            "hermite_polynomial_h",
            "hermite_polynomial_he",
            "laguerre_polynomial_l",
            "legendre_polynomial_p",
        ),
        "has gradients",
    ),
    "linear_cross_entropy": "always a tile of logits at a time, label smoothing included, and "
    "backward can be repeated; of `options`, `batch_chunk_size` is used and nothing else needed",
    "vector_norm": "second gradients at 0 are 0; PyTorch's are NaN",
    "max_pool1d": "keeps one byte per output element, not the input",
    "max_pool2d": "keeps one byte per output element, not the input",
    "max_pool3d": "keeps one byte per output element, not the input",
    "scaled_dot_product_attention": "a row that sees nothing is zero",
    "rand": "one stream for all devices: other numbers than PyTorch's for the same seed",
    "randn": "one stream for all devices: other numbers than PyTorch's for the same seed",
    "dropout": "one stream for all devices: other numbers than PyTorch's for the same seed; the "
    "mask is replayed from the stream's position",
}

# PyTorch's functions that are not here, and why.
ABSENT: dict[str, str] = {
    "Compilers, tracing and symbolic sizes are not planned": "cond while_loop sym_float sym_int "
    "sym_ite sym_max sym_min sym_not sym_sqrt sym_sum import_ir_module parse_ir parse_schema",
    "Sparse tensors in blocks, and older names of their products": "hsmm hspmm saddmm smm "
    "sspaddmm sparse_bsc_tensor sparse_bsr_tensor resize_as_sparse_ "
    "ccol_indices_copy col_indices_copy crow_indices_copy indices_copy row_indices_copy "
    "values_copy",
    "Masked tensors are not planned; fill with `where`, then call the function": "masked.amax "
    "masked.amin masked.argmax masked.argmin masked.cumprod masked.cumsum masked.log_softmax "
    "masked.logaddexp masked.logsumexp masked.mean masked.median masked.norm masked.normalize "
    "masked.prod masked.softmax masked.softmin masked.std masked.sum masked.var",
    "There is no complex32": "chalf",
    "Kernels from C++ text, for a GPU": "jiterator_2inputs_2outputs "
    "jiterator_4inputs_with_extra_args jiterator_binary jiterator_binary_return_by_ref "
    "jiterator_unary",
    "Quantized tensors are not planned": "dequantize empty_quantized "
    "fake_quantize_per_channel_affine fake_quantize_per_tensor_affine int_repr "
    "q_per_channel_axis q_per_channel_scales q_per_channel_zero_points q_scale q_zero_point "
    "quantize_per_channel quantize_per_tensor quantize_per_tensor_dynamic quantized_batch_norm "
    "quantized_gru quantized_lstm quantized_max_pool1d quantized_max_pool2d quantized_max_pool3d",
    "Bindings of vendors' libraries; the plain name does the same": "cudnn_affine_grid_generator "
    "cudnn_batch_norm cudnn_convolution cudnn_convolution_add_relu cudnn_convolution_relu "
    "cudnn_convolution_transpose cudnn_grid_sampler cudnn_is_acceptable miopen_batch_norm "
    "miopen_convolution miopen_ctc_loss miopen_rnn mkldnn_adaptive_avg_pool2d mkldnn_convolution "
    "mkldnn_max_pool2d mkldnn_max_pool3d mkldnn_rnn_layer",
    "PyTorch's internal steps of another function": "batch_norm_backward_elemt "
    "batch_norm_backward_reduce batch_norm_elemt batch_norm_gather_stats batch_norm_stats "
    "batch_norm_update_stats native_batch_norm native_channel_shuffle native_dropout "
    "native_group_norm native_layer_norm native_norm affine_grid_generator grid_sampler "
    "grid_sampler_2d grid_sampler_3d _chunk_cat _segment_reduce segment_reduce slice slice_inverse "
    "_softmax_backward_data _unsafe_masked_index _unsafe_masked_index_put_accumulate "
    "_batch_norm_with_update _native_batch_norm_legit _upsample_bilinear2d_aa "
    "max_pool2d_with_indices_backward native_dropout_backward torch._scaled_mm torch._scaled_mm_v2 "
    "torch.ops.aten._efficient_attention_forward torch.ops.aten._flash_attention_forward "
    "torch.ops.aten._safe_softmax.default",
    "Removed from PyTorch; they only raise there": "eig lstsq matrix_rank solve symeig",
    "Recurrent steps with all weights in a list; use the modules": "gru gru_cell lstm lstm_cell "
    "rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell",
}

# Operators of PyTorch's own catalogue whose value, first and second gradient equal PyTorch's on
# each of the catalogue's samples; tests/parity/test_every_operator.py counts them.
AGREEING = 428


def absent_names() -> frozenset[str]:
    """List PyTorch's names that lowtide does not have."""
    return frozenset(" ".join(ABSENT.values()).split())


_PROMOTES = {
    None: "as given",
    "same": "equal",
    "arith": "promoted",
    "float": "promoted, integers to float",
    "number": "promoted, no bool",
}
_HALVES = {
    "exact": "16-bit exact",
    "float32": "16-bit in float32",
    "tiles": "16-bit in float32, by tiles",
}


def differentiated(op: Op) -> str:
    """Describe what an op saves for backward, by input: "other (for input), ..."."""
    if not op.rules:
        return "no gradient"
    values = (*op.inputs, *op.returns, *op.aux)
    said = []
    for rule in op.rules:
        kept = " and ".join(n for n in rule.names if n in values) or "nothing"
        said.append(f"{kept} (for {', '.join(rule.inputs)})")
    return ", ".join(said)


def second(op: Op) -> str:
    """Describe how the backward of an op is differentiated."""
    if not op.rules:
        return ""
    aux = any(name in op.aux for rule in op.rules for name in rule.names)
    return "its composition" if aux and op.composition is not None else "its rules"


def dtypes(op: Op) -> str:
    """Describe how an op treats the dtypes of its inputs."""
    rule, names = (
        (op.promote[0], op.promote[1]) if isinstance(op.promote, tuple) else (op.promote, ())
    )
    said = _PROMOTES.get(rule, str(rule))
    if names:
        said += f" ({', '.join(names)})"
    return f"{said}; {_HALVES[op.half]}"


def devices(op: Op) -> str:
    """List the devices of an op, and those with a separate kernel."""
    meta = "" if op.adopt and op.infer is None else ", meta"
    own = ", ".join(sorted({k.device for k in op.kernels}))
    return f"cpu, cuda{meta}" + (f"; own kernel on {own}" if own else "")


def parts(function: Callable[..., Any]) -> list[str]:
    """List the ops that a composition calls, directly or in helpers of its file."""
    found: set[str] = set()
    seen: set[Any] = set()

    def visit(f: Any) -> None:
        f = inspect.unwrap(f)
        if f in seen or not hasattr(f, "__code__"):
            return
        seen.add(f)
        for name in _names(f.__code__):
            value = f.__globals__.get(name)
            if isinstance(getattr(value, "op", None), Op):
                found.add(value.op.name)
            elif inspect.isfunction(value) and value.__module__.startswith(PACKAGE):
                if value is FUNCTIONS.get(name):
                    found.add(name)
                elif value.__module__ == function.__module__:
                    visit(value)

    visit(function)
    return sorted(found - {getattr(function, "__name__", "")})


def _names(code: types.CodeType) -> Iterator[str]:
    # Comprehensions are code of their own before Python 3.12.
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def methods(name: str, function: Any) -> str:
    """List the Tensor methods of a function: method, operators, in-place version."""
    found = sorted(
        n for n, value in Tensor.__dict__.items() if value is function and not n.startswith("_")
    )
    twin = f"{name}_"
    op = getattr(function, "op", None)
    if op is not None and op.inplace and not op.inplace.startswith("_"):
        twin = op.inplace
    if twin in Tensor.__dict__ and not name.startswith("_") and "windows" not in _home(function):
        found.append(twin)
    return ", ".join(f"`.{n}`" for n in dict.fromkeys(found))


def _home(function: Any) -> str:
    op = getattr(function, "op", None)
    return str(op.plain.__module__ if op is not None else function.__module__)


def _public(name: str, function: Any) -> str:
    # Where users find it: a public module, or a method; else the function that it is a part of.
    modules = {
        home: importlib.import_module(f"{PACKAGE.partition('.')[0]}.{home}") for home in FACES
    }
    for home, module in modules.items():
        if getattr(module, name, None) is function:
            return f"{home}.{name}"
    for method, value in Tensor.__dict__.items():
        if value is function or getattr(value, "fget", None) is function:
            return f"Tensor.{method}"
    found = [home for home, module in modules.items() if hasattr(module, name)]
    return f"{found[0]}.{name}" if found else f"_{name}"


def entries() -> dict[str, list[tuple[str, Any]]]:
    """List (shown name, function) of all functions, by the module that declares them."""
    found: dict[str, dict[str, Any]] = {}
    for name, function in FUNCTIONS.items():
        if not (name.endswith("_") and name[:-1] in FUNCTIONS):
            found.setdefault(_home(function), {})[name] = function
    for name, op in OPS.items():
        if name not in FUNCTIONS:
            found.setdefault(op.plain.__module__, {})[name] = op.function
    known = {id(f) for group in found.values() for f in group.values()}
    for module in sorted(m for m in sys.modules if m.startswith(PACKAGE + ".")):
        for name, value in vars(sys.modules[module]).items():
            if name.startswith("_") or not inspect.isfunction(value) or id(value) in known:
                continue
            here = (value.__module__, value.__name__) == (module, name)
            if here and hasattr(value, "samples"):  # what @function declares
                found.setdefault(module, {})[_public(name, value)] = value
    return {
        module: sorted(group.items(), key=lambda e: (e[0].startswith("_"), e[0]))
        for module, group in sorted(found.items())
        if module.startswith((PACKAGE + ".", f"{OUTSIDE}."))
    }


def row(shown: str, function: Any) -> str:
    """Format one row of a table."""
    name = shown.rpartition(".")[2]
    op = getattr(function, "op", None)
    if op is not None:
        cells = [dtypes(op), devices(op), differentiated(op), second(op)]
    else:
        used = parts(function)
        kept = "as its parts" + (": " + ", ".join(f"`{n}`" for n in used) if used else "")
        cells = ["as its parts", "as its parts", kept, "as its parts"]
    return (
        f"| `{shown}` | "
        + " | ".join([methods(name, function), *cells, DIFFERS.get(name, "")])
        + " |"
    )


INTRODUCTION = """\
Generated from the declarations by `python -m lowtide.framework.codegen.operators_page`; do not
edit.

Names without a prefix are in `lowtide`, others where their prefix says. Ops that are in neither are
part of a function of `nn.functional`.
Names that begin with an underscore are internal: the ops that functions are made of.

What an op keeps for backward is what its gradient rules name, and only for the inputs that need a
gradient; shapes and dtypes are free. *16-bit in float32*: float16 and bfloat16 are computed in
float32 and rounded once. Second gradients go through the rules, which are made of these ops
themselves, or through the plain composition of a fused op.

PyTorch's test suite comes with a catalogue of its operators and some 19,000 sample calls. Values,
first and second gradients of {agreeing} differentiable operators equal PyTorch's on each of their
samples.
"""


def _lines() -> Iterator[str]:
    yield "# Operators"
    yield ""
    yield INTRODUCTION.format(agreeing=AGREEING)
    for module, group in entries().items():
        doc = inspect.getdoc(sys.modules[module]) or ""
        yield f"## {module.removeprefix(PACKAGE + '.').removeprefix('lowtide.framework.')}"
        yield ""
        yield doc.partition("\n")[0]
        yield ""
        yield "| function | method, twin | dtypes | devices | keeps | second gradient | differs |"
        yield "|---|---|---|---|---|---|---|"
        for shown, function in group:
            yield row(shown, function)
        yield ""
    yield "## Not here"
    yield ""
    for reason, names in ABSENT.items():
        yield f"- {reason}: " + ", ".join(f"`{n}`" for n in sorted(names.split())) + "."


def page() -> str:
    """Build the whole page as Markdown."""
    return "\n".join(_lines()) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or compare it with the one on disk.

    Args:
        arguments: ``["--check"]`` or nothing; those of the command line by default.

    Returns:
        0, or 1 if the page is out of date.
    """
    check = "--check" in (sys.argv[1:] if arguments is None else arguments)
    text = page()
    if not check:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print(f"{PAGE.name} is out of date: run python -m lowtide.framework.codegen.operators_page")
    return 1


if __name__ == "__main__":
    sys.exit(main())

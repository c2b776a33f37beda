"""Thin namespaces: real where they compute, honest where they only steer, refusals by name."""

from __future__ import annotations

import copy
from collections import OrderedDict
from pathlib import Path

import pytest

import lowtide as lt
from lowtide import hub, jit, library, nn, overrides
from lowtide.nn import _reduction, attention
from lowtide.utils import cpp_extension
from lowtide.utils.hooks import RemovableHandle

REFUSALS = {
    "onnx.export": (lambda: lt.onnx.export(None), "lowtide writes no ONNX files"),
    "jit.save": (lambda: jit.save(nn.ReLU(), "f"), "has no TorchScript"),
    "jit.load": (lambda: jit.load("f"), "has no TorchScript"),
    "jit.ScriptFunction": (lambda: jit.ScriptFunction(), "lowtide compiles none"),
    "TorchFunctionMode": (
        lambda: overrides.TorchFunctionMode().__enter__(),
        "has no modes of functions",
    ),
    "TorchDispatchMode": (
        lambda: lt.utils._python_dispatch.TorchDispatchMode().__enter__(),
        "has no dispatch modes",
    ),
    "Library('mine').define": (lambda: library.Library("mine", "DEF").define("f()"), "custom_op"),
    "wrap_triton": (lambda: library.wrap_triton(None), "runs no Triton kernels"),
    "register_package": (
        lambda: lt.serialization.register_package(1, None, None),
        "map_location moves",
    ),
    "set_default_load_endianness": (
        lambda: lt.serialization.set_default_load_endianness("big"),
        "pass None",
    ),
    "cpp_extension.load": (lambda: cpp_extension.load("m", []), "against PyTorch's C++"),
    "cpp_extension.load_inline": (
        lambda: cpp_extension.load_inline("m", ""),
        "against PyTorch's C++",
    ),
    "cpp_extension.CUDAExtension": (
        lambda: cpp_extension.CUDAExtension("m", []),
        "against PyTorch's C++",
    ),
    "cpp_extension.BuildExtension": (
        lambda: cpp_extension.BuildExtension(),
        "against PyTorch's C++",
    ),
    "torch.mps.synchronize": (lambda: lt.mps.synchronize(), "does not run on Apple's GPUs"),
    "torch.xpu.synchronize": (lambda: lt.xpu.synchronize(), "does not run on Intel's GPUs"),
    "hub.load": (lambda: hub.load("a/b", "model"), "downloads nothing"),
    "hub.download_url_to_file": (lambda: hub.download_url_to_file("u", "f"), "downloads nothing"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_not_there_is_refused_at_the_call(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    call, words = REFUSALS[name]
    with pytest.raises((NotImplementedError, RuntimeError), match=words) as caught:
        call()  # type: ignore[no-untyped-call]
    assert name in str(caught.value)


def test_questions_of_devices_have_one_answer() -> None:
    assert not lt.mps.is_available()
    assert not lt.xpu.is_available()
    assert lt.mps.device_count() == lt.xpu.device_count() == 0
    assert lt.accelerator.is_available() == lt.cuda.is_available()
    if not lt.cuda.is_available():
        assert lt.accelerator.current_accelerator() is None
        with pytest.raises(RuntimeError, match="Cannot access accelerator device"):
            lt.accelerator.synchronize()
        with pytest.raises(RuntimeError):
            lt.cuda.Stream()
        with pytest.raises(RuntimeError):
            lt.cuda.Event().record()
    t = lt.ones(1)
    names = "is_mps is_xpu is_xla is_ipu is_mtia is_vulkan is_maia is_mkldnn"
    assert [getattr(t, name) for name in names.split()] == [False] * 8


def test_events_want_both_times() -> None:
    a, b = lt.cuda.Event(enable_timing=True), lt.cuda.Event()
    with pytest.raises(RuntimeError, match="enable_timing=True"):
        a.elapsed_time(b)
    with pytest.raises(RuntimeError, match="must be recorded"):
        a.elapsed_time(lt.cuda.Event(enable_timing=True))
    with lt.cuda.stream(None):
        pass
    assert lt.cuda.nvtx.range_push("a") == 0
    assert lt.cuda.nvtx.range_pop() == 0


def test_choices_of_kernels_change_nothing() -> None:
    q = lt.randn(1, 2, 4, 8)
    expected = nn.functional.scaled_dot_product_attention(q, q, q)
    for chosen in (attention.SDPBackend.MATH, list(attention.SDPBackend)):
        with attention.sdpa_kernel(chosen):
            assert lt.equal(nn.functional.scaled_dot_product_attention(q, q, q), expected)
    with lt.backends.cuda.sdp_kernel(enable_flash=False):
        assert not lt.backends.cuda.flash_sdp_enabled()
    assert lt.backends.cuda.flash_sdp_enabled()
    with pytest.raises(TypeError, match="takes an SDPBackend"), attention.sdpa_kernel(["math"]):  # type: ignore[list-item]
        pass


def test_switches_are_set_and_put_back() -> None:
    cudnn = lt.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    with cudnn.flags(enabled=True, benchmark=True):
        assert (cudnn.enabled, cudnn.benchmark) == (True, True)
    assert (cudnn.benchmark, cudnn.deterministic) == before
    assert not any(
        getattr(lt.backends, name).is_available()
        for name in "mkl mkldnn openmp nnpack cudnn mps miopen opt_einsum cusparselt".split()
    )
    lt.compiler.config.anything = 3
    assert lt.compiler.config.anything == 3
    assert lt.compiler.config.other is False
    double = lt.compile(lambda x: x + x)
    with lt.compiler.set_stance("force_eager"), lt.compiler.config.patch(x=1):
        [double(lt.ones(1)) for _ in range(3)]
    assert double.replays == 0
    [double(lt.ones(1)) for _ in range(4)]
    assert double.replays == 1


def test_reductions_have_numbers() -> None:
    assert [_reduction.get_enum(n) for n in ("none", "mean", "sum")] == [0, 1, 2]
    assert [_reduction.get_string(n) for n in range(3)] == ["none", "mean", "sum"]
    assert _reduction.legacy_get_string(False, None, emit_warning=False) == "sum"
    assert _reduction.legacy_get_enum(None, False, emit_warning=False) == 0
    with pytest.warns(UserWarning, match="please use reduction='mean'"):
        _reduction.legacy_get_string(None, None)
    with pytest.raises(ValueError, match="nonsense is not a valid value for reduction"):
        _reduction.get_enum("nonsense")


def test_script_modules_are_modules() -> None:
    class Doubled(jit.ScriptModule):
        @jit.script_method
        def forward(self, x):
            return x * 2

    assert Doubled()(lt.ones(1)).item() == 2
    assert not isinstance(nn.ReLU(), jit.ScriptModule)
    assert jit.wait(jit.fork(lt.add, lt.ones(1), 1)).item() == 2
    assert jit.annotations.List is __import__("typing").List
    assert [getattr(jit.annotations, f"BroadcastingList{n}")[int] for n in range(1, 7)] == [
        None
    ] * 6


def test_a_handle_gives_a_key() -> None:
    hooks: OrderedDict[int, str] = OrderedDict()
    first, second = RemovableHandle(hooks), RemovableHandle(hooks)
    hooks[first.id], hooks[second.id] = "a", "b"
    first.remove()
    first.remove()
    assert list(hooks.values()) == ["b"]


# Tensor


def test_new_makes_tensors_of_the_same_kind() -> None:
    t = lt.ones(2, dtype=lt.float64)
    assert t.new().shape == (0,)
    assert t.new(2, 3).shape == (2, 3)
    assert t.new(2, 3).dtype is lt.float64
    assert t.new([1, 2]).tolist() == [1.0, 2.0]
    assert t.new(lt.Size([4])).shape == (4,)
    with pytest.raises(TypeError, match="expected a tensor of"):
        t.new(lt.ones(1))


def test_subclasses_are_tensors() -> None:
    class Image(lt.Tensor):
        pass

    base = lt.ones(2, requires_grad=True)
    image = (base * 2).as_subclass(Image)
    assert type(image) is Image
    image.sum().backward()
    assert base.grad is not None
    assert base.grad.tolist() == [2.0, 2.0]
    data = lt.zeros(2)
    made = lt.Tensor._make_subclass(Image, data, True)
    assert type(made) is Image
    assert made.requires_grad
    assert made.is_leaf
    assert made.data_ptr() == data.data_ptr()
    with pytest.raises(TypeError, match="takes a subclass of Tensor"):
        data.as_subclass(int)  # type: ignore[arg-type]


def test_a_tensor_is_reversed_as_a_whole() -> None:
    assert reversed(lt.tensor([[1, 2], [3, 4]])).tolist() == [[3, 4], [1, 2]]  # type: ignore[attr-defined]


# hub


HUBCONF = """
import lowtide as lt
dependencies = ["lowtide"]

def small(width=2, **options):
    "A small model."
    return lt.nn.Linear(width, 1)

def _hidden():
    pass
"""


def test_a_local_repository_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "hubconf.py").write_text(HUBCONF)
    assert hub.load(tmp_path, "small", width=3, source="local").in_features == 3
    assert hub.list(tmp_path, source="local") == ["small"]
    assert hub.help(tmp_path, "small", source="local") == "A small model."
    with pytest.raises(RuntimeError, match="Cannot find callable large in hubconf; it has small"):
        hub.load(tmp_path, "large", source="local")
    with pytest.raises(FileNotFoundError, match=r"there is no hubconf\.py"):
        hub.load(tmp_path / "nonsense", "small", source="local")
    with pytest.raises(ValueError, match="source is 'github' or 'local'"):
        hub.load(tmp_path, "small", source="elsewhere")


def test_what_was_fetched_before_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    assert hub.get_dir() == str(tmp_path / "hub")
    (tmp_path / "hub" / "me_models_main").mkdir(parents=True)
    (tmp_path / "hub" / "me_models_main" / "hubconf.py").write_text(HUBCONF)
    assert hub.load("me/models", "small", trust_repo=True).in_features == 2
    assert hub.load("me/models:main", "small").in_features == 2
    with pytest.raises(
        RuntimeError, match="hub.load: lowtide downloads nothing, and me/models:dev"
    ):
        hub.load("me/models:dev", "small")
    state = nn.Linear(2, 1).state_dict()
    (tmp_path / "hub" / "checkpoints").mkdir()
    lt.save(state, tmp_path / "hub" / "checkpoints" / "weights-1.pt")
    url = "https://example.org/weights-1.pt"
    found = hub.load_state_dict_from_url(url, map_location="cpu", check_hash=True)
    assert all(lt.equal(found[name], t) for name, t in state.items())
    local = (tmp_path / "hub" / "checkpoints" / "weights-1.pt").as_uri()
    assert hub.load_state_dict_from_url(local).keys() == state.keys()
    with pytest.raises(RuntimeError, match="downloads nothing"):
        hub.load_state_dict_from_url("https://example.org/weights-2.pt")


# library


def test_a_custom_op_has_a_gradient() -> None:
    calls = []

    @library.custom_op("mine::cube", mutates_args=())
    def cube(x, factor=1.0):
        calls.append(x.device.type)
        return x**3 * factor

    def setup(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.factor = inputs[1]

    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * ctx.factor * grad, None

    cube.register_autograd(backward, setup_context=setup)
    x = lt.tensor([2.0], requires_grad=True, dtype=lt.float64)
    assert lt.autograd.gradcheck(lambda t: cube(t, factor=2.0), (x,))
    library.register_fake("mine::cube", lambda x, factor=1.0: lt.empty_like(x))
    count = len(calls)
    assert cube(lt.ones(3, device="meta")).shape == (3,)
    assert len(calls) == count
    with pytest.raises(ValueError, match="a name is 'namespace::name'"):
        library.custom_op("cube", lambda x: x)
    with pytest.raises(RuntimeError, match="There is no op 'mine::sphere'"):
        library.register_autograd("mine::sphere", backward)


def test_a_function_for_meta_waits_for_its_op() -> None:
    library.register_fake("mine::late")(lambda x: lt.empty(7, device="meta"))
    late = library.custom_op("mine::late", lambda x: x)
    assert late(lt.ones(2, device="meta")).shape == (7,)


# Fusion


@pytest.mark.parametrize("bias", [True, False])
def test_a_normalization_is_fused(bias: bool) -> None:
    for layer, norm, x in (
        (nn.Conv2d(3, 4, 3, bias=bias), nn.BatchNorm2d(4), lt.randn(2, 3, 6, 6)),
        (nn.ConvTranspose2d(3, 4, 3, bias=bias), nn.BatchNorm2d(4), lt.randn(2, 3, 6, 6)),
        (nn.Linear(3, 4, bias=bias), nn.BatchNorm1d(4), lt.randn(5, 3)),
    ):
        both = nn.Sequential(layer, norm).to(lt.float64)
        with lt.no_grad():
            norm.weight.uniform_(0.5, 2)
            norm.bias.normal_()
        x = x.double()
        both(x)  # statistics
        both.eval()
        before = copy.deepcopy(layer.state_dict())
        if isinstance(layer, nn.Linear):
            fused = nn.utils.fuse_linear_bn_eval(layer, norm)
        else:
            transpose = isinstance(layer, nn.ConvTranspose2d)
            fused = nn.utils.fuse_conv_bn_eval(layer, norm, transpose)
        lt.testing.assert_close(fused(x), both(x))
        assert all(lt.equal(t, before[name]) for name, t in layer.state_dict().items())
        with pytest.raises(AssertionError, match="Fusion only for eval"):
            nn.utils.fuse_conv_bn_eval(layer.train(), norm)

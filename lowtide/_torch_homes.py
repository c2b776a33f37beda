"""Where PyTorch's modules and private names are in lowtide: tables, and nothing else.

A module of PyTorch that is not here is looked for under the same name: ``torch.nn.functional`` is
``lowtide.nn.functional`` without a line in a table.
"""

from __future__ import annotations

# Below lowtide, and not under torch
HIDDEN = {"as_torch", "cli", "framework", "modules", "recipes", "profiling"}
HIDDEN |= {"_torch_homes", "_torch_paths"}
HIDDEN |= {"load_ipython_extension", "unload_ipython_extension"}
# `from torch import *` leaves these out, which are lowtide's alone: a script may have its own `fit`
NOT_TORCH = HIDDEN | {
    "CaptureError", "CaptureWarning", "CheckpointError", "GradientError", "InfeasibleBudget",
    "MemoryLimitError", "SerializationError", "avg_pool2d", "avg_pool3d", "checkpoint",
    "checkpointing", "empty_cache", "fit", "fork_rng", "get_memory_limit", "linear",
    "max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_budget",
    "memory_reserved", "memory_stats", "memory_summary", "one_hot", "pad",
    "reset_peak_memory_stats", "set_memory_limit", "softmin", "sum_to_size", "synchronize",
}  # fmt: skip

# PyTorch's module -> the one that has its names, both without the root
HOMES = {
    "__config__": "__config__",
    "_C": "as_torch.private.C",
    "_C._functorch": "as_torch.private.C",
    "_C._nn": "as_torch.private.cnn",
    "_VF": "as_torch.private.aten",
    "_custom_op": "library",
    "_custom_ops": "library",
    "_dynamo": "as_torch.private.dynamo",
    "_dynamo._trace_wrapped_higher_order_op": "as_torch.private.dynamo",
    "_dynamo.eval_frame": "as_torch.private.dynamo",
    "_dynamo.utils": "as_torch.private.dynamo",
    "_dynamo.external_utils": "as_torch.private.dynamo",
    "_higher_order_ops.associative_scan": "as_torch.private.associative_scan",
    "_jit_internal": "as_torch.private.jit_internal",
    "_linalg_utils": "linalg",
    "_six": "as_torch.private.six",
    "_ops": "as_torch.private.ops",
    "_subclasses": "as_torch.private.fake_tensor",
    "_subclasses.fake_tensor": "as_torch.private.fake_tensor",
    "fx.experimental": "as_torch.private.fake_tensor",
    "fx.experimental.proxy_tensor": "as_torch.private.fake_tensor",
    "_tensor": "framework.tensor",
    "_tensor_str": "as_torch.private.tensor_str",
    "_utils": "as_torch.private.utils",
    "_vmap_internals": "as_torch.private.vmap_internals",
    "_prims_common": "as_torch.private.checks",
    "accelerator.memory": "accelerator",
    "amp.autocast_mode": "amp",
    "cpu.amp.autocast_mode": "cpu.amp",
    "cpu.amp.grad_scaler": "cpu.amp",
    "signal.windows.windows": "signal.windows",
    "ao": "as_torch.private.quantization",
    "ao.nn": "as_torch.private.quantization",
    "ao.nn.quantized": "as_torch.private.quantization",
    "ao.quantization": "as_torch.private.quantization",
    "backends.quantized": "as_torch.private.quantization",
    "autograd.anomaly_mode": "autograd",
    "autograd.gradcheck": "autograd",
    "autograd.profiler_util": "autograd.profiler",
    "autograd.variable": "autograd",
    "profiler.profiler": "profiler",
    "cuda.amp.autocast_mode": "cuda.amp",
    "cuda.amp.common": "cuda.amp",
    "cuda.amp.grad_scaler": "cuda.amp",
    "cuda.graphs": "as_torch.private.cuda_state",
    "cuda.memory": "cuda",
    "cuda.random": "cuda",
    "cuda.streams": "cuda",
    "export": "as_torch.private.export",
    "func._random": "func",
    "fx._symbolic_trace": "modules.fx.tracer",
    "fx.graph": "modules.fx.graph",
    "fx.graph_module": "modules.fx.graph_module",
    "fx.interpreter": "modules.fx.interpreter",
    "fx.node": "modules.fx.node",
    "fx.proxy": "modules.fx.proxy",
    "jit._script": "jit",
    "jit._trace": "jit",
    "distributed.rpc": "as_torch.private.rpc",
    "distributed.algorithms": "distributed.algorithms",
    "distributed.algorithms.ddp_comm_hooks": "distributed.algorithms.ddp_comm_hooks",
    "distributed.algorithms.ddp_comm_hooks.default_hooks": (
        "distributed.algorithms.ddp_comm_hooks.default_hooks"
    ),
    "distributed.algorithms.ddp_comm_hooks.powerSGD_hook": (
        "distributed.algorithms.ddp_comm_hooks.powerSGD_hook"
    ),
    "distributed.device_mesh": "distributed.device_mesh",
    "distributed.constants": "framework.distributed.initialization",
    "distributed._composable.fsdp": "as_torch.private.composable_fsdp",
    "distributed.checkpoint": "distributed.checkpoint",
    "distributed.checkpoint.filesystem": "framework.distributed.checkpoint.save_load",
    "distributed.checkpoint.state_dict": "distributed.checkpoint.state_dict",
    "distributed.checkpoint.state_dict_loader": "framework.distributed.checkpoint.save_load",
    "distributed.checkpoint.state_dict_saver": "framework.distributed.checkpoint.save_load",
    "distributed.fsdp": "distributed.fsdp",
    "distributed.optim": "distributed.optim",
    "distributed.optim.zero_redundancy_optimizer": "distributed.optim",
    "distributed.run": "distributed.run",
    "distributed.distributed_c10d": "distributed",
    "distributed.nn.functional": "distributed.nn",
    "multiprocessing.spawn": "framework.data.process_spawn",
    "nn.modules._functions": "nn.functional",
    "nn.parallel._functions": "nn.parallel",
    "nn.parallel.data_parallel": "modules.parallel.data_parallel",
    "nn.parallel.distributed": "modules.parallel.distributed_data_parallel",
    "nn.parallel.parallel_apply": "modules.parallel.data_parallel",
    "nn.parallel.replicate": "modules.parallel.data_parallel",
    "nn.parallel.scatter_gather": "modules.parallel.data_parallel",
    "nn.quantized": "as_torch.private.quantization",
    "nn.utils.memory_format": "nn.utils",
    "nn.utils.stateless": "func",
    "nn.utils.spectral_norm": "modules.parametrization.spectral_norm",
    "nn.utils.weight_norm": "modules.parametrization.weight_norm",
    "onnx.operators": "as_torch.private.onnx",
    "onnx.symbolic_helper": "as_torch.private.onnx",
    "quantization": "as_torch.private.quantization",
    "optim.adamw": "optim.adam",
    "optim.lbfgs": "optim.lbfgs",
    "torch_version": "as_torch.torch_version",
    "utils._foreach_utils": "as_torch.private.optimizer",
    "utils._contextlib": "as_torch.private.contextlib",
    "utils.data._utils.collate": "utils.data.dataloader",
    "utils.data._utils.worker": "utils.data.dataloader",
    "utils.data._utils.fetch": "framework.data.fetch",
    "utils.data.backward_compatibility": "utils.data",
}

for _name in ("", ".parallel", ".parallel.style", ".placement_types", "._dtensor_spec"):
    HOMES[f"distributed.tensor{_name}"] = "as_torch.private.sharding_plans"

# What needs several processes: names that libraries probe, refused when they are used. These and
# every module below them.
HOMES_BELOW = {
    f"distributed.{name}": "as_torch.private.many_processes"
    for name in [
        "_composable",
        "_composable_state",
        "_functional_collectives",
        "_shard",
        "_state_dict_utils",
        "_symmetric_memory",
        "_tensor",
        "algorithms",
        "checkpoint",
        "elastic",
        "fsdp",
        "launcher",
        "optim",
        "pipelining",
        "run",
        "tensor",
        "utils",
    ]
}

# Of these, PyTorch has a function of the same name beside the module
ALSO_FUNCTIONS = (
    "autograd.gradcheck",
    "nn.parallel.data_parallel",
    "nn.parallel.parallel_apply",
    "nn.parallel.replicate",
    "nn.utils.spectral_norm",
    "nn.utils.weight_norm",
)

# PyTorch's module -> {module of lowtide: names there, or theirs=ours}
COLLECTIONS: dict[str, dict[str, str]] = {
    "_higher_order_ops": {},
    "amp.grad_scaler": {"amp": "GradScaler"},
    "autograd.grad_mode": {
        "autograd": "no_grad enable_grad set_grad_enabled inference_mode",
    },
    "autograd.forward_ad": {},
    "onnx.symbolic_opset9": {},
    "onnx.symbolic_opset11": {},
    "utils.data._utils": {},
}

# One file for each class in PyTorch: file, classes of lowtide.distributions
COLLECTIONS |= {
    f"distributions.{file}": {"distributions": classes}
    for file, classes in {
        "bernoulli": "Bernoulli",
        "beta": "Beta",
        "binomial": "Binomial",
        "categorical": "Categorical",
        "cauchy": "Cauchy",
        "chi2": "Chi2",
        "continuous_bernoulli": "ContinuousBernoulli",
        "dirichlet": "Dirichlet",
        "distribution": "Distribution",
        "exp_family": "ExponentialFamily",
        "exponential": "Exponential",
        "fishersnedecor": "FisherSnedecor",
        "gamma": "Gamma",
        "generalized_pareto": "GeneralizedPareto",
        "geometric": "Geometric",
        "gumbel": "Gumbel",
        "half_cauchy": "HalfCauchy",
        "half_normal": "HalfNormal",
        "independent": "Independent",
        "inverse_gamma": "InverseGamma",
        "kumaraswamy": "Kumaraswamy",
        "laplace": "Laplace",
        "lkj_cholesky": "LKJCholesky",
        "log_normal": "LogNormal",
        "logistic_normal": "LogisticNormal",
        "lowrank_multivariate_normal": "LowRankMultivariateNormal",
        "mixture_same_family": "MixtureSameFamily",
        "multinomial": "Multinomial",
        "multivariate_normal": "MultivariateNormal",
        "negative_binomial": "NegativeBinomial",
        "normal": "Normal",
        "one_hot_categorical": "OneHotCategorical OneHotCategoricalStraightThrough",
        "pareto": "Pareto",
        "poisson": "Poisson",
        "studentT": "StudentT",
        "transformed_distribution": "TransformedDistribution",
        "uniform": "Uniform",
        "von_mises": "VonMises",
        "weibull": "Weibull",
        "wishart": "Wishart",
    }.items()
}
COLLECTIONS["distributions.relaxed_bernoulli"] = {
    "framework.distributions.derived.relaxed": "LogitRelaxedBernoulli RelaxedBernoulli"
}
COLLECTIONS["distributions.relaxed_categorical"] = {
    "framework.distributions.derived.relaxed": "ExpRelaxedCategorical RelaxedOneHotCategorical"
}

_P = "lowtide.as_torch.private"
_BLOCK_MASK = "lowtide.modules.flexible_attention.block_mask"
_TRANSFORM = "lowtide.framework.distributions.transforms.transform"

# PyTorch's module -> {name: "module:name of lowtide's"}; of torch itself under ""
PRIVATE: dict[str, dict[str, str]] = {
    "": {
        "Event": "lowtide.cuda.streams:",
        "Stream": "lowtide.cuda.streams:",
        "_assert": f"{_P}.checks:",
        "_assert_async": f"{_P}.checks:_assert",
        "_check": f"{_P}.checks:",
        "_check_index": f"{_P}.checks:",
        "_check_is_size": f"{_P}.checks:",
        "_check_not_implemented": f"{_P}.checks:",
        "_check_tensor_all": f"{_P}.checks:",
        "_check_type": f"{_P}.checks:",
        "_check_value": f"{_P}.checks:",
        "_check_with": f"{_P}.checks:",
        "_shape_as_tensor": f"{_P}.checks:",
        "_is_all_true": f"{_P}.checks:",
        "_is_any_true": f"{_P}.checks:",
        "_jit_internal": f"{_P}.jit_internal",
        "GradScaler": "lowtide.amp:",
        "finfo": f"{_P}.absent_dtypes:",
        "Storage": "lowtide:TypedStorage",
        "PyTorchFileReader": f"{_P}.C:",
        "PyTorchFileWriter": f"{_P}.C:",
        "ScriptModule": "lowtide.jit:",
        "torch": "torch",
        "SymBool": f"{_P}.checks:",
        "SymFloat": f"{_P}.checks:",
        "SymInt": f"{_P}.checks:",
        "sym_float": "builtins:float",
        "sym_int": "builtins:int",
        "sym_max": "builtins:max",
        "sym_min": "builtins:min",
        "sym_not": "operator:not_",
        "classes": f"{_P}.ops:classes",
        "ops": f"{_P}.ops:ops",
    },
    "hub": {
        "tqdm": "tqdm:tqdm",
        "urlparse": "urllib.parse:urlparse",
    },
    "nn": {
        "UninitializedBuffer": "lowtide.nn.parameter:UninitializedBuffer",
        "UninitializedParameter": "lowtide.nn.parameter:UninitializedParameter",
    },
    "autograd.function": {
        "FunctionCtx": "lowtide.framework.autograd.function:FunctionCtx",
    },
    "distributed.checkpoint": {
        name: f"{_P}.many_processes:{name}"
        for name in [
            "CheckpointException",
            "DefaultLoadPlanner",
            "DefaultSavePlanner",
            "HuggingFaceStorageReader",
            "HuggingFaceStorageWriter",
            "LoadPlanner",
            "SavePlanner",
            "StorageReader",
            "StorageWriter",
            "load_sharded_optimizer_state_dict",
            "load_state_dict",
            "save_state_dict",
        ]
    },
    "distributed.fsdp": {
        name: f"{_P}.many_processes:{name}"
        for name in [
            "BackwardPrefetch",
            "CPUOffload",
            "FullOptimStateDictConfig",
            "FullStateDictConfig",
            "FullyShardedDataParallel",
            "LocalOptimStateDictConfig",
            "LocalStateDictConfig",
            "MixedPrecision",
            "OptimStateDictConfig",
            "OptimStateKeyType",
            "ShardedOptimStateDictConfig",
            "ShardedStateDictConfig",
            "ShardingStrategy",
            "StateDictConfig",
            "StateDictSettings",
            "StateDictType",
            "register_fsdp_forward_method",
            "share_comm_ctx",
        ]
    },
    "distributed.optim": {
        name: f"{_P}.many_processes:{name}"
        for name in ["DistributedOptimizer", "PostLocalSGDOptimizer", "as_functional_optim"]
    },
    "fx": {"map_arg": "lowtide.modules.fx.node:map_arg"},
    "fx.graph_module": {
        "_CodeOnlyModule": f"{_P}.graph_module:_CodeOnlyModule",
        "_USER_PRESERVED_ATTRIBUTES_KEY": f"{_P}.graph_module:_USER_PRESERVED_ATTRIBUTES_KEY",
        "_copy_attr": f"{_P}.graph_module:_copy_attr",
    },
    "jit": {
        "_overload": f"{_P}.jit_internal:_overload",
        "_overload_method": f"{_P}.jit_internal:_overload",
        "_script_if_tracing": "lowtide.jit:script_if_tracing",
    },
    "onnx": {
        "ExportOptions": f"{_P}.onnx:ExportOptions",
        "ONNXProgram": f"{_P}.onnx:ONNXProgram",
        "TensorProtoDataType": f"{_P}.onnx:TensorProtoDataType",
    },
    "optim.optimizer": {
        name: f"{_P}.optimizer:{name}"
        for name in [
            "ParamsT",
            "_params_t",
            "_use_grad_for_differentiable",
            "_default_to_fused_or_foreach",
            "_get_capturable_supported_devices",
            "_get_value",
            "_dispatch_sqrt",
            "_stack_if_compiling",
            "_view_as_real",
            "_capturable_doc",
            "_foreach_doc",
            "_maximize_doc",
            "_differentiable_doc",
            "_fused_doc",
            "_params_doc",
            "_group_tensors_by_device_and_dtype",
        ]
    },
    "utils.data._utils.collate": {"np_str_obj_array_pattern": f"{_P}.utils:STRINGS_AND_OBJECTS"},
    "utils.data.dataloader": {
        "_BaseDataLoaderIter": "lowtide.framework.data.loader:_Epoch",
        "_SingleProcessDataLoaderIter": "lowtide.framework.data.loader:_InProcessEpoch",
        "_MultiProcessingDataLoaderIter": "lowtide.framework.data.loader:_PrefetchingEpoch",
    },
    "nn.functional": {
        "_Reduction": "lowtide.nn._reduction",
        "Tensor": "lowtide:Tensor",
        "has_torch_function": "lowtide.overrides:has_torch_function",
        "has_torch_function_unary": "lowtide.overrides:has_torch_function_unary",
        "has_torch_function_variadic": "lowtide.overrides:has_torch_function_variadic",
        "handle_torch_function": "lowtide.overrides:handle_torch_function",
        "_pair": "lowtide.nn.modules.utils:_pair",
        "_single": "lowtide.nn.modules.utils:_single",
        "_triple": "lowtide.nn.modules.utils:_triple",
        "grad": "lowtide.nn.grad",
        "Optional": "typing:Optional",
        "List": "typing:List",
        "Callable": "typing:Callable",
        "math": "math",
        "warnings": "warnings",
    },
    "utils.model_zoo": {"tqdm": "tqdm:tqdm"},
    "distributions.transforms": {
        "_InverseTransform": f"{_TRANSFORM}:_InverseTransform",
    },
    "utils._pytree": {
        "_dict_flatten": "lowtide.framework.interop.pytree_nodes:_dict_flatten",
        "_dict_flatten_with_keys": "lowtide.framework.interop.pytree_nodes:_keyed",
        "_dict_unflatten": "lowtide.framework.interop.pytree_nodes:_dict_unflatten",
    },
    "cuda": {
        name: f"{_P}.cuda_state:{name}"
        for name in [
            "CUDAGraph",
            "_initialized",
            "graph",
            "graph_pool_handle",
            "is_current_stream_capturing",
            "make_graphed_callables",
        ]
    },
    "distributions.utils": {
        "_standard_normal": f"{_P}.utils:_standard_normal",
        "_sum_rightmost": f"{_TRANSFORM}:sum_rightmost",
    },
    "nn.attention.flex_attention": {
        "_DEFAULT_SPARSE_BLOCK_SIZE": f"{_BLOCK_MASK}:_DEFAULT_SPARSE_BLOCK_SIZE"
    },
    "nn.init": {
        "_no_grad_uniform_": f"{_P}.utils:_no_grad_uniform_",
        "_no_grad_normal_": f"{_P}.utils:_no_grad_normal_",
    },
    "nn.modules.module": {"_IncompatibleKeys": "lowtide.modules.state:IncompatibleKeys"},
    "nn.modules.transformer": {
        "_get_activation_fn": f"{_P}.utils:_get_activation_fn",
        "_get_clones": f"{_P}.utils:_get_clones",
    },
    "nn.modules.utils": {
        "consume_prefix_in_state_dict_if_present": f"{_P}.utils:"
        "consume_prefix_in_state_dict_if_present",
    },
}

# Modules with a dict FUNCTIONS: names of torch itself
TABLES = tuple(
    f"{_P}.{name}" for name in ("foreach", "aten", "native", "scaled_mm", "absent_dtypes", "sparse")
)


def home(path: str) -> str | None:
    """Return the module that has the names of ``torch.<path>``; None: that of the same name."""
    if path in HOMES:
        return HOMES[path]
    parts = path.split(".")
    above = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((HOMES_BELOW[name] for name in above if name in HOMES_BELOW), None)

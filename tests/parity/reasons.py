"""Why public names of PyTorch are absent: docs/public_names.md lists them by these reasons.

A pattern is a module with all below it (``torch.nested``), or a module and a regular expression of
its names (``torch:q_.*``). The first reason with a pattern that fits is the name's. A pattern that
fits no absent name is an error: what it excused is there now.
"""

from __future__ import annotations

REASONS: dict[str, str] = {
    "Quantized tensors and training for them are not planned; autocast and 16-bit parameters are "
    "there": """
        torch.ao.nn torch.ao.ns torch.ao.quantization torch.nn.intrinsic torch.nn.qat
        torch.nn.quantizable torch.nn.quantized torch.jit.quantized
        torch:(quantize|fbgemm|fake_quantize|q_|choose_qparams|fused_moving_avg).*
        torch:(quantized_.*|int_repr|dequantize|qscheme|empty_quantized)
        torch.Tensor:(q_.*|int_repr|dequantize|qscheme)
    """,
    "Schedules of pruning; `nn.utils.prune` is there": "torch.ao.pruning",
    "PyTorch's compilers, program files and their inner forms. `torch.fx` traces and runs plain "
    "modules": """
        torch.export torch.fx torch.compiler torch.onnx torch.package torch.jit
        torch.utils.bundled_inputs torch.utils.mobile_optimizer torch.utils.model_dump
        torch.utils.jit torch.utils.mkldnn torch.utils.throughput_benchmark
        torch:.*(Type|Script|Schema|Argument|Graph|Compilation|Module|Execution|Bench|Builder).*
        torch:(AliasDb|Block|BufferDict|CallStack|Capsule|Code|ErrorReport|FileCheck|Gradient|Node)
        torch:(IODescriptor|InferredType|JITException|LockingLogger|NoopLogger|OperatorInfo|Use)
        torch:(ParameterDict|TracingState|Value|AggregationType|AVG|SUM|fork|wait|Future|Tag)
        torch:(import_ir|parse_|merge_type|unify_type|sym_|cond|bit|cpp|DeepCopyMemo).*
        torch:(SerializationStorageContext|DeserializationStorageContext|.*Error|slice_inverse)
        torch.func:functionalize torch.func:debug_unwrap torch.nn.cpp
    """,
    "Sharded models, remote calls, and PyTorch's own machinery of processes": """
        torch.distributed torch.nn.parallel torch.cuda.comm torch.cuda.nccl torch.numa
        torch.multiprocessing torch.monitor
    """,
    "Kinds of devices that lowtide does not run on": """
        torch.mps torch.mtia torch.xpu torch.backends.mps torch.backends.xeon
        torch.backends.kleidiai torch.backends.nnpack torch.backends.mkl
        torch.utils.backend_registration torch.profiler.itt
        torch:(get|is|set)_autocast_(ipu|xla).* torch.Tensor:(ipu|mtia|xpu|to_mkldnn)
        torch.nn.Module:(ipu|mtia|xpu)
    """,
    "CUDA's graphs, allocators and tuning: settings that lowtide's pool and kernels lack": """
        torch.cuda torch.backends.cuda torch.backends.cusparselt torch.accelerator
        torch.sparse.semi_structured torch.sparse:.*SemiStructured.*
        torch.sparse:to_sparse_semi_structured torch.nn.attention.varlen
        torch.nn.attention:.*flash_attention_impl.* torch.nn.functional:.*(scaled_mm|grouped_mm)
        torch.nn.functional:(ScalingType|SwizzleType) torch.Generator:graphsafe_.*
    """,
    "Streams of a CPU: there is one queue of work": "torch.cpu",
    "Bindings of vendors' libraries; the plain name does the same": """
        torch:(cudnn|miopen|mkldnn)_.*
    """,
    "Tensors of several lengths and with masks are not planned; `pad_sequence`, `where`": """
        torch.nested torch.masked torch.Tensor:to_padded_tensor
    """,
    "Sparse tensors in blocks, and older names of their products": """
        torch:(hsmm|hspmm|saddmm|smm|sspaddmm|sparse_bsc_tensor|sparse_bsr_tensor)
        torch:(resize_as_sparse_|(ccol|col|crow|row)_indices_copy|indices_copy|values_copy)
        torch.sparse torch.Tensor:(smm|sspaddmm|resize_as_sparse_|to_sparse_bs[cr])
        torch.Tensor:sparse_resize_and_clear_
    """,
    "Forward mode is not there; `func.jvp` and `jacfwd` take two reverse passes": """
        torch.autograd.forward_ad
    """,
    "Inner parts of PyTorch's autograd; `torch.autograd.graph` has the nodes and hooks": """
        torch.autograd torch.utils.hooks torch.utils.checkpoint
        torch:set_anomaly_enabled torch:is_anomaly_check_nan_enabled
    """,
    "PyTorch's dispatcher and its hooks; ops are declared once (docs/add_an_op.md)": """
        torch.library torch.overrides torch:(DispatchKey.*|DisableTorchFunction.*)
        torch:ExcludeDispatchKeyGuard
    """,
    "Steps of other functions that PyTorch has under names of their own": """
        torch:batch_norm_.* torch:(conv_tbc|embedding_bag|embedding_renorm_|feature_dropout_)
        torch:(feature_alpha_dropout_|rrelu_|init_num_threads|thread_safe_generator|lobpcg)
        torch:(gru|lstm|rnn_relu|rnn_tanh)(_cell)? torch:has_.* torch.random torch.fft
        torch.func:rearrange torch.functional torch.amp
    """,
    "Named tuples of results: here each has lowtide's own class": "torch.return_types",
    "Steps of optimizers as functions over lists; the classes are there": "torch.optim",
    "Other ways to ask what `data_ptr()` and `stride()` say": """
        torch.Tensor:(const_data_ptr|dim_order)
    """,
    "There is no complex32": "torch.Tensor:chalf",
    "Settings of pickled files; lowtide writes safetensors and reads PyTorch's": """
        torch.serialization torch.utils.show_pickle
    """,
    "Data pipes, which PyTorch no longer develops": "torch.utils.data",
    "Tools for PyTorch's own build, tests and bug reports": """
        torch.utils.hipify torch.utils.cpp_extension torch.utils.collect_env
        torch.utils.benchmark torch.utils.cpp_backtrace torch.utils.backcompat
        torch.utils.file_baton torch.utils.debug_log torch.utils.dlpack
        torch.utils.flop_counter torch.utils.module_tracker torch.utils.weak torch.utils
    """,
    "Observers of PyTorch's profiler; lowtide.profiling records more": "torch.profiler",
    "Old names, for which PyTorch warns or has others": """
        torch.nn.modules torch.nn.utils torch.nn:factory_kwargs torch.nn.common_types
        torch.nn.parameter torch.nn.functional:assert_int_or_pair
        torch.nn.Module:(T_destination|call_super_init|dump_patches|register_backward_hook)
        torch.Tensor:(eig|lstsq|lu|reinforce|resize|resize_as|solve|symeig|volatile|index)
        torch.Tensor:(is_distributed|module_load|grad_dtype|slice_inverse)
    """,
    "Masks of attention that are a class of their own; `is_causal=True` does the same": """
        torch.nn.attention.bias
    """,
}

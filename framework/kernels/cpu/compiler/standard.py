# ruff: noqa: E501 - a line is a kernel
"""Kernels that most models need; written by ``python -m benchmarks.standard_kernels``.

Each line: module, function, signature, what its floating-point arithmetic may do.
"""

KERNELS = """\
activation.smooth gelu f4:1C,f4:1C contract
activation.smooth gelu_grad f4:1C,f4:1C,f4:1C contract
activation.smooth silu f4:1C,f4:1C contract
activation.smooth silu_grad f4:1C,f4:1C,f4:1C contract
attention probabilities f4:2C,f4:2C,f4:1C,b1:2C,f4s,i8,i8,b1,f4s contract
attention scores_grad f4:2C,f4:2C,f4:1C,b1:2C,f4s,f4s contract
attention soften f4:2C,f4:1C,b1:2C,f4s,i8,i8,b1,f4s contract
convolution.depthwise depthwise f4:5C,f4:5C,f4:4C,f4:1C,i8x3,i8x3,i8x3,i8,i8 contract
convolution.depthwise depthwise_input_grad f4:5C,f4:5C,f4:4C,i8x3,i8x3,i8x3,i8,i8 contract
convolution.depthwise depthwise_weight_grad f4:4C,f4:5C,f4:5C,i8x3,i8x3,i8x3,i8,i8 contract+reassoc
convolution.depthwise_stride1 slide f4:4C,f4:4C,f4:3C,f4:1C,i8x2,i8x2,b1,i8,i8 contract
convolution.depthwise_stride1 slide_weight f4:3C,f4:4C,f4:4C,i8x2,i8x2,i8,i8 contract
convolution.direct collect f4:3C,f4:2C,i8,i8x2,i8:1C,i8 -
convolution.direct convolve f4:5C,f4:1C,f4:1C,f4:1C,f4:5C,f4:1C,f4:1C,i8,i8x2,i8x2,i8x2,i8:2C,i8x3,i8x3,i8:1C,i8:1C,i8:2C,i8x3 -
convolution.direct sum_windows f4:1C,f4:1C,f4:1C,f4:5C,f4:5C,i8,i8x2,i8x2,i8x3,i8x3,i8x3,i8x3,i8x3,i8:1C,i8:1C -
elementwise.bitmask choose i8,i8,f4:1C,f4:1C,u1:1C,f8,f8 -
elementwise.bitmask limit i8,i8,f4:1C,u1:1C,f4:1C,f8,f8,f8,f8 -
elementwise.bitmask relu i8,i8,f4:1C,u1:1C,f4:1C -
elementwise.copy _move u4:3A,u4:3Ar -
linalg.gemm _sgemm i8,i8 -
loss.cross_entropy has_invalid_class i8:1C,i8,i8 -
loss.cross_entropy rows f4:2C,f4:1C,f4:1C,i8:1C,f4:2C,i8,f8 contract
loss.cross_entropy rows_grad f4:2C,f4:2C,f4:1C,f4:1C,i8:1C,f4:2C,i8,f8 contract
loss.elementwise squared_error_grad f4:1C,f4:1C,f4:1C,f4:1C -
loss.elementwise squared_error_sums i8,i8,f8:1C,f4:1C,f4:1C -
normalization.batch_norm _batch_norm f4:3C,f4:1C,f4:1C,f4:1C,f4:3C,f4:1C,f4:1C,f8,i8,i8 contract+reassoc
normalization.batch_norm _batch_norm_grad f4:3C,f4:1C,f4:1C,f4:3C,f4:3C,f4:1C,f4:1C,f4:1C,i8,i8 contract+reassoc
normalization.batch_norm _group_norm f4:4C,f4:2C,f4:2C,f4:4C,f4:1C,f4:1C,f8,i8,i8 contract+reassoc
normalization.batch_norm _group_norm_grad f4:4C,f4:1C,f4:1C,f4:4C,f4:4C,f4:1C,f4:2C,f4:2C,i8,i8 contract+reassoc
normalization.layer_norm _grad f4:2C,f4:1C,f4:1C,f4:2C,f4:2C,f4:1C,f4:1C,f4:1C -
normalization.layer_norm add_rows f4:2C,f4:2C,i8:1C -
normalization.layer_norm layer_norm f4:2C,f4:1C,f4:1C,f4:2C,f4:1C,f4:1C,f8,i8,i8 contract+reassoc
optim.elementwise adam f4:1C,f4:1C,f4:1C,f4:1C,f4:1C,f4s,f4s,f4s,f4s,f4s,f4s,f4s,f4s,f4s,f4s contract
optim.elementwise momentum f4:1C,f4:1C,f4:1C,f4s,f4s,f4s,f4s,f4s,f4s contract
optim.elementwise rmsprop f4:1C,f4:1C,f4:1C,f4:1C,f4:1C,f4s,f4s,f4s,f4s,f4s,f4s,f4s contract
pooling.adaptive average f4:4C,f4:4C contract+reassoc
pooling.adaptive average_grad f4:4C,f4:4C -
pooling.max_pool3d max_pool f4:4C,u1:4C,f4:4C,i8x3,i8x3,i8x3,i8x3 -
pooling.max_pool3d max_pool_grad f4:4C,f4:4C,u1:4C,i8x3,i8x3,i8x3,i8x3 -
random.dropout _dropout f4:1C,f4:1C,u8s,u8s,u4s,b1,f4s,f4s,f4s,b1,b1,i8,i8 -
random.philox _pairs f4:1C,f4:1C,f4:1C,f4:1C,f4s,f4s -
random.philox _polar32 f4:1C,f4:1C,u8s,u8s -
random.philox _uniform32 f4:1C,u8s,u8s,u8s,f4s -
recurrent gru f4:2C,f4:2C,f4:2F,f4:1C,f4:2C contract
recurrent gru_grad f4:2C,f4:2C,f4:2C,f4:2C,f4:2C,f4:2C,f4:2C contract
recurrent lstm f4:2C,f4:2F,f4:1C,f4:2C,f4:2C,f4:2C contract
recurrent lstm_grad f4:2C,f4:2C,f4:2C,f4:2C,f4:2C,f4:2C,f4:2C contract
support.work_pool _help i8,i8 -
support.work_pool _run i8,i8,i8,i8,i8 -
"""

"""Where lowtide differs from PyTorch on samples of PyTorch's own catalogue, and why.

A name here must still differ: a mended operator is taken out.
"""

FRACTIONS = (
    "PyTorch cuts beta and alpha of integer tensors to 0 in silence; lowtide refuses fractions, as "
    "PyTorch's own addmm does."
)
BESSEL = "PyTorch is off by some 1e-7; lowtide's values equal mpmath's to 1e-15."
WRAPS = "PyTorch adds neighbors in uint8, where sums above 255 wrap; lowtide's areas are exact."
NORM = "PyTorch's second gradient of a norm at 0 is NaN; lowtide's is 0, as the first one."

# Value, first or second gradient.
FLOAT64 = {
    "as_strided_scatter": "PyTorch's gradient fails its own gradcheck: what is replaced keeps it.",
    "nextafter": "PyTorch's result requires grad, and its backward is not implemented; here it "
    "does not require grad.",
    "chalf": "There is no complex32.",
    "linalg.norm/subgradients_at_zero": NORM,
    "special.bessel_j0": BESSEL,
    "special.bessel_y1": BESSEL,
}

# The same in complex128.
COMPLEX128 = {
    "as_strided_scatter": "PyTorch's gradient fails its own gradcheck: what is replaced keeps it.",
    "chalf": "There is no complex32.",
    "linalg.norm/subgradients_at_zero": NORM,
    "istft": "PyTorch's gradient of a window shorter than the transform is 0 if the input needs "
    "one too; by finite differences it is ours.",
}

# Values in other dtypes.
OTHER_DTYPES = {
    "int32": {
        "addmv": FRACTIONS,
        "addbmm": FRACTIONS,
        "baddbmm": FRACTIONS,
        "chalf": "There is no complex32.",
    },
    "uint8": {
        "addmv": FRACTIONS,
        "addbmm": FRACTIONS,
        "baddbmm": FRACTIONS,
        "cumulative_trapezoid": WRAPS,
        "nn.functional.margin_ranking_loss": "PyTorch's differences of uint8 wrap; ours do not.",
        "trapezoid": WRAPS,
        "trapz": WRAPS,
        "chalf": "There is no complex32.",
    },
    "int64": {
        "addmv": FRACTIONS,
        "addbmm": FRACTIONS,
        "baddbmm": FRACTIONS,
        "chalf": "There is no complex32.",
    },
    "bfloat16": {
        "gradient": "Three roundings to bfloat16 in another order.",
        "chalf": "There is no complex32.",
    },
    "bool": {
        "chalf": "There is no complex32.",
    },
    "float16": {
        "view_as_complex": "There is no complex32.",
        "complex": "There is no complex32.",
        "chalf": "There is no complex32.",
    },
    "float32": {
        "matrix_exp": "A small element among large ones: both are right to float32 of those.",
        "chalf": "There is no complex32.",
    },
    "complex64": {
        "chalf": "There is no complex32.",
    },
}

# Calls that must fail with a certain type.
ERRORS = {
    "__rdiv__": "Called on a number it is a TypeError, as of the other reflected operators; "
    "PyTorch's Python code stumbles over an AttributeError.",
    "gather": "An out= that is too small takes new memory, so it cannot overlap the index.",
    "cat": "PyTorch refuses an out= whose storage cannot grow; here every out= may take new "
    "memory.",
}

# Said to be differentiable, but no sample has a gradient to compare.
WITHOUT_GRADIENT = frozenset(
    """
    nn.functional.rrelu nn.functional.triplet_margin_with_distance_loss normal bernoulli
    nn.functional.dropout nn.functional.dropout2d nn.functional.dropout3d
    nn.functional.alpha_dropout nn.functional.feature_alpha_dropout/with_train
    nn.functional.feature_alpha_dropout/without_train
    nn.functional.multi_head_attention_forward
    nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d svd_lowrank
    pca_lowrank
    normal/number_mean
    """.split()
)

# PyTorch refuses its own samples on the CPU.
NOTHING_TO_COMPARE = frozenset("nn.functional.triplet_margin_with_distance_loss".split())

# Take no float64.
NOT_FLOAT64 = frozenset(
    """
    broadcast_shapes bitwise_not bitwise_left_shift bitwise_right_shift view_as_real imag
    bitwise_and bitwise_or bitwise_xor lcm gcd nn.functional.silu/complex
    nn.functional.batch_norm/without_cudnn __rand__ __ror__ __rxor__ unravel_index bincount
    triu_indices tril_indices nn.functional.one_hot
    istft
    """.split()
)

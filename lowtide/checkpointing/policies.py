"""Ready policies: what becomes of each value made in a checkpointed region."""

from lowtide.framework.checkpointing.jax_policies import checkpoint_dots as checkpoint_dots
from lowtide.framework.checkpointing.jax_policies import (
    checkpoint_dots_with_no_batch_dims as checkpoint_dots_with_no_batch_dims,
)
from lowtide.framework.checkpointing.jax_policies import dots_saveable as dots_saveable
from lowtide.framework.checkpointing.jax_policies import (
    dots_with_no_batch_dims as dots_with_no_batch_dims,
)
from lowtide.framework.checkpointing.jax_policies import (
    dots_with_no_batch_dims_saveable as dots_with_no_batch_dims_saveable,
)
from lowtide.framework.checkpointing.jax_policies import everything_saveable as everything_saveable
from lowtide.framework.checkpointing.jax_policies import nothing_saveable as nothing_saveable
from lowtide.framework.checkpointing.jax_policies import (
    offload_dot_with_no_batch_dims as offload_dot_with_no_batch_dims,
)
from lowtide.framework.checkpointing.jax_policies import (
    save_and_offload_only_these_names as save_and_offload_only_these_names,
)
from lowtide.framework.checkpointing.jax_policies import (
    save_any_names_but_these as save_any_names_but_these,
)
from lowtide.framework.checkpointing.jax_policies import (
    save_anything_except_these_names as save_anything_except_these_names,
)
from lowtide.framework.checkpointing.jax_policies import (
    save_from_both_policies as save_from_both_policies,
)
from lowtide.framework.checkpointing.jax_policies import (
    save_only_these_names as save_only_these_names,
)
from lowtide.framework.checkpointing.policies import Policy as Policy
from lowtide.framework.checkpointing.policies import everything as everything
from lowtide.framework.checkpointing.policies import policy as policy
from lowtide.framework.checkpointing.policies import save_every as save_every
from lowtide.framework.checkpointing.policies import save_matmuls as save_matmuls

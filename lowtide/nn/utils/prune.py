"""Pruning of parameters by masks, under the names that PyTorch has for it."""

from lowtide.modules.parametrization.pruning import BasePruningMethod as BasePruningMethod
from lowtide.modules.parametrization.pruning import CustomFromMask as CustomFromMask
from lowtide.modules.parametrization.pruning import Identity as Identity
from lowtide.modules.parametrization.pruning import L1Unstructured as L1Unstructured
from lowtide.modules.parametrization.pruning import LnStructured as LnStructured
from lowtide.modules.parametrization.pruning import PruningContainer as PruningContainer
from lowtide.modules.parametrization.pruning import RandomStructured as RandomStructured
from lowtide.modules.parametrization.pruning import RandomUnstructured as RandomUnstructured
from lowtide.modules.parametrization.pruning import custom_from_mask as custom_from_mask
from lowtide.modules.parametrization.pruning import global_unstructured as global_unstructured
from lowtide.modules.parametrization.pruning import identity as identity
from lowtide.modules.parametrization.pruning import is_pruned as is_pruned
from lowtide.modules.parametrization.pruning import l1_unstructured as l1_unstructured
from lowtide.modules.parametrization.pruning import ln_structured as ln_structured
from lowtide.modules.parametrization.pruning import random_structured as random_structured
from lowtide.modules.parametrization.pruning import random_unstructured as random_unstructured
from lowtide.modules.parametrization.pruning import remove as remove

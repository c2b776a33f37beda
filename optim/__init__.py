"""Optimizers, under PyTorch's names."""

from .adadelta import Adadelta as Adadelta
from .adafactor import Adafactor as Adafactor
from .adagrad import Adagrad as Adagrad
from .adam import Adam as Adam
from .adam import AdamW as AdamW
from .adam8bit import Adam8bit as Adam8bit
from .adam8bit import AdamW8bit as AdamW8bit
from .adamax import Adamax as Adamax
from .asgd import ASGD as ASGD
from .grad_scaler import GradScaler as GradScaler
from .in_backward import fuse_into_backward as fuse_into_backward
from .lbfgs import LBFGS as LBFGS
from .lion import Lion as Lion
from .muon import Muon as Muon
from .nadam import NAdam as NAdam
from .optimizer import Optimizer as Optimizer
from .radam import RAdam as RAdam
from .rmsprop import RMSprop as RMSprop
from .rprop import Rprop as Rprop
from .sgd import SGD as SGD
from .sparse_adam import SparseAdam as SparseAdam

# isort: split
from . import lr_scheduler as lr_scheduler
from . import swa_utils as swa_utils

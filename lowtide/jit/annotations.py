"""Names of types that annotations for TorchScript use."""

from typing import Any as Any
from typing import Dict as Dict  # noqa: UP035
from typing import List as List  # noqa: UP035
from typing import Optional as Optional
from typing import Tuple as Tuple  # noqa: UP035
from typing import Union as Union

from lowtide.jit import Final as Final
from lowtide.jit import annotate as annotate


class BroadcastingListCls:
    """``BroadcastingList2[int]``: a list of two, or one number for both."""

    def __getitem__(self, types: Any) -> Any:
        """Return nothing: no compiler reads it."""
        return


BroadcastingList1 = BroadcastingListCls()
BroadcastingList2 = BroadcastingListCls()
BroadcastingList3 = BroadcastingListCls()
BroadcastingList4 = BroadcastingListCls()
BroadcastingList5 = BroadcastingListCls()
BroadcastingList6 = BroadcastingListCls()

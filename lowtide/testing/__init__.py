"""Comparing tensors in tests."""

from lowtide.framework.testing import assert_close as assert_close

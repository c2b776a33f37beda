"""Values that are not there yet: futures that one thread fills and others wait for."""

from lowtide.framework.distributed.futures import Future as Future
from lowtide.framework.distributed.futures import collect_all as collect_all
from lowtide.framework.distributed.futures import wait_all as wait_all

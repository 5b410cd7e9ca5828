"""Pools: ready sandboxes that wait for whoever creates one."""

from cloche_server.pools._assembly import Warm, make_warm
from cloche_server.pools._creates import Creates
from cloche_server.pools._service import Places, PoolService

__all__ = ["Creates", "Places", "PoolService", "Warm", "make_warm"]

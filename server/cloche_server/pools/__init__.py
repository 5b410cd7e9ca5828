"""Pools: ready sandboxes that wait for whoever creates one."""

from cloche_server.pools._service import Places, PoolService

__all__ = ["Places", "PoolService"]

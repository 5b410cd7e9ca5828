"""Volumes: named disks that outlive sandboxes, each a file system of its own in an image file."""

from cloche_server.volumes._service import VolumeService

__all__ = ["VolumeService"]

"""Sandbox side of Cloche: the daemon that runs as PID 1 in every sandbox."""

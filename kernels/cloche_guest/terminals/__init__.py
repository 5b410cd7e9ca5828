"""Terminals: programs on PTYs, with several viewers, that outlive every connection.

`log`, `modes`, `preamble` and `session` are the protocol and are pure; `pty`, `recording` and `service` are its edge.
docs/terminals.md describes the protocol.
"""

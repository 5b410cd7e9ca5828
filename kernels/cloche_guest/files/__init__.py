"""Files of the sandbox: every operation is done by a worker process of the user it is for. See docs/decisions/0006-files.md."""

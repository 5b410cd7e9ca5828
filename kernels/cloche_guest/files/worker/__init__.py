"""The worker: a process of one user that does file operations. Standard library and inotify only, so that it starts fast and
stays small. It trusts the guest; it is itself in the hands of its user, so the guest trusts nothing it says."""

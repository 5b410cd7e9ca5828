"""The system calls a `runc` sandbox may make. Pure: builds the OCI ``linux.seccomp`` object.

An allow-list: a call nobody thought of is refused. Policy, with reasons, is docs/security.md, "System calls". Rules:

* Only the native architecture. libseccomp kills the thread on any other (i386 ``int 0x80``, x32): their call numbers
  mean something else and would pass the list.
* Arguments that the kernel takes as ``int`` are compared with the upper 32 bits masked away. A plain ``EQ`` compares 64
  bits, and ``socket(1 << 32 | AF_VSOCK)`` would pass it (CVE-2019-10063 was the same mistake with TIOCSTI).
* ``ioctl`` is allowed for every request *except* two. libseccomp drops conditional refusals when the same call is also
  allowed unconditionally, so "not these" is written as a union of masked equalities, see `_all_but`.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypedDict

EPERM: Final = 1
ENOSYS: Final = 38
EPROTONOSUPPORT: Final = 93
EAFNOSUPPORT: Final = 97

AF_UNIX: Final = 1
AF_INET: Final = 2
AF_INET6: Final = 10
AF_NETLINK: Final = 16
AF_MAX: Final = 46
"""include/linux/socket.h, Linux 6.18."""

NETLINK_ROUTE: Final = 0
"""getifaddrs() needs it, so every Node server that prints its addresses does. Without CAP_NET_ADMIN it only reads."""

NETLINK_PROTOCOLS: Final = 32
"""MAX_LINKS, include/uapi/linux/netlink.h."""

CLONE_NAMESPACES: Final = 0x7E02_0000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET (sched.h). NEWTIME (0x80) works only in clone3."""

INT_MASK: Final = 0xFFFF_FFFF

TIOCSTI: Final = 0x5412
TIOCLINUX: Final = 0x541C
"""Push keys into a terminal, paste into a console (CVE-2017-5226, CVE-2023-28100)."""

PERSONALITIES: Final = (0x0, 0x8, 0xFFFF_FFFF)
"""PER_LINUX, PER_LINUX32, and "only ask". Others switch address randomisation off."""

ALLOWED: Final = frozenset(
    [
        "accept",
        "accept4",
        "access",
        "alarm",
        "arch_prctl",
        "arm_fadvise64_64",
        "bind",
        "brk",
        "cachestat",
        "capget",
        "capset",
        "chdir",
        "chmod",
        "chown",
        "clock_getres",
        "clock_gettime",
        "clock_nanosleep",
        "close",
        "close_range",
        "connect",
        "copy_file_range",
        "creat",
        "dup",
        "dup2",
        "dup3",
        "epoll_create",
        "epoll_create1",
        "epoll_ctl",
        "epoll_pwait",
        "epoll_pwait2",
        "epoll_wait",
        "eventfd",
        "eventfd2",
        "execve",
        "execveat",
        "exit",
        "exit_group",
        "faccessat",
        "faccessat2",
        "fadvise64",
        "fallocate",
        "fanotify_mark",
        "fchdir",
        "fchmod",
        "fchmodat",
        "fchmodat2",
        "fchown",
        "fchownat",
        "fcntl",
        "fdatasync",
        "fgetxattr",
        "flistxattr",
        "flock",
        "fork",
        "fremovexattr",
        "fsetxattr",
        "fstat",
        "fstatfs",
        "fsync",
        "ftruncate",
        "futex",
        "futex_requeue",
        "futex_wait",
        "futex_waitv",
        "futex_wake",
        "futimesat",
        "get_mempolicy",
        "get_robust_list",
        "get_thread_area",
        "getcpu",
        "getcwd",
        "getdents",
        "getdents64",
        "getegid",
        "geteuid",
        "getgid",
        "getgroups",
        "getitimer",
        "getpeername",
        "getpgid",
        "getpgrp",
        "getpid",
        "getppid",
        "getpriority",
        "getrandom",
        "getresgid",
        "getresuid",
        "getrlimit",
        "getrusage",
        "getsid",
        "getsockname",
        "getsockopt",
        "gettid",
        "gettimeofday",
        "getuid",
        "getxattr",
        "inotify_add_watch",
        "inotify_init",
        "inotify_init1",
        "inotify_rm_watch",
        "io_cancel",
        "io_destroy",
        "io_getevents",
        "io_pgetevents",
        "io_setup",
        "io_submit",
        "ioprio_get",
        "ioprio_set",
        "kill",
        "landlock_add_rule",
        "landlock_create_ruleset",
        "landlock_restrict_self",
        "lchown",
        "lgetxattr",
        "link",
        "linkat",
        "listen",
        "listxattr",
        "llistxattr",
        "lremovexattr",
        "lseek",
        "lsetxattr",
        "lstat",
        "madvise",
        "map_shadow_stack",
        "mbind",
        "membarrier",
        "memfd_create",
        "mincore",
        "mkdir",
        "mkdirat",
        "mknod",
        "mknodat",
        "mlock",
        "mlock2",
        "mlockall",
        "mmap",
        "mprotect",
        "mq_getsetattr",
        "mq_notify",
        "mq_open",
        "mq_timedreceive",
        "mq_timedsend",
        "mq_unlink",
        "mremap",
        "mseal",
        "msgctl",
        "msgget",
        "msgrcv",
        "msgsnd",
        "msync",
        "munlock",
        "munlockall",
        "munmap",
        "nanosleep",
        "newfstatat",
        "open",
        "openat",
        "openat2",
        "pause",
        "pidfd_open",
        "pidfd_send_signal",
        "pipe",
        "pipe2",
        "pkey_alloc",
        "pkey_free",
        "pkey_mprotect",
        "poll",
        "ppoll",
        "prctl",
        "pread64",
        "preadv",
        "preadv2",
        "prlimit64",
        "process_madvise",
        "pselect6",
        "pwrite64",
        "pwritev",
        "pwritev2",
        "read",
        "readahead",
        "readlink",
        "readlinkat",
        "readv",
        "recvfrom",
        "recvmmsg",
        "recvmsg",
        "remap_file_pages",
        "removexattr",
        "rename",
        "renameat",
        "renameat2",
        "restart_syscall",
        "rmdir",
        "rseq",
        "rt_sigaction",
        "rt_sigpending",
        "rt_sigprocmask",
        "rt_sigqueueinfo",
        "rt_sigreturn",
        "rt_sigsuspend",
        "rt_sigtimedwait",
        "rt_tgsigqueueinfo",
        "sched_get_priority_max",
        "sched_get_priority_min",
        "sched_getaffinity",
        "sched_getattr",
        "sched_getparam",
        "sched_getscheduler",
        "sched_rr_get_interval",
        "sched_setaffinity",
        "sched_setattr",
        "sched_setparam",
        "sched_setscheduler",
        "sched_yield",
        "seccomp",
        "select",
        "semctl",
        "semget",
        "semop",
        "semtimedop",
        "sendfile",
        "sendmmsg",
        "sendmsg",
        "sendto",
        "set_mempolicy",
        "set_mempolicy_home_node",
        "set_robust_list",
        "set_thread_area",
        "set_tid_address",
        "setdomainname",
        "setfsgid",
        "setfsuid",
        "setgid",
        "setgroups",
        "sethostname",
        "setitimer",
        "setpgid",
        "setpriority",
        "setregid",
        "setresgid",
        "setresuid",
        "setreuid",
        "setrlimit",
        "setsid",
        "setsockopt",
        "setuid",
        "setxattr",
        "shmat",
        "shmctl",
        "shmdt",
        "shmget",
        "shutdown",
        "sigaltstack",
        "signalfd",
        "signalfd4",
        "splice",
        "stat",
        "statfs",
        "statx",
        "symlink",
        "symlinkat",
        "sync",
        "sync_file_range",
        "sync_file_range2",
        "syncfs",
        "sysinfo",
        "tee",
        "tgkill",
        "time",
        "timer_create",
        "timer_delete",
        "timer_getoverrun",
        "timer_gettime",
        "timer_settime",
        "timerfd_create",
        "timerfd_gettime",
        "timerfd_settime",
        "times",
        "tkill",
        "truncate",
        "umask",
        "uname",
        "unlink",
        "unlinkat",
        "utime",
        "utimensat",
        "utimes",
        "vfork",
        "vmsplice",
        "wait4",
        "waitid",
        "write",
        "writev",
    ]
)
"""Every call of Linux up to 6.18 that works on the caller's own processes, files, memory and sockets."""

REFUSED: Final[dict[str, frozenset[str]]] = {
    "changes or reads the host's kernel": frozenset(
        [
            "_sysctl",
            "acct",
            "adjtimex",
            "afs_syscall",
            "bpf",
            "clock_adjtime",
            "clock_settime",
            "create_module",
            "delete_module",
            "epoll_ctl_old",
            "epoll_wait_old",
            "finit_module",
            "get_kernel_syms",
            "getpmsg",
            "init_module",
            "ioperm",
            "iopl",
            "kexec_file_load",
            "kexec_load",
            "lookup_dcookie",
            "modify_ldt",
            "nfsservctl",
            "perf_event_open",
            "putpmsg",
            "query_module",
            "quotactl",
            "quotactl_fd",
            "reboot",
            "security",
            "settimeofday",
            "swapoff",
            "swapon",
            "sysfs",
            "syslog",
            "tuxcall",
            "uselib",
            "ustat",
            "vhangup",
            "vserver",
        ]
    ),
    "undoes the file system view": frozenset(
        [
            "chroot",
            "fsconfig",
            "fsmount",
            "fsopen",
            "fspick",
            "listmount",
            "mount",
            "mount_setattr",
            "move_mount",
            "open_tree",
            "open_tree_attr",
            "pivot_root",
            "statmount",
            "umount2",
        ]
    ),
    "opens kernel code only namespaces reach": frozenset({"setns", "unshare"}),
    "opens files by number, past the mount view": frozenset(
        {"open_by_handle_at", "name_to_handle_at", "fanotify_init"}
    ),
    "reaches into another process": frozenset(
        [
            "kcmp",
            "migrate_pages",
            "move_pages",
            "pidfd_getfd",
            "process_mrelease",
            "process_vm_readv",
            "process_vm_writev",
            "ptrace",
        ]
    ),
    "keyrings are only partly namespaced": frozenset({"add_key", "keyctl", "request_key"}),
    "bypasses this filter or widens kernel races": frozenset(
        {"io_uring_enter", "io_uring_register", "io_uring_setup", "memfd_secret", "userfaultfd"}
    ),
}
"""Not in the profile (what is not allowed is refused): kept with its reason, and compared with the list by a test."""

CONDITIONAL: Final = frozenset({"clone", "clone3", "ioctl", "personality", "socket", "socketpair"})

_NATIVE: Final = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}


class Argument(TypedDict):
    """``value`` is the mask and ``valueTwo`` what must be left after masking."""

    index: int
    value: int
    valueTwo: int
    op: str


class _Rule(TypedDict):
    names: Sequence[str]
    action: str


class Rule(_Rule, total=False):
    """One entry of ``linux.seccomp.syscalls``. All arguments must match; rules for the same call are alternatives."""

    args: Sequence[Argument]
    errnoRet: int


class Profile(TypedDict):
    """OCI ``linux.seccomp``."""

    defaultAction: str
    defaultErrnoRet: int
    architectures: Sequence[str]
    syscalls: Sequence[Rule]


@dataclass(frozen=True, slots=True)
class Masked:
    """``argument & mask == wanted``, as the kernel sees a C int."""

    mask: int
    wanted: int

    def on(self, index: int) -> Argument:
        return {"index": index, "value": self.mask, "valueTwo": self.wanted, "op": "SCMP_CMP_MASKED_EQ"}


def equal(value: int) -> Masked:
    return Masked(INT_MASK, value)


def build_profile(machine: str = platform.machine()) -> Profile:
    """The whole profile. `LookupError` on an architecture whose native name is not known."""
    if machine not in _NATIVE:
        raise LookupError(f"no seccomp profile for the {machine} architecture")
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": EPERM,
        "architectures": [_NATIVE[machine]],
        "syscalls": [
            {"names": sorted(ALLOWED), "action": "SCMP_ACT_ALLOW"},
            *_clone_rules(),
            *_socket_rules(),
            *(_allow("personality", equal(value).on(0)) for value in PERSONALITIES),
            *(_allow("ioctl", condition.on(1)) for condition in _all_but(TIOCSTI, TIOCLINUX)),
        ],
    }


def _clone_rules() -> list[Rule]:
    """clone3 hides its flags behind a pointer; told ENOSYS, glibc falls back to clone."""
    return [
        _allow("clone", Masked(CLONE_NAMESPACES, 0).on(0)),
        _answer("clone3", ENOSYS),
    ]


def _socket_rules() -> list[Rule]:
    """The rest gets the answer of a kernel without it: a library that probes goes on, EPERM makes some stop (libaudit
    in sudo does)."""
    allowed = (AF_UNIX, AF_INET, AF_INET6)
    others = [family for family in range(AF_MAX) if family not in (*allowed, AF_NETLINK)]
    return [
        *(_allow("socket", equal(family).on(0)) for family in allowed),
        _allow("socket", equal(AF_NETLINK).on(0), equal(NETLINK_ROUTE).on(2)),
        _allow("socketpair", equal(AF_UNIX).on(0)),
        *(_answer("socket", EAFNOSUPPORT, equal(family).on(0)) for family in others),
        *(
            _answer("socket", EPROTONOSUPPORT, equal(AF_NETLINK).on(0), equal(protocol).on(2))
            for protocol in range(NETLINK_PROTOCOLS)
            if protocol != NETLINK_ROUTE
        ),
    ]


def _answer(name: str, errno: int, *args: Argument) -> Rule:
    return {"names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": errno, "args": list(args)}


def _allow(name: str, *args: Argument) -> Rule:
    return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": list(args)}


def _all_but(first: int, second: int) -> Iterable[Masked]:
    """Conditions whose union is every 32-bit value but the two.

    A value is neither of them exactly when it differs in a bit that both share, or, sharing those, when the bits in
    which the two differ from each other spell neither.
    """
    differing = [1 << bit for bit in range(32) if (first ^ second) >> bit & 1]
    shared = INT_MASK & ~sum(differing)
    for bit in range(32):
        if shared >> bit & 1:
            yield Masked(1 << bit, ~first & (1 << bit))
    for combination in range(1 << len(differing)):
        value = first & shared | sum(bit for i, bit in enumerate(differing) if combination >> i & 1)
        if value not in (first, second):
            yield Masked(INT_MASK, value)

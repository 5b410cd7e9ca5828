"""The program between the server and a runtime: ``python -I -S _launcher.py orders.json``, or, started ahead, without the
name of the orders, which then comes as a line on standard input.

It puts itself into the sandbox's cgroup, makes every mount in a mount namespace of its own, and becomes the runtime.
Three properties follow, and the tests hold it to them:

* whatever it and its children make is in the cgroup before anything else exists, so killing the cgroup stops a start
  at any point, also for a server that did not begin it;
* the mounts (and the loop device below them) live as long as a process of the sandbox does, and are never seen in the
  host's mount table;
* it is in a session of its own and its parent may die at any time.

It runs alone, as a script: nothing of the project is imported, it starts in 25 ms, and it has one thread (unshare needs
that). What goes wrong is written to the console like the runtime's own words, by way of the file that the driver gives as
standard error until the console is open.
"""

import ctypes
import errno
import fcntl
import json
import os
import resource
import signal
import stat
import struct
import sys

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_NOATIME = 1, 2, 4, 8, 0x400
MS_REC, MS_SLAVE = 0x4000, 0x80000
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
# Generic numbers: the same on every architecture since Linux 5.2 and 5.12.
SYS_OPEN_TREE, SYS_MOVE_MOUNT, SYS_MOUNT_SETATTR = 428, 429, 442
AT_FDCWD, AT_EMPTY_PATH, AT_SYMLINK_FOLLOW = -100, 0x1000, 0x400
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 4
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC = 1, 2, 4, 8
MOUNT_ATTR_IDMAP = 0x100000
LOOP_CTL_GET_FREE, LOOP_CONFIGURE = 0x4C82, 0x4C0A
LO_FLAGS_AUTOCLEAR = 4
# struct loop_config: fd, block size, then loop_info64 with the flags after five 64-bit and three 32-bit numbers, then 64 bytes.
LOOP_CONFIG = struct.Struct("=II 5Q 3I I 160s 16x 64x")
LOOP_ATTEMPTS = 100
PR_SET_TIMERSLACK = 29
PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP = 28, 4
IDS = 65536
# gVisor answers EAGAIN, even to a program that wants to block, while a pipe of the host is full: leave room for bursts.
CONSOLE_PIPE_BYTES = 1 << 20

JOURNAL_MB = 4
"""mke2fs's least with blocks of 4 KiB. 16 and 32 were no faster."""

MAX_BLANKS = 16
"""Sizes of which a blank disk is kept; each takes 0.3 MB and more for large ones. Callers choose sizes freely."""

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> int:
    """Turn a C error into `OSError`; ``what`` is said with it."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def mount(source: str, target: str, fs_type: str, flags: int, options: str = "") -> None:
    arguments = (source.encode(), target.encode(), fs_type.encode(), ctypes.c_ulong(flags), options.encode())
    check(libc.mount(*arguments), f"mount {fs_type or source} on {target}")


def run(*argv: str) -> None:
    """Run a host tool to its end; `OSError` when it fails. Its words go to the console."""
    pid = os.posix_spawnp(argv[0], argv, os.environ)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        raise OSError(f"{argv[0]} ended with {status}")


def join_cgroup(join_files: "list[str]") -> None:
    """Fails, as it should, when the sandbox was destroyed in the meantime."""
    for file in join_files:
        with open(file, "w") as procs:
            procs.write(str(os.getpid()))


def open_console(path: str, limit_bytes: int) -> None:
    """Standard output and error become a pipe whose reader keeps the first bytes and throws away the rest for ever.

    A plain file could fill the host's disk, a pipe nobody reads would block the guest, and the server may be dead.
    """
    source, sink = os.pipe()
    fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, CONSOLE_PIPE_BYTES)
    if os.fork() == 0:
        os.dup2(source, 0)
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), 1)
        os.dup2(os.open("/dev/null", os.O_WRONLY), 2)  # the shell says that cat has reached the limit
        os.closerange(3, 1024)
        # cat writes what it reads at once (head would hold it back); SIGXFSZ ends it at the limit. Units: 512 bytes.
        drain = f"(ulimit -f {limit_bytes // 512}; exec cat); exec cat >/dev/null"
        os.execv("/bin/sh", ["sh", "-c", drain])
    os.close(source)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    os.close(sink)


def own_namespace(stage: str) -> None:
    """From here on, host mounts still reach us (so that an unmount there is one), ours never reach the host."""
    check(libc.unshare(CLONE_NEWNS), "unshare mount namespace")
    mount("", "/", "", MS_REC | MS_SLAVE)
    mount("cloche", stage, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=64k")
    for name in ("disk", "lower", "root", "uplink"):
        os.mkdir(f"{stage}/{name}", 0o755)


def make_disk(path: str, blank: str, size_bytes: int, inode_ratio: int) -> None:
    """A blank disk: a copy of the one that an earlier start kept at ``blank``, else a new one, of which a copy is kept.
    Measured: 1 ms against 4, and against 13 to 120 where the host's disk is busy, since mkfs waits for it."""
    try:
        source = os.open(blank, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        format_disk(path, size_bytes, inode_ratio)
        keep_blank(path, blank)
        return
    target = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    copy_data(source, target)
    os.close(source)
    os.close(target)


def keep_blank(path: str, blank: str) -> None:
    """It gets its name when it is whole and on the host's disk, so a kill or a power failure leaves nothing or all of it."""
    directory = os.path.dirname(blank)
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
        if len(os.listdir(directory)) >= MAX_BLANKS:
            return
        source, nameless = os.open(path, os.O_RDONLY), os.open(directory, os.O_TMPFILE | os.O_RDWR, 0o600)
        copy_data(source, nameless)
        os.fsync(nameless)
        name = f"/proc/self/fd/{nameless}".encode()
        check(libc.linkat(AT_FDCWD, name, AT_FDCWD, blank.encode(), AT_SYMLINK_FOLLOW), f"link {blank}")
    except OSError:  # another start was first, or this file system has no nameless files: the next start formats again
        return


def copy_data(source: int, target: int) -> None:
    """The holes stay holes."""
    size = os.fstat(source).st_size
    os.ftruncate(target, size)
    begin = 0
    while begin < size:
        try:
            begin = os.lseek(source, begin, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a hole up to the end
                return
            raise
        end = os.lseek(source, begin, os.SEEK_HOLE)
        while begin < end:
            copied = os.copy_file_range(source, target, end - begin, begin, begin)
            if copied == 0:
                raise OSError(f"the blank disk ends at {begin} of {size} bytes")
            begin += copied


def format_disk(path: str, size_bytes: int, inode_ratio: int) -> None:
    """A new, blank, sparse ext4 image: nothing reserved. `Layout.blank_disk` names what it makes.

    It dies with the sandbox, so it needs no journal to survive a crash. But without one ext4 takes no inode that was freed
    less than a minute ago, and looks at all of those for every new file: 20,000 files after 20,000 were removed took 12 s
    instead of 2. So it has the smallest one, which orders no data and flushes nothing to the host's disk.
    """
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as image:
        image.truncate(size_bytes)
    extended = "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0"
    features = ("-O", "^resize_inode", "-J", f"size={JOURNAL_MB}", "-E", extended)
    run("mkfs.ext4", "-q", "-F", "-m", "0", "-i", str(inode_ratio), *features, path)


def copy_disk(source: str, path: str) -> None:
    """The disk as it was saved; 0600 from the first moment."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600))
    run("cp", "--sparse=always", "--reflink=auto", source, path)


def mount_disk(path: str, target: str) -> None:
    """Holes are given back. Without the background zeroing of inode tables the image changes only when the sandbox writes,
    so it can be copied while the sandbox stands still."""
    device = attach_loop(path)
    try:
        options = "discard,data=writeback,nobarrier,noinit_itable"
        mount(os.readlink(f"/proc/self/fd/{device}"), target, "ext4", MS_NODEV | MS_NOATIME, options)
    finally:
        os.close(device)


def attach_loop(path: str) -> int:
    """An open loop device over the file. The kernel frees it as soon as nobody has it open or mounted, whoever is killed."""
    image, control = os.open(path, os.O_RDWR | os.O_CLOEXEC), os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    config = LOOP_CONFIG.pack(image, 0, 0, 0, 0, 0, 0, 0, 0, 0, LO_FLAGS_AUTOCLEAR, path.encode()[:63])
    try:
        for _ in range(LOOP_ATTEMPTS):
            device = os.open(f"/dev/loop{fcntl.ioctl(control, LOOP_CTL_GET_FREE)}", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, LOOP_CONFIGURE, config)
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:  # another process was first with this one
                    raise
            else:
                return device
    finally:
        os.close(image)
        os.close(control)
    raise OSError(f"no free loop device in {LOOP_ATTEMPTS} attempts")


def user_namespace(first_id: int) -> int:
    """A descriptor of a user namespace that maps 0..65535 to the sandbox's range; only used to describe the mapping."""
    ready_read, ready_write = os.pipe()
    child = os.fork()
    if child == 0:
        check(libc.unshare(CLONE_NEWUSER), "unshare user namespace")
        os.write(ready_write, b"1")
        signal.pause()
    os.close(ready_write)  # else the end of a child that says nothing would be waited for, for ever
    if os.read(ready_read, 1) != b"1":
        raise OSError("no user namespace")
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/{child}/{name}", "w") as file:
            file.write(f"0 {first_id} {IDS}")
    namespace = os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(ready_read)
    return namespace


def open_tree(path: str) -> int:
    """A detached copy of the mount at ``path``, without those below it."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC
    return check(libc.syscall(SYS_OPEN_TREE, AT_FDCWD, path.encode(), flags), f"open_tree {path}")


def attach(tree: int, target: str, attributes: int, namespace: "int | None") -> None:
    """Mount the detached ``tree`` at ``target``; with a namespace, its files' owners are shifted into the range."""
    idmap = 0 if namespace is None else MOUNT_ATTR_IDMAP
    attr = struct.pack("=QQQQ", attributes | idmap, 0, 0, namespace or 0)
    set_arguments = (SYS_MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, attr, ctypes.c_size_t(len(attr)))
    check(libc.syscall(*set_arguments), f"mount_setattr for {target}")
    move_arguments = (SYS_MOVE_MOUNT, tree, b"", AT_FDCWD, target.encode(), MOVE_MOUNT_F_EMPTY_PATH)
    check(libc.syscall(*move_arguments), f"move_mount to {target}")
    os.close(tree)


def mount_as(user: int, source: str, target: str, fs_type: str, flags: int, options: str) -> None:
    """Mount with all rights of root, but as this user: an overlay makes its own files as whoever mounted it."""
    check(libc.prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0), "securebits")
    libc.setfsuid(user)
    libc.setfsgid(user)
    try:
        mount(source, target, fs_type, flags, options)
    finally:
        libc.setfsuid(0)
        libc.setfsgid(0)
        check(libc.prctl(PR_SET_SECUREBITS, 0, 0, 0, 0), "securebits")


def mount_overlay(stage: str, first_id: int, namespace: int) -> None:
    """Copy-on-write over the shared image. What is written fills the sandbox's own disk, with the owners that it sees
    itself: the disk does not know the range of ids, so a copy of it is good for any other sandbox."""
    for name in ("upper", "work"):
        os.makedirs(f"{stage}/disk/{name}", 0o755, exist_ok=True)
    attach(open_tree(f"{stage}/disk"), f"{stage}/disk", MOUNT_ATTR_NODEV, namespace)
    upper, work = f"{stage}/disk/upper", f"{stage}/disk/work"
    options = f"lowerdir={stage}/lower,upperdir={upper},workdir={work},index=off,metacopy=off,xino=off"
    # The host's root is not in the range: it can own nothing on the shifted disk.
    mount_as(first_id, "overlay", f"{stage}/root", "overlay", MS_NOSUID | MS_NODEV, options)


def attach_volumes(stage: str, volumes: "list[tuple[int, bool]]", namespace: "int | None") -> None:
    """Each tree where the OCI configuration expects it."""
    for number, (tree, read_only) in enumerate(volumes):
        os.mkdir(f"{stage}/volume-{number}", 0o755)
        attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | (MOUNT_ATTR_RDONLY if read_only else 0)
        attach(tree, f"{stage}/volume-{number}", attributes, namespace)


def mount_with_points(stage: str, targets: "list[str]") -> None:
    """The image with a directory wherever a volume goes, for a runtime that mounts onto the image itself: a layer of empty
    directories lies over it. A directory of both has the owner and the mode of the upper one, so these are copied.

    Without volumes, too: a runtime that saves memory asks every file of the image that it has open to be written to the disk
    first, while the sandbox stands still. Through a layer that is read only that is nothing; without it the host's file
    system flushes the disk for each. Measured with pandas: 105 files, 28 to 120 ms.
    """
    os.mkdir(f"{stage}/points", 0o755)
    for target in targets:
        path = ""
        for part in target[1:].split("/"):
            path += f"/{part}"
            make_point(f"{stage}/points{path}", f"{stage}/lower{path}")
    options = f"lowerdir={stage}/points:{stage}/lower,index=off,metacopy=off,xino=off"
    mount("overlay", f"{stage}/root", "overlay", MS_RDONLY | MS_NODEV, options)


def make_point(point: str, like: str) -> None:
    if os.path.lexists(point):
        return
    os.mkdir(point, 0o755)
    if os.path.lexists(like):
        found = os.lstat(like)
        if not stat.S_ISDIR(found.st_mode):
            raise OSError(f"a volume cannot be mounted below {like}: no directory in the image")
        os.chown(point, found.st_uid, found.st_gid)
        os.chmod(point, stat.S_IMODE(found.st_mode))


def prepare(orders) -> None:  # type: ignore[no-untyped-def] # JSON; typing takes 8 ms to import
    """All the mounts, in the order in which one needs the other. Trees are opened before the stage hides anything."""
    first_id, stage, disk = orders["first_id"], orders["stage"], orders["disk"]
    namespace = None if first_id is None else user_namespace(first_id)
    image, uplink = open_tree(orders["rootfs"]), open_tree(orders["uplink"])
    volumes = [(open_tree(source), read_only) for source, read_only in orders["volumes"]]
    if orders["disk_source"] is None:
        make_disk(disk, orders["blank_disk"], orders["disk_bytes"], orders["inode_ratio_bytes"])
    else:
        copy_disk(orders["disk_source"], disk)
    own_namespace(stage)
    attach(image, f"{stage}/lower", MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV, namespace)
    private = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC
    attach(uplink, f"{stage}/uplink", private, namespace)
    attach_volumes(stage, volumes, namespace)
    mount_disk(disk, f"{stage}/disk")
    if namespace is not None:
        mount_overlay(stage, first_id, namespace)
    else:
        mount_with_points(stage, orders["volume_targets"])


def relax_timers(slack_ns: "int | None") -> None:
    """For all that comes from this process; exec keeps it."""
    if slack_ns is not None:
        check(libc.prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(slack_ns), 0, 0, 0), "timer slack")


def tidy_process() -> None:
    """No descriptor but the standard ones, no core files, as many open files as the machine lets us."""
    os.closerange(3, 1 << 20)
    os.umask(0o022)
    os.chdir("/")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def hear_orders() -> "dict":  # type: ignore[type-arg] # JSON; typing takes 8 ms to import
    """Started ahead it ends without a word when nobody says anything: its server is gone. What it says is heard from here on."""
    if len(sys.argv) > 1:
        with open(sys.argv[1]) as file:
            return dict(json.load(file))
    name = os.fsdecode(sys.stdin.buffer.readline()).rstrip("\n")
    if not name:
        sys.exit(0)
    with open(name) as file:
        orders = dict(json.load(file))
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW
    os.dup2(os.open(orders["console"], flags, 0o600), 2)
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    return orders


def main() -> None:
    orders = hear_orders()
    tidy_process()
    join_cgroup(orders["join_files"])
    open_console(orders["console"], int(orders["console_bytes"]))
    try:
        prepare(orders)
        relax_timers(orders["timer_slack_ns"])
        os.execv(orders["argv"][0], orders["argv"])
    except OSError as error:
        sys.stderr.write(f"cloche launcher: {error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()

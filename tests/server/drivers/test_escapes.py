"""Ways out, tried from inside. Each refusal has a twin that works, so that a broken probe is not read as security.

Numbers in names are rows of the table of known escapes; the policy is docs/security.md.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cloche_server.drivers import OciDriver

from .harness import Sandbox, running
from .probes import GETPID_I386, GETPID_NATIVE, GETPID_X32, NATIVE_CODE, PRELUDE

x86_64_only = pytest.mark.skipif(platform.machine() != "x86_64", reason="system call numbers of x86-64")


def probe(sandbox: Sandbox, code: str, *, user: bool = False) -> str:
    return sandbox.check(PRELUDE + code, user=user)


# -- privileges


def test_root_has_eight_capabilities_and_cannot_get_more(shared: Sandbox) -> None:
    sets = dict(
        re.findall(r"Cap(Prm|Eff|Bnd|Inh|Amb):\s+([0-9a-f]+)", probe(shared, "print(open('/proc/self/status').read())"))
    )
    wanted = sum(1 << bit for bit in (0, 1, 3, 4, 5, 6, 7, 10))
    assert {int(sets[name], 16) for name in ("Prm", "Eff", "Bnd")} == {wanted}
    assert int(sets["Inh"], 16) == 0
    assert int(sets.get("Amb", "0"), 16) == 0


def test_the_user_has_none(shared: Sandbox) -> None:
    status = probe(shared, "print(open('/proc/self/status').read())", user=True)
    assert int(re.findall(r"CapEff:\s+(\w+)", status)[0], 16) == 0


def test_no_program_gains_privileges_by_exec(shared: Sandbox) -> None:
    """The image's sudo asks PID 1. A set-user-id bit, which root can set, is without effect for everybody."""
    plant = "import os, shutil; shutil.copy('/usr/bin/python3', '/workspace/suid'); os.chmod('/workspace/suid', 0o4755)"
    shared.check(plant)
    run = "import subprocess; subprocess.run(['/workspace/suid', '-Ic', 'import os; print(os.geteuid())'], check=True)"
    assert shared.check(run, user=True) == "1000"
    assert shared.check(run) == "0"
    if shared.driver.name == "runc":
        assert "NoNewPrivs:\t1" in shared.check("print(open('/proc/self/status').read())")


def test_without_sudo_pid_1_still_starts_kernels_as_the_user(driver: OciDriver, rootfs: Path, scratch: Path) -> None:
    with running(driver, rootfs, scratch, sudo=False) as sandbox:
        assert sandbox.check("import os; print(os.getuid(), os.getgroups())", user=True) == "1000 []"
        back = "import os\ntry: os.setuid(0)\nexcept OSError as e: print(e.errno)"
        assert sandbox.check(back, user=True) == "1"
        bounding = "print(*[line.split()[1] for line in open('/proc/self/status') if line.startswith('CapBnd')])"
        assert sandbox.check(bounding).lstrip("0") == "4eb"


def test_root_inside_is_nobody_outside_and_alone(runc_sandbox: Sandbox, roots: Path) -> None:
    home = roots / "run" / "runc" / runc_sandbox.id
    uid = int(re.findall(r"Uid:\s+(\d+)", Path(f"/proc/{(home / 'pid').read_text()}/status").read_text())[0])
    assert uid >= 0x7000_0000
    assert probe(runc_sandbox, "print(open('/proc/self/uid_map').read())").split() == ["0", str(uid), "65536"]


def test_files_of_the_image_have_their_owners(shared: Sandbox) -> None:
    """Shared by all sandboxes, shifted into each one's ids."""
    look = "import os; s = os.stat('/etc/shadow'); h = os.stat('/workspace'); print(s.st_uid, s.st_gid, h.st_uid)"
    assert shared.check(look) == "0 42 1000"
    assert (
        shared.check("import os; open('/workspace/mine', 'w'); print(os.stat('/workspace/mine').st_uid)", user=True)
        == "1000"
    )


# -- the file system view


def test_mounting_and_remounting_is_refused(shared: Sandbox) -> None:
    """2: a root-launched sandbox that kept CAP_SYS_ADMIN could make a read-only bind writable."""
    tries = probe(
        shared,
        "m = lambda *a: 'ok' if libc.mount(*a) == 0 else errno.errorcode[ctypes.get_errno()]\n"
        "print(m(b'none', b'/', b'', 0x1020, b''), m(b't', b'/srv', b'tmpfs', 0, b''), m(b'p', b'/srv', b'proc', 0, b''),"
        "m(b'none', b'/run/cloche', b'', 0x1020, b''), 'ok' if libc.umount2(b'/proc', 2) == 0 else 'no')\n"
        "print(errno_of(os.listdir, '/srv'))",
    )
    assert tries.split() == ["EPERM", "EPERM", "EPERM", "EPERM", "no", "ok"]


def test_11_no_cgroup_file_system_can_be_seen_or_mounted(shared: Sandbox) -> None:
    tries = probe(
        shared,
        "print(libc.mount(b'c', b'/srv', b'cgroup', 0, b'memory'), libc.mount(b'c', b'/srv', b'cgroup2', 0, b''))\n"
        "seen = [m.split()[1] for m in open('/proc/mounts') if m.split()[2].startswith('cgroup')]\n"
        "print(','.join(seen) or 'none', errno_of(os.listdir, '/sys/fs/cgroup'))\n"
        "print('/proc' in open('/proc/mounts').read())",
    ).split()
    assert tries[:2] == ["-1", "-1"]
    assert tries[2] in ("none", "/run/cloche-memory-events")
    assert tries[4] == "True"


def test_the_one_file_of_the_cgroup_that_runc_shows_can_only_be_read(shared: Sandbox) -> None:
    if shared.driver.name != "runc":
        assert probe(shared, "print(os.path.exists('/run/cloche-memory-events'))") == "False"
        return
    code = "p = '/run/cloche-memory-events'; print('oom_kill ' in open(p).read(), errno_of(os.open, p, os.O_WRONLY))"
    assert probe(shared, code).split() in (["True", "EROFS"], ["True", "EACCES"])


def test_files_of_the_host_are_not_there(shared: Sandbox, roots: Path) -> None:
    canary = roots / "canary"
    canary.write_text("of the host")
    code = f"c = {str(canary)!r}; print(*map(os.path.exists, (c, '/proc/1/root' + c, '/etc/passwd')))"
    assert probe(shared, code) == "False False True"


def test_9_no_descriptor_and_no_directory_of_the_host_is_left_open(shared: Sandbox) -> None:
    """CVE-2024-21626. PID 1 begins with its standard streams and nothing else."""
    code = "print(open('/run/first-state').read(), len(os.listdir('/proc/self/fd')) >= 3)"
    assert probe(shared, code).split() == ["cwd=/", "True"]


def test_9_standard_input_is_empty(shared: Sandbox) -> None:
    assert shared.check("import sys; print(repr(sys.stdin.read(1)))") == "''"


def test_the_only_socket_that_can_be_reached_by_path_is_the_uplink(shared: Sandbox) -> None:
    code = """
import stat
tops = ['/']
def look(entry):
    if entry.is_dir(follow_symlinks=False):
        if entry.path != '/proc': tops.append(entry.path)
    elif not (entry.is_symlink() or entry.is_file(follow_symlinks=False)):  # known without a system call
        if stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode): print(entry.path)
while tops:
    try: entries = list(os.scandir(tops.pop()))
    except OSError: continue
    for entry in entries:
        try: look(entry)
        except OSError: pass
"""
    assert probe(shared, code) == "/run/cloche/uplink.sock"


def test_devices_are_the_harmless_ones(shared: Sandbox) -> None:
    harmless = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}
    code = (
        "import stat\nfor top, _, names in os.walk('/dev'):\n"
        "  for n in names:\n"
        "    p = os.path.join(top, n); m = os.lstat(p).st_mode\n"
        "    if stat.S_ISBLK(m) or (stat.S_ISCHR(m) and not top.startswith('/dev/pts')): print(n)"
    )
    found = set(probe(shared, code).split())
    assert (
        {"null", "zero", "urandom"}
        <= found
        <= harmless | {"net", "tun", "fuse"} - ({"fuse"} if shared.driver.name == "runc" else set())
    )


def test_a_device_node_reaches_no_device(shared: Sandbox) -> None:
    """gVisor lets root make one, in its own kernel, which has no such device."""
    code = """
import stat
print(errno_of(os.mknod, '/root/sda', 0o600 | stat.S_IFBLK, os.makedev(8, 0)), errno_of(open, '/root/sda', 'rb'))
print(errno_of(os.mkfifo, '/root/fifo'))
"""
    made, opened, twin = probe(shared, code).split()
    assert (made, opened) in {("EPERM", "ENOENT"), ("ok", "ENXIO")}
    assert twin == "ok"


def test_8_host_secrets_and_switches_in_proc_are_hidden(runc_sandbox: Sandbox) -> None:
    hidden = [
        "kcore",
        "keys",
        "timer_list",
        "sched_debug",
        "kallsyms",
        "sysrq-trigger",
        "slabinfo",
        "vmallocinfo",
        "interrupts",
    ]
    silent = (b"", "ENOENT", "EACCES", "EPERM", "EIO")
    code = f"for n in {hidden!r}:\n  r = read('/proc/' + n)\n  if r not in {silent!r}: print(n, r[:60])"
    assert probe(runc_sandbox, code) == ""
    code = "for n in ('acpi', 'bus', 'scsi', 'asound'):\n  if os.path.isdir('/proc/' + n) and os.listdir('/proc/' + n): print(n)"
    assert probe(runc_sandbox, code) == ""
    assert probe(runc_sandbox, "print(read('/proc/version')[:5])") == "b'Linux'"


def test_8_kernel_settings_cannot_be_changed(shared: Sandbox) -> None:
    code = (
        "def w(p):\n  with open(p, 'w') as f: f.write('1')\n"
        "for p in ('/proc/sys/kernel/core_pattern', '/proc/sys/vm/drop_caches', '/proc/sysrq-trigger', '/sys/power/state',"
        " '/proc/sys/kernel/hostname'):\n"
        "  r = errno_of(w, p)\n  if r == 'ok': print(p)\n"
        "print(errno_of(w, '/root/twin'))"
    )
    assert probe(shared, code) == "ok"


def test_sys_tells_nothing_of_the_hosts_disks(shared: Sandbox) -> None:
    code = (
        "names = ('/sys/block', '/sys/module', '/sys/kernel', '/sys/firmware', '/sys/fs')\n"
        "found = [p for p in names if os.path.isdir(p) and os.listdir(p)]\n"
        "print(found, os.path.isdir('/sys/devices'))"
    )
    found = probe(shared, code)
    assert (
        found in ("[] True", "['/sys/kernel'] True", "['/sys/fs'] True")
        if shared.driver.name == "gvisor"
        else found == "[] True"
    )


def test_10_the_runtimes_binary_cannot_be_overwritten(shared: Sandbox) -> None:
    """CVE-2019-5736: /proc/<pid>/exe of the runtime led to the host's file. Here each leads to a program of the image."""
    code = """
for pid in (p for p in os.listdir('/proc') if p.isdigit()):
    try:
        exe, inside = os.readlink(f'/proc/{pid}/exe'), os.stat(f'/proc/{pid}/exe')
    except OSError:
        continue
    here = os.stat(exe)
    print(exe.startswith('/usr/bin/python3'), (here.st_dev, here.st_ino) == (inside.st_dev, inside.st_ino))
"""
    assert set(probe(shared, code).splitlines()) == {"True True"}


def test_5_only_processes_of_the_sandbox_are_seen_and_their_memory_is_theirs(shared: Sandbox) -> None:
    pids = probe(shared, "print(len([p for p in os.listdir('/proc') if p.isdigit()]), os.getpid() < 30000)").split()
    assert int(pids[0]) <= 4
    code = "print(errno_of(open, '/proc/1/mem', 'r+b'), errno_of(open, '/proc/self/mem', 'rb'))"
    assert probe(shared, code, user=True) == "EACCES ok" or shared.driver.name == "gvisor"


# -- sockets


@x86_64_only
def test_12_socket_families_that_reach_host_code_are_refused(runc_sandbox: Sandbox) -> None:
    """AF_VSOCK leaves a network namespace; netfilter, packet and crypto sockets are where kernel exploits start."""
    code = (
        "netlink = ((16, 3, protocol) for protocol in (4, 6, 9, 12, 20))\n"
        "for f, t, p in ((40, 1, 0), (17, 3, 0), (38, 5, 0), (2, 3, 1), (31, 3, 0), (44, 3, 0), *netlink):\n"
        "  print(f, p, syscall(41, f, t, p), syscall(41, f | 1 << 32, t, p))\n"
        "print(*[syscall(41, *of) for of in ((1, 1, 0), (2, 1, 0), (10, 2, 0), (16, 3, 0))], len(socket.if_nameindex()))"
    )
    *refused, allowed = probe(runc_sandbox, code).splitlines()
    for line in refused:
        assert re.fullmatch(r"\d+ \d+ (E(AF|PROTO)NOSUPPORT|EPERM) (E(AF|PROTO)NOSUPPORT|EPERM)", line), line
    assert allowed == "ok ok ok ok 1"


def test_12_vsock_and_raw_sockets_are_refused_everywhere(shared: Sandbox) -> None:
    code = (
        "tries = ((40, 1, 0), (17, 3, 0), (2, socket.SOCK_RAW, 1))\n"
        "print(*[errno_of(socket.socket, *t) != 'ok' for t in tries], errno_of(socket.socket, 2, 1))"
    )
    assert probe(shared, code) == "True True True ok"


def test_abstract_sockets_of_the_host_are_out_of_reach(shared: Sandbox) -> None:
    with __import__("socket").socket(1) as listener:
        listener.bind(f"\0cloche-canary-{shared.id}")
        listener.listen()
        code = f"print(errno_of(socket.socket(1).connect, '\\0cloche-canary-{shared.id}'))"
        assert probe(shared, code) == "ECONNREFUSED"


# -- system calls (runc: the host's kernel answers)


@x86_64_only
def test_refused_system_calls(runc_sandbox: Sandbox) -> None:
    calls = {
        "ptrace": "101, 0, 0, 0, 0",
        "process_vm_readv": "310, 1, 0, 0, 0, 0, 0",
        "process_vm_writev": "311, 1, 0, 0, 0, 0, 0",
        "io_uring_setup": "425, 1, ctypes.create_string_buffer(120)",
        "keyctl": "250, 0, -3, 0",
        "add_key": "248, b'user', b'n', b'v', 1, -3",
        "unshare user": "272, 0x10000000",
        "unshare mount": "272, 0x20000",
        "unshare time": "272, 0x80",
        "setns": "308, os.open('/proc/self/ns/net', 0), 0",
        "clone new user": "56, 0x10000011, 0, 0, 0, 0",
        "bpf": "321, 0, ctypes.create_string_buffer(72), 72",
        "perf_event_open": "298, ctypes.create_string_buffer(120), 0, -1, -1, 0",
        "userfaultfd": "323, 0",
        "open_by_handle_at": "304, -100, ctypes.create_string_buffer(64), 0",
        "name_to_handle_at": "303, -100, b'/', ctypes.create_string_buffer(b'\\x20', 64), ctypes.create_string_buffer(8), 0",
        "mount": "165, b'a', b'/srv', b'tmpfs', 0, 0",
        "open_tree": "428, -100, b'/', 1",
        "fsopen": "430, b'tmpfs', 0",
        "pivot_root": "155, b'/', b'/'",
        "chroot": "161, b'/srv'",
        "kexec_load": "246, 0, 0, 0, 0",
        "init_module": "175, 0, 0, b''",
        "reboot": "169, 0, 0, 0, 0",
        "settimeofday": "164, 0, 0",
        "syslog": "103, 3, ctypes.create_string_buffer(64), 64",
        "kcmp": "312, 1, 1, 0, 0, 0",
        "pidfd_getfd": "438, os.pidfd_open(1), 0, 0",
        "memfd_secret": "447, 0",
        "fanotify_init": "300, 0, 0",
        "quotactl": "179, 0, 0, 0, 0",
        "personality": "135, 0x0040000",
        "personality, high bits": "135, 0x0040000 | 1 << 32",
    }
    code = "".join(f"print({name!r}, syscall({call}), sep=': ')\n" for name, call in calls.items())
    answers = dict(line.rsplit(": ", 1) for line in probe(runc_sandbox, code).splitlines())
    assert answers == dict.fromkeys(calls, "EPERM")


@x86_64_only
def test_calls_that_programs_need_work(runc_sandbox: Sandbox) -> None:
    calls = {
        "memfd_create": "319, b'x', 0",
        "personality, ask": "135, 0xffffffff",
        "prlimit": "302, 0, 7, 0, ctypes.create_string_buffer(16)",
        "socketpair": "53, 1, 1, 0, ctypes.create_string_buffer(8)",
        "inotify": "294, 0",
        "eventfd": "290, 0, 0",
        "statx": "332, -100, b'/', 0, 0, ctypes.create_string_buffer(256)",
        "clone for a thread's flags": "56, 17, 0, 0, 0, 0",
    }
    code = "".join(
        f"print({name!r}, syscall({call}), sep=': ')\nif os.getpid() != me: os._exit(0)\n"
        for name, call in calls.items()
    )
    answers = dict(line.rsplit(": ", 1) for line in probe(runc_sandbox, "me = os.getpid()\n" + code).splitlines())
    assert answers == dict.fromkeys(calls, "ok")


@x86_64_only
def test_clone3_is_said_not_to_exist_so_that_libc_uses_clone(runc_sandbox: Sandbox) -> None:
    code = """
import threading
print(syscall(435, ctypes.create_string_buffer(88), 88))
thread = threading.Thread(target=print, args=('thread',))
thread.start()
thread.join()
"""
    assert probe(runc_sandbox, code).split() == ["ENOSYS", "thread"]


@x86_64_only
def test_foreign_architectures_are_killed(runc_sandbox: Sandbox) -> None:
    """``int 0x80`` from 64-bit code uses i386 numbers; x32 sets bit 30. The same bytes work on this host."""
    run = PRELUDE + NATIVE_CODE + "print(run_code({}) == os.getpid())"
    assert runc_sandbox.check(run.format(GETPID_NATIVE)) == "True"
    assert runc_sandbox.run(run.format(GETPID_I386)).code == -31  # SIGSYS
    assert runc_sandbox.run(run.format(GETPID_X32)).code == -31
    twin = subprocess.run([sys.executable, "-c", run.format(GETPID_I386)], capture_output=True, text=True, check=False)
    assert twin.stdout.strip() == "True" or twin.returncode != 0  # the kernel may lack 32-bit emulation


@x86_64_only
def test_6_7_keys_cannot_be_pushed_into_a_terminal(runc_sandbox: Sandbox) -> None:
    """TIOCSTI and TIOCLINUX, also with the bits set that the kernel ignores; neighbours of the two work."""
    code = """
import pty, termios
pid, master = pty.fork()
if pid == 0:
    key = ctypes.create_string_buffer(b'x')
    out = [syscall(16, 0, request | high, key) for request in (0x5412, 0x541C) for high in (0, 1 << 32, 0xABCD << 32)]
    room = ctypes.create_string_buffer(64)
    out += [syscall(16, 0, request | high, room) for request in (0x5401, 0x5413, 0x5411) for high in (0, 1 << 32)]
    print(*out, flush=True)
    os._exit(0)
data = b''
while True:
    try: chunk = os.read(master, 4096)
    except OSError: break
    if not chunk: break
    data += chunk
print(data.decode().strip())
"""
    answers = probe(runc_sandbox, code).split()
    assert answers[:6] == ["EPERM"] * 6
    assert answers[6:] == ["ok"] * 6


@x86_64_only
def test_6_no_other_terminal_request_is_caught_by_the_filter(runc_sandbox: Sandbox) -> None:
    """The "all but two" rule, enumerated: /dev/null knows no request, so the kernel itself never says EPERM."""
    code = """
null = os.open('/dev/null', 0)
requests = [*range(0x10000), 0x80045430, 0xFFFF5412, 0x15412, 0x1541C]
print(*[hex(request) for request in requests if syscall(16, null, request, 0) == 'EPERM'])
"""
    assert probe(runc_sandbox, code).split() == ["0x5412", "0x541c"]


def test_the_filter_is_on(runc_sandbox: Sandbox) -> None:
    assert "Seccomp:\t2" in probe(runc_sandbox, "print(open('/proc/self/status').read())")


def test_ordinary_tools_work(shared: Sandbox) -> None:
    """git, subprocesses, threads, asyncio and signals: what a profile that is too tight breaks first."""
    code = """
import asyncio, subprocess, tempfile, os
async def main():
    p = await asyncio.create_subprocess_exec('sh', '-c', 'echo out; kill -TERM $$', stdout=-1)
    out = (await p.communicate())[0]
    return out, p.returncode, sum(await asyncio.gather(*(asyncio.to_thread(len, 'ab') for _ in range(20))))
print(*asyncio.run(main()))
d = tempfile.mkdtemp(dir='/workspace')
subprocess.run(['git', 'init', '-q', d], check=True)
open(d + '/f', 'w').write('x')
subprocess.run(['git', '-C', d, 'add', 'f'], check=True)
subprocess.run(['git', '-C', d, '-c', 'user.name=n', '-c', 'user.email=e@x', 'commit', '-qm', 'm'], check=True)
import multiprocessing
if __name__ == '__main__':
    with multiprocessing.get_context('fork').Pool(2) as pool: print(pool.map(abs, [-1, -2]))
"""
    assert shared.check(code, user=True, timeout_s=60).splitlines() == ["b'out\\n' -15 40", "[1, 2]"]

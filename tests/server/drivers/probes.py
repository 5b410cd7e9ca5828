"""Programs for `test_escapes`, run inside a sandbox. ``errno_of`` names what a raw system call answers."""

from __future__ import annotations

PRELUDE = """
import ctypes, errno, fcntl, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def syscall(number, *args):
    ctypes.set_errno(0)
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    result = libc.syscall(ctypes.c_long(number), *wide)
    return 'ok' if result >= 0 else errno.errorcode[ctypes.get_errno()]
def errno_of(function, *args):
    try:
        function(*args)
    except OSError as error:
        return errno.errorcode[error.errno]
    return 'ok'
def read(path):
    try:
        with open(path, 'rb') as file: return file.read(4096)
    except OSError as error:
        return errno.errorcode[error.errno]
"""

NATIVE_CODE = """
import mmap
def run_code(code):
    page = mmap.mmap(-1, 4096, prot=7)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return ctypes.CFUNCTYPE(ctypes.c_long)(address)()
"""

GETPID_NATIVE = r"b'\xb8\x27\x00\x00\x00\x0f\x05\xc3'"
"""mov eax, 39; syscall; ret"""

GETPID_I386 = r"b'\xb8\x14\x00\x00\x00\xcd\x80\xc3'"
"""mov eax, 20; int 0x80; ret"""

GETPID_X32 = r"b'\xb8\x27\x00\x00\x40\x0f\x05\xc3'"
"""mov eax, 0x40000000 | 39; syscall; ret"""

"""The profile as data: complete, without overlap, and right for every value of an argument."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche_server.drivers._seccomp import (
    ALLOWED,
    CONDITIONAL,
    INT_MASK,
    REFUSED,
    TIOCLINUX,
    TIOCSTI,
    Profile,
    Rule,
    build_profile,
)

PROFILE: Profile = build_profile("x86_64")
REFUSED_NAMES = frozenset().union(*REFUSED.values())


def rules(name: str) -> list[Rule]:
    return [rule for rule in PROFILE["syscalls"] if name in rule["names"]]


def answer(name: str, *args: int) -> str | int:
    """What the profile says, as libseccomp reads it: "allow", or the errno of a rule, or the default's."""
    for rule in rules(name):
        if all(args[a["index"]] & a["value"] == a["valueTwo"] for a in rule.get("args", [])):
            return "allow" if rule["action"] == "SCMP_ACT_ALLOW" else rule["errnoRet"]
    return PROFILE["defaultErrnoRet"]


def test_no_call_is_both_allowed_and_refused() -> None:
    assert not ALLOWED & REFUSED_NAMES
    assert not ALLOWED & CONDITIONAL
    assert not REFUSED_NAMES & CONDITIONAL


def test_every_call_this_machines_headers_know_has_been_thought_of() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    names = set(re.findall(r"#define __NR_(\w+)", header.read_text()))
    assert names - ALLOWED - REFUSED_NAMES - CONDITIONAL == set()


def test_what_nobody_thought_of_is_refused() -> None:
    assert PROFILE["defaultAction"] == "SCMP_ACT_ERRNO"
    assert answer("a_call_of_2030") == 1


def test_only_the_native_architecture() -> None:
    assert PROFILE["architectures"] == ["SCMP_ARCH_X86_64"]
    assert build_profile("aarch64")["architectures"] == ["SCMP_ARCH_AARCH64"]
    with pytest.raises(LookupError):
        build_profile("m68k")


@pytest.mark.parametrize("name", sorted(CONDITIONAL))
def test_conditions_look_at_no_bit_the_kernel_ignores(name: str) -> None:
    for rule in rules(name):
        assert all(a["op"] == "SCMP_CMP_MASKED_EQ" and a["value"] <= INT_MASK for a in rule.get("args", []))


@given(st.integers(0, 2**64 - 1))
def test_ioctl_is_allowed_for_all_but_two_requests(request: int) -> None:
    expected = 1 if request & INT_MASK in (TIOCSTI, TIOCLINUX) else "allow"
    assert answer("ioctl", 3, request) == expected


@given(st.integers(0, 2**32 - 1), st.sampled_from([TIOCSTI, TIOCLINUX]))
def test_the_two_are_refused_whatever_the_upper_bits(high: int, request: int) -> None:
    assert answer("ioctl", 3, high << 32 | request) == 1


@given(st.integers(0, 31))
def test_neighbours_of_the_two_by_one_bit_are_allowed(bit: int) -> None:
    for request in (TIOCSTI, TIOCLINUX):
        if request ^ (1 << bit) not in (TIOCSTI, TIOCLINUX):
            assert answer("ioctl", 3, request ^ (1 << bit)) == "allow"


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_socket_families(family: int, protocol: int) -> None:
    low, low_protocol = family & INT_MASK, protocol & INT_MASK
    allowed = low in (1, 2, 10) or (low == 16 and low_protocol == 0)
    assert (answer("socket", family, 1, protocol) == "allow") == allowed


@pytest.mark.parametrize("flag", [0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000])
def test_clone_makes_no_namespace(flag: int) -> None:
    assert answer("clone", flag | 17, 0) == 1
    assert answer("clone", 0x3D0F00, 0) == "allow"  # a thread, as glibc makes it

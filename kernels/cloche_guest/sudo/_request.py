"""What a sudo command line means. Pure: arguments, environment and accounts in, an `Order` out."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cloche_guest.children import Account

ROOT: Final = Account(uid=0, gid=0, home="/root", name="root")

_IGNORED: Final = frozenset("nkSABbKHP")
"""No password is ever asked for, so what is about asking has no work to do; -H is always so, -b -P change nothing here."""

_WITHOUT_COMMAND: Final = frozenset("kKv")
"""These may stand alone: there is no cached password to check or forget."""

_LONG: Final[Mapping[str, str]] = {
    "--non-interactive": "n",
    "--reset-timestamp": "k",
    "--remove-timestamp": "K",
    "--validate": "v",
    "--stdin": "S",
    "--set-home": "H",
    "--login": "i",
    "--shell": "s",
    "--preserve-env": "E",
    "--user": "u",
    "--group": "g",
    "--list": "l",
    "--help": "h",
    "--version": "V",
}

USAGE: Final = "usage: sudo [-nEHiks] [-u user] [NAME=value ...] [command [argument ...]]"

PASSED_ON: Final = ("TERM", "COLORTERM", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "DISPLAY")
"""Of the caller's variables, as Debian's sudo does with env_keep; -E passes all."""


class SudoUsage(Exception):
    """The command line cannot be carried out; the message is for the caller's stderr."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the guest starts. ``argv`` empty: nothing, the answer is ``text``."""

    argv: Sequence[str]
    account: Account
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    text: str = ""


@dataclass(slots=True)
class _Options:
    flags: set[str] = field(default_factory=set)
    user: str = "root"
    variables: dict[str, str] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)


def read_order(
    arguments: Sequence[str],
    caller_env: Mapping[str, str],
    sandbox_env: Mapping[str, str],
    find_account: Callable[[str], Account | None],
) -> Order:
    """The order for ``sudo *arguments``, given by somebody with ``caller_env``.

    Raises:
        SudoUsage: an unknown option or user, or nothing to do.
    """
    options, command = _split(arguments)
    if options.flags & set("hV"):
        return Order((), ROOT, text=f"Cloche's sudo\n{USAGE}\n")
    if "l" in options.flags:
        return Order((), ROOT, text="user may run: (ALL) NOPASSWD: ALL\n")
    account = ROOT if options.user in ("root", "#0") else find_account(options.user)
    if account is None:
        raise SudoUsage(f"sudo: unknown user {options.user}")
    if not command and not options.flags & set("is"):
        if options.flags & _WITHOUT_COMMAND:
            return Order((), account)
        raise SudoUsage(USAGE)
    return Order(
        _argv(options, command), account, _env(options, caller_env, sandbox_env, account), _cwd(options, account)
    )


def _split(arguments: Sequence[str]) -> tuple[_Options, list[str]]:
    options, rest = _Options(), iter(arguments)
    for argument in rest:
        if argument == "--":
            return options, list(rest)
        if argument.startswith("--"):
            _take_long(options, argument, rest)
        elif argument.startswith("-") and len(argument) > 1:
            _take_short(options, argument[1:], rest)
        elif "=" in argument and not options.flags & set("l"):
            name, _, value = argument.partition("=")
            options.variables[name] = value
        else:
            return options, [argument, *rest]
    return options, []


def _take_long(options: _Options, argument: str, rest: Iterator[str]) -> None:
    name, has_value, value = argument.partition("=")
    flag = _LONG.get(name)
    if flag is None:
        raise SudoUsage(f"sudo: unknown option {argument}\n{USAGE}")
    if flag == "E" and has_value:
        options.kept += value.split(",")
    elif flag in "ug":
        _take_value(options, flag, value if has_value else next(rest, ""))
    else:
        options.flags.add(flag)


def _take_short(options: _Options, letters: str, rest: Iterator[str]) -> None:
    for position, letter in enumerate(letters):
        if letter in "ug":
            _take_value(options, letter, letters[position + 1 :] or next(rest, ""))
            return
        if letter not in _IGNORED | set("EislvhV"):
            raise SudoUsage(f"sudo: unknown option -{letter}\n{USAGE}")
        options.flags.add(letter)


def _take_value(options: _Options, flag: str, value: str) -> None:
    if not value:
        raise SudoUsage(f"sudo: option -{flag} needs a value\n{USAGE}")
    if flag == "g":
        raise SudoUsage("sudo: -g is not supported here; use -u")
    options.user = value


def _argv(options: _Options, command: Sequence[str]) -> Sequence[str]:
    if not options.flags & set("is"):
        return command
    shell = ["/bin/bash", *(["-l"] if "i" in options.flags else [])]
    return [*shell, "-c", shlex.join(command)] if command else shell


def _env(
    options: _Options, caller: Mapping[str, str], sandbox: Mapping[str, str], account: Account
) -> Mapping[str, str]:
    kept = caller if "E" in options.flags else {k: caller[k] for k in (*PASSED_ON, *options.kept) if k in caller}
    own = {"HOME": account.home, "USER": account.name, "LOGNAME": account.name, "SHELL": "/bin/bash"}
    return {**sandbox, **kept, **own, "SUDO_USER": caller.get("USER", "user"), **options.variables}


def _cwd(options: _Options, account: Account) -> str | None:
    return account.home if "i" in options.flags else None

"""Attach cookies: what a BPF program is told of the site that fired. The mirror of probes/cookie.h."""

from __future__ import annotations

from enum import IntEnum, IntFlag


class SiteClass(IntEnum):
    """`enum rls_site_class`: what a hit costs depends on how the kernel executes the probed instruction."""

    NOP5 = 0
    EMULATED = 1
    STEPPED = 2


class Group(IntEnum):
    """`enum rls_group`: sites that are attached and shed together."""

    MARKER = 0
    CUDA = 1
    BOUNDARY = 2
    REENTRY = 3
    GIL = 4
    CATCH = 5
    GATE = 6


class Action(IntEnum):
    """`enum rls_action`: what a hit means."""

    CALL = 0
    EXIT = 1
    CATCH = 2
    GIL_RELEASE = 3
    GIL_ACQUIRE = 4
    GIL_ENSURE = 5
    GIL_UNENSURE = 6
    OP_BEGIN = 7
    OP_END = 8
    PHASE = 9
    PROGRESS = 10
    METADATA = 11
    LONGJMP = 12
    LOADED = 13
    SWITCHES = 14


class CookieFlag(IntFlag):
    """`RLS_COOKIE_*` flags, already in place."""

    FROM_PYTHON = 1 << 32
    REENTRY = 1 << 33
    OPERATION = 1 << 34
    RETURNS = 1 << 35


NO_FLAGS = CookieFlag(0)

MAX_SITE = (1 << 24) - 1
"""Largest probe id that a cookie holds."""


def make_cookie(
    site: int,
    category: int,
    site_class: SiteClass,
    group: Group,
    action: Action,
    flags: CookieFlag = NO_FLAGS,
    pushed: int = 0,
) -> int:
    """The 64-bit cookie of a site. `site` is its probe id, 1 … `MAX_SITE`; `pushed` up to 15 words (see `Site`)."""
    if not 0 < site <= MAX_SITE:
        raise ValueError(f"probe id {site} is not in 1..{MAX_SITE}")
    return site | category << 24 | site_class << 28 | int(flags) | pushed << 36 | action << 40 | group << 48

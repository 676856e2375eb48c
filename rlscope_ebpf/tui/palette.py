"""Roles → styles for the current theme."""

from __future__ import annotations

from collections.abc import Mapping

from rich.style import Style
from textual.color import Color, ColorParseError

from rlscope_ebpf.model.categories import Category

# Okabe and Ito's colours, which people with any common colour blindness can tell apart; darker on light backgrounds.
_ON_DARK: dict[Category, str] = {
    Category.PYTHON: "#56b4e9",
    Category.SIMULATOR: "#e69f00",
    Category.BACKEND: "#12a77c",
    Category.CUDA_API: "#d781b0",
    Category.OTHER: "#8a8f98",
}
_ON_LIGHT: dict[Category, str] = {
    Category.PYTHON: "#1f88c9",
    Category.SIMULATOR: "#d98e00",
    Category.BACKEND: "#00936a",
    Category.CUDA_API: "#c15a95",
    Category.OTHER: "#8d929b",
}
_LABEL_INK = Color.parse("#0b0d10")
_CONTRAST = 3.5  # least contrast ratio of text and background
_HATCH_STRENGTH = 0.38  # how much darker than its background the pattern is


class Palette:
    """The style of each role under one theme."""

    def __init__(self, variables: Mapping[str, str], dark: bool) -> None:
        self._styles: dict[str, Style] = {"": Style()}
        foreground = _color(variables, "foreground", "#e0e0e0" if dark else "#1f1f1f")
        background = _color(variables, "background", "#121212" if dark else "#f5f5f5")
        accent = _color(variables, "accent", "#56b4e9")

        def ink(color: Color, *, bold: bool = False) -> Style:
            return Style(color=_readable(color, foreground, background).rich_color, bold=bold or None)

        self._styles |= {
            "strong": ink(foreground, bold=True),
            "text": ink(foreground),
            "dim": ink(foreground.blend(background, 0.35)),
            "faint": Style(color=foreground.blend(background, 0.65).rich_color),  # lines and dashes, not text
            "heading": ink(foreground.blend(background, 0.25), bold=True),
            "sorted": ink(accent, bold=True),
            "key": ink(accent, bold=True),
            "error": ink(_color(variables, "error", "#e05050"), bold=True),
            "warning": ink(_color(variables, "warning", "#d0a000"), bold=True),
            "good": ink(_color(variables, "success", "#30b070"), bold=True),
            "meter": ink(accent),
            "tab": ink(foreground.blend(background, 0.35)),
            "tab-active": _badge(accent),
            "cursor": Style(bgcolor=background.blend(foreground, 0.14).rich_color),
            "cursor-away": Style(bgcolor=background.blend(foreground, 0.06).rich_color),
            "badge-live": _badge(_color(variables, "success", "#30b070")),
            "badge-paused": _badge(_color(variables, "warning", "#d0a000")),
            "badge-replay": _badge(accent),
            "badge-final": _badge(foreground.blend(background, 0.35)),
        }
        for category, code in (_ON_DARK if dark else _ON_LIGHT).items():
            color = Color.parse(code)
            hatch = color if category is Category.PYTHON else color.blend(_LABEL_INK, _HATCH_STRENGTH)
            self._styles[f"bar-{category.name}"] = Style(color=hatch.rich_color, bgcolor=color.rich_color)
            self._styles[f"label-{category.name}"] = Style(color=_LABEL_INK.rich_color, bgcolor=color.rich_color)
            self._styles[f"ink-{category.name}"] = ink(color)

    def style(self, role: str) -> Style:
        """The style of `role`; KeyError for a role that does not exist."""
        return self._styles[role]


def _luminance(color: Color) -> float:
    """Relative luminance as WCAG 2 defines it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color.normalized]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: Color, other: Color) -> float:
    """Contrast ratio as WCAG 2 defines it, 1 to 21."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _readable(ink: Color, foreground: Color, background: Color) -> Color:
    """`ink`, moved towards the text's colour until it can be read: themes make some colours for backgrounds only."""
    for step in range(1, 10):
        if _contrast(ink, background) >= _CONTRAST:
            break
        ink = ink.blend(foreground, step / 10)
    return ink


def _badge(color: Color) -> Style:
    ink = _LABEL_INK if color.brightness > 0.45 else Color.parse("#ffffff")
    return Style(color=ink.rich_color, bgcolor=color.rich_color, bold=True)


def _color(variables: Mapping[str, str], name: str, default: str) -> Color:
    """A theme's colour; `default` where the theme leaves it to the terminal."""
    try:
        color = Color.parse(variables.get(name, default))
    except ColorParseError:
        return Color.parse(default)
    return color if color.ansi is None and color.a == 1 else Color.parse(default)

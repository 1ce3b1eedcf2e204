"""The demo's output."""

from __future__ import annotations

from rich.console import Console

__all__ = ["console", "say", "tell"]

console = Console(highlight=False)


def say(text: str) -> None:
    """Print the title of the next scene."""
    console.print(f"\n[bold cyan]{text}[/]", soft_wrap=True)


def tell(text: str) -> None:
    """Print a line of a scene."""
    console.print(f"  {text}", markup=False, soft_wrap=True)

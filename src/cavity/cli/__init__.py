"""The command `cavity`: one file per subcommand."""

from cavity.cli.main import main

__all__ = ["main"]

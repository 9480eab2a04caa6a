"""Files and messages: trees of arrays and components as bytes, checkpoints, and private files.

| module | contents |
| --- | --- |
| `serialization` | a tree as the bytes of an `.npz` file, and back |
| `type_table`, `types.toml` | the classes that may be stored, and their names |
| `components` | a component from its fields, each checked against its annotation |
| `archive` | arrays from the bytes of an `.npz` file that may be hostile |
| `checkpoints` | the directory of a run: checkpoint and history |
| `private_files` | files and folders that only their owner can read |
| `versions` | the versions of the packages that computed a result |

**How a class is named.** A file or a message says `algorithms.pvi/1`: an identifier from the table `types.toml`, and a
version. The table maps the identifier to a class and lists the names of the fields in every version. Module paths
appear in the table only, so a class can move without making files unreadable. A name that is not in the table is
refused. A file imports modules that the table names, and no others. A message imports nothing: the module of the class
must be loaded already.

**How to add a class of Cavity.** Write it, then run `python tools/type_table.py update` and commit the table. A test
fails as long as the table and the code differ. The same command records a new version after fields were added, removed
or renamed. Files with the older version stay readable if all new fields have defaults and none was removed. Give a new
field the default that means what the class did before.

**A class of your own**, outside Cavity, needs no registration if you pass it again when you load:
`cavity.resume(directory, clients, algorithm=MyAlgorithm(...))`. To load without that, register it where it is defined:

    from cavity.io import register

    class MyLoss(cavity.core.Loss):
        ...

    register("mylab.my_loss", MyLoss)

**Other formats.** A file or a message states the number of its format (`serialization.FORMAT`). Another number is
refused with an error that names both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cavity.io.type_table import register

__all__ = ["register"]


def __getattr__(name: str) -> object:
    """Load `register` when it is first used: private files are written by commands that need no JAX."""
    if name != "register":
        raise AttributeError(f"module 'cavity.io' has no attribute {name!r}")
    from cavity.io.type_table import register

    return register

"""Flags that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object instead of text.")]
Quiet = Annotated[bool, Parameter(name="--quiet", negative="", help="Say nothing while working.")]
Resume = Annotated[
    bool,
    Parameter(name="--resume", negative="", help="Go on with an unfinished run, or start it if there is none."),
]
Overwrite = Annotated[bool, Parameter(name="--overwrite", negative="", help="Replace a result that is there.")]
ConfigFile = Annotated[
    Path | None, Parameter(name="--config", help="YAML file with settings; flags given besides win.")
]

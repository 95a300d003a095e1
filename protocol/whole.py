"""Writes a file that is whole whenever it is there: a full disk, or an end in the middle, leaves what there was."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Write a file beside its place, then move it there: a reader never sees half of it.

    Raises:
        OSError: it cannot be written; it names the file. What was there before is as it was.
    """
    place = Path(path)
    draft = place.with_name(f".{place.name[:200]}.{secrets.token_hex(4)}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(place)
    except OSError as error:
        draft.unlink(missing_ok=True)
        if error.filename is not None and Path(error.filename) != draft:
            raise
        raise OSError(error.errno, error.strerror, str(place)) from None  # a full disk names no file, others the draft
    except BaseException:
        draft.unlink(missing_ok=True)
        raise

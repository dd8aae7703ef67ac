"""Writing a figure: the same data and drawing always give the same bytes, and the picture knows its data.

`save_figure` writes, for a figure called `name`:

- `name.data.json`   the plotted arrays, rounded to 6 significant digits; its SHA-256 is *the data hash*;
- `name.png`, `name.pdf`  the drawing, with the data hash in their metadata;
- `name.json`        provenance: data hash, git commit and dirty flag, package versions, names and shapes, profile.

A file is rewritten only when the data or the drawing changed, so a rerun leaves the checkout clean.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends import backend_pdf
from matplotlib.figure import Figure

from gmc_core.files import write_atomically
from gmc_core.provenance import git_state, package_versions
from gmc_core.reporting.figure_log import log_figures
from gmc_core.reporting.profiles import Profile, get_profile

SIGNIFICANT_DIGITS = 6
PDF_DECIMALS = 6  # of a coordinate in points
PNG_HASH_KEY = "Data-SHA256"
_STAMP_GID = "profile-stamp"

# Text as outlines of matplotlib's own DejaVu, whatever fonts the machine has.
DETERMINISTIC_RC: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "mathtext.fontset": "dejavusans",
    "text.usetex": False,
    "pdf.fonttype": 42,
    "pdf.compression": 6,
    "savefig.bbox": None,
    "svg.hashsalt": "gmc-core",
}


def _profile(profile: str | Profile) -> Profile:
    return profile if isinstance(profile, Profile) else get_profile(profile)


def _json_value(value: float) -> float | str | None:
    if math.isnan(value):
        return None
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}") + 0.0  # + 0.0 turns -0.0 into 0.0


def _encode(name: str, value: Any) -> dict[str, Any]:
    if hasattr(value, "detach"):  # a torch tensor, without importing torch here
        value = value.detach().cpu().numpy()
    array = np.asarray(value)
    kind = {"f": "float", "i": "int", "u": "int", "b": "bool", "U": "str"}.get(array.dtype.kind)
    if kind is None:
        raise TypeError(
            f"figure data {name!r} is {type(value).__name__} with dtype {array.dtype}; expected numbers, booleans or "
            "strings in a rectangular array (split ragged data into several names)"
        )
    flat = array.ravel().tolist()
    return {
        "dtype": kind,
        "shape": list(array.shape),
        "values": [_json_value(v) for v in flat] if kind == "float" else flat,
    }


def canonical_data(data: dict[str, Any]) -> bytes:
    """The plotted arrays as canonical JSON: sorted names, 6 significant digits, one line per array.

    NaN is null, infinities are "inf" and "-inf". TypeError for anything but numbers, booleans and strings.
    """
    if not data:
        raise ValueError("save_figure needs the plotted arrays: data={'name': array, ...} was empty")
    lines = [
        f"{json.dumps(name)}: {json.dumps(_encode(name, data[name]), separators=(',', ':'), allow_nan=False)}"
        for name in sorted(data)
    ]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def data_hash(data: dict[str, Any]) -> str:
    """SHA-256 of `canonical_data(data)`: equal to `sha256sum name.data.json`."""
    return hashlib.sha256(canonical_data(data)).hexdigest()


def load_figure_data(name: str, profile: str | Profile = "cpu") -> dict[str, np.ndarray]:
    """The arrays that `save_figure` stored for figure `name` in that profile."""
    settings = _profile(profile)
    path = settings.figures / f"{name}.data.json"
    if not path.exists():
        raise FileNotFoundError(f"figure {name!r} has no stored data in profile {settings.name!r} ({path.name})")
    return decode_data(path.read_bytes())


def decode_data(raw: bytes) -> dict[str, np.ndarray]:
    """Inverse of `canonical_data`, up to the rounding."""
    arrays = {}
    for name, entry in json.loads(raw).items():
        values = entry["values"]
        if entry["dtype"] == "float":
            values = [math.nan if v is None else float(v) for v in values]
        dtype = {"float": float, "int": int, "bool": bool, "str": str}[entry["dtype"]]
        arrays[name] = np.array(values, dtype=dtype).reshape(entry["shape"])
    return arrays


def stamp_figure(fig: Figure, text: str) -> None:
    """Write `text` across the figure, once."""
    if any(artist.get_gid() == _STAMP_GID for artist in fig.texts):
        return
    fig.text(
        0.5, 0.5, text, gid=_STAMP_GID, ha="center", va="center", rotation=25, fontsize=70, fontweight="bold",
        color="#B00020", alpha=0.22, zorder=1000,
    )  # fmt: skip


@contextmanager
def _short_numbers_in_pdf() -> Iterator[None]:
    """Six decimals for every number, as matplotlib writes the points of a path, not ten.

    The tenth decimal of a marker's place is noise: vectorised logarithms may round in another way from one process to
    the next, with the alignment of an array in memory, and one digit among thousands would change the bytes.
    """
    original = backend_pdf.pdfRepr

    def short(value: Any) -> bytes:
        return original(round(float(value), PDF_DECIMALS) if isinstance(value, (float, np.floating)) else value)

    backend_pdf.pdfRepr = short
    try:
        yield
    finally:
        backend_pdf.pdfRepr = original


def render(fig: Figure, digest: str, title: str, kinds: Sequence[str] = ("png", "pdf")) -> dict[str, bytes]:
    """The files of a drawing as `save_figure` writes them, by kind; `digest` is the data hash they carry."""
    rendered = {}
    metadata = {
        "png": {PNG_HASH_KEY: digest, "Title": title, "Software": None},
        "pdf": {"Keywords": f"data-sha256={digest}", "Title": title, "CreationDate": None},
    }
    with mpl.rc_context(DETERMINISTIC_RC), _short_numbers_in_pdf():
        for kind in kinds:
            buffer = io.BytesIO()
            fig.savefig(buffer, format=kind, dpi=150, metadata=metadata[kind], facecolor="white")
            rendered[kind] = buffer.getvalue()
    return rendered


def _write_if_changed(path: Path, content: bytes) -> bool:
    if path.exists() and path.read_bytes() == content:
        return False
    write_atomically(path, content)
    return True


def save_figure(fig: Figure, name: str, *, data: dict[str, Any], profile: str | Profile) -> list[Path]:
    """Write `name.png`, `name.pdf`, `name.data.json` and `name.json` into the profile's figure folder.

    `data` holds every plotted array, number or label (torch, numpy or lists). The smoke profile stamps the figure.
    Returns the paths in the order png, pdf, data, side file. Errors: ValueError for an unknown profile, an empty `data`
    or a name that is not a plain file name; TypeError for data that cannot be stored.
    """
    settings = _profile(profile)
    if not name or name != Path(name).name or name.startswith("."):
        raise ValueError(f"figure name {name!r} must be a plain file name without a folder, e.g. 'fig2_geometry'")
    encoded = canonical_data(data)
    digest = hashlib.sha256(encoded).hexdigest()
    if settings.stamp:
        stamp_figure(fig, settings.stamp)
    rendered = render(fig, digest, title=name)

    folder = settings.figures
    folder.mkdir(parents=True, exist_ok=True)
    contents = {f"{name}.png": rendered["png"], f"{name}.pdf": rendered["pdf"], f"{name}.data.json": encoded}
    changed = [_write_if_changed(folder / file, content) for file, content in contents.items()]

    side = folder / f"{name}.json"
    if any(changed) or not side.exists():
        record = {
            "figure": name,
            "data_sha256": digest,
            "profile": settings.name,
            **git_state(),
            "versions": package_versions(),
            "arrays": {key: _encode(key, value)["shape"] for key, value in sorted(data.items())},
        }
        _write_if_changed(side, (json.dumps(record, indent=2) + "\n").encode())
    written = [*(folder / file for file in contents), side]
    log_figures(written)  # tells the notebook runner, also when the bytes are the same as before
    return written

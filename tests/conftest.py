"""Run-time shape checks: every jaxtyping annotation of gmc_core is enforced by beartype while the tests run."""

from jaxtyping import install_import_hook

_hook = install_import_hook("gmc_core", "beartype.beartype")

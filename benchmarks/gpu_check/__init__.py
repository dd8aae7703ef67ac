"""What this project does on a GPU, measured in one go: `make gpu-check` (docs/gpu_check.md)."""

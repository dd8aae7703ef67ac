"""Records, statistics, figures and the notebook runner."""

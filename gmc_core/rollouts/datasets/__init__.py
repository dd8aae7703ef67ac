"""Questions from data sets: what exists (registry.py), reading it (loading.py), checking it (quality.py), tasks of it.

Nothing here needs the `datasets` package until a set is read from the hub.
"""

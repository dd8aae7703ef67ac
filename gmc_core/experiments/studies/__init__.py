"""One module per study: the runs as data and the protocol, written before the runs."""

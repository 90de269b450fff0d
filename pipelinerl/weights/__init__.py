"""Publishing weights: one protocol (`publisher`), transports behind one interface, the parity check."""

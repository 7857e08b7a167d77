"""Values that a partition or a node keeps beside its rows. Pure."""

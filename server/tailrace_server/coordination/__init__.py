"""The coordinator of a cluster: it tells who may vote, who should lead, and where each node is; never who may lead."""

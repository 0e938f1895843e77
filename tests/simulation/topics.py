"""The topics of a run, by name; `recreation.py` has one more, and groups have theirs."""

TOPIC = "t"  # has several partitions
KEYED = "keyed"  # compacted, written with keys
LOADED = "loaded"  # has two replicas, and is written without a pause while a follower comes back
UNCLEAN = "unclean"  # allows unclean elections

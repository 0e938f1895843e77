"""The topics of a run, by name; `recreation.py` has one more, and groups have theirs."""

TOPIC = "t"  # of several partitions
KEYED = "keyed"  # compacted, written with keys
LOADED = "loaded"  # of two replicas, written without a pause while a follower comes back
UNCLEAN = "unclean"  # whose unclean elections are allowed

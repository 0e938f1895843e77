"""The topics of a run, by name; `recreation.py` has one more, and groups have theirs."""

TOPIC = "t"  # of several partitions
KEYED = "keyed"  # compacted, written with keys
UNCLEAN = "unclean"  # whose unclean elections are allowed

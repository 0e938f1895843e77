"""The names of the topics in every run. `recreation.py` names one more topic, and groups have topics of their own."""

TOPIC = "t"  # has several partitions
KEYED = "keyed"  # compacted, written with keys
LOADED = "loaded"  # has two replicas, and is written without a pause while a follower comes back
UNCLEAN = "unclean"  # allows unclean elections
TRANSACTED = "transacted"  # written by transactional producers alone

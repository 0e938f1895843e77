"""Intents: the changes that administrators request, written to the store by the broker that got the request.

The controller then carries the intents out. Each intent is one guarded transaction. The controller's results are
partition states and, last, the mark that a topic is ready. The broker waits until its *own* image shows the result, and
then until the other brokers know the result, too (`broker/applied_revisions.py`); only then does it answer its client.
So every broker that the client asks next shows the change. If the broker's image doesn't show the result within the
request's time-out, the answer is REQUEST_TIMED_OUT, and the intent stays in the store.

If a guard fails, another process was faster. The present value of the guarded key decides between another attempt and
an error. A request that would change nothing is a transaction too, with guards alone: another broker may have changed
the key since the revision of this broker's image, and then the request isn't fulfilled yet.

A decision that depends on the registered brokers is made only when the image has every broker that was registered at
the time of the request. So as soon as a broker's registration says that it is running, all brokers consider it in their
decisions. The same holds for Kafka: only its controller makes such decisions, by the log that also says which brokers
are ready.

A write of unknown outcome is settled (`settling.py`), so that no request waits for a write that never happened.
"""

from __future__ import annotations

from random import Random, SystemRandom

from ottla.metadata.follower import Follower
from ottla.metadata.settling import Settling
from ottla.metadata.store import Store

from .acls import AclIntents
from .brokers import BrokerIntents
from .features import FeatureIntents
from .partitions import PartitionIntents
from .settings import SettingIntents
from .topics import TopicIntents
from .users import UserIntents


class Intents:
    """All changes that administrators can request from a broker. Each kind of request has a class in a module of its
    own."""

    def __init__(self, store: Store, follower: Follower, random: Random | None = None) -> None:
        """`random` draws topic ids and the positions where placement starts; by default it is a SystemRandom."""
        settling = Settling(store, follower)
        topics = TopicIntents(store, settling, SystemRandom() if random is None else random)
        partitions = PartitionIntents(settling)
        settings = SettingIntents(settling)
        brokers = BrokerIntents(settling)
        acls = AclIntents(settling)
        users = UserIntents(settling)
        self.check_new_topic_name = topics.check_new_topic_name
        self.create_topic = topics.create_topic
        self.delete_topic = topics.delete_topic
        self.create_partitions = topics.create_partitions
        self.confirm_deletion = topics.confirm_deletion
        self.elect_leader = partitions.elect_leader
        self.reassign = partitions.reassign
        self.alter_config = settings.alter_config
        self.alter_quota = settings.alter_quota
        self.unregister_broker = brokers.unregister_broker
        self.create_acls = acls.create_acls
        self.delete_acls = acls.delete_acls
        self.update_features = FeatureIntents(settling).update_features
        self.put_scram = users.put_scram
        self.delete_scram = users.delete_scram
        self.put_token = users.put_token
        self.change_token = users.change_token

"""The authorities of brokers and clients are replaced under load: no broker is restarted, and no record is lost."""

from __future__ import annotations

from tests.e2e.installed import Operator
from tests.e2e.kubectl import wait
from tests.e2e.numbered import PARTITIONS, Numbered, secret, settings_of
from tests.e2e.scene import NAME, cluster, namespace, topic
from tests.e2e.test_secure_rollout import OUTSIDE, PLAIN, links

AUTHORITIES = f"{NAME}-cluster-ca", f"{NAME}-clients-ca"
REPLACE = "ottla.dev/force-replace=true"


def test_ca_replaced(operator: Operator) -> None:
    with namespace(operator, "ca-replaced") as scene:
        scene.kube.apply(cluster(listeners=[PLAIN, OUTSIDE]))
        scene.settled()
        assert links(scene) == {"ENCRYPTED"}, "a new Cluster has encrypted links"
        scene.kube.apply(topic("numbered", partitions=PARTITIONS, replicationFactor=3))
        scene.topic_settled("numbered")
        numbered = Numbered(settings_of(scene, "outside", "app"), "numbered")
        numbered.start()
        numbered.goes_on()
        first = {name: secret(scene, name) for name in AUTHORITIES}
        before = scene.births()

        for name in AUTHORITIES:
            scene.kube("annotate", "secret", name, REPLACE)
        for name in AUTHORITIES:
            wait(f"{name} has a successor", lambda name=name: "next.crt" in secret(scene, name), 120)  # type: ignore[misc]
        # Clients read the certificates again while the former authority still signs.
        numbered.renew(settings_of(scene, "outside", "app"))
        for name in AUTHORITIES:
            wait(
                f"the successor of {name} signs",
                lambda name=name: secret(scene, name)["tls.key"] != first[name]["tls.key"],  # type: ignore[misc]
                300,
            )
        wait("brokers forget the former authority", lambda: "before.crt" not in secret(scene, AUTHORITIES[0]), 300)
        numbered.goes_on()
        numbered.renew(settings_of(scene, "outside", "app"))
        numbered.goes_on()
        scene.settled()
        assert scene.births() == before, "a broker was restarted"
        numbered.finish()

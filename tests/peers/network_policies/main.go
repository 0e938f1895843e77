// network_policies finds out which connections NetworkPolicies allow. It uses the evaluator of cyclonus, a conformance test of
// network plugins. It reads one JSON document from standard input, {"policies": […], "connections": […]}, and prints a
// JSON list with a truth value for each connection. An end of a connection that is a pod has a namespace, the namespace's
// labels and its own labels. An end without a namespace is outside of Kubernetes, and has an IP address.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/mattfenwick/cyclonus/pkg/matcher"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
)

type peer struct {
	Namespace       string            `json:"namespace"`
	NamespaceLabels map[string]string `json:"namespaceLabels"`
	Labels          map[string]string `json:"labels"`
	IP              string            `json:"ip"`
}

type connection struct {
	From peer   `json:"from"`
	To   peer   `json:"to"`
	Port int    `json:"port"`
	Name string `json:"name"`
}

type question struct {
	Policies    []*networking.NetworkPolicy `json:"policies"`
	Connections []connection                `json:"connections"`
}

func main() {
	var asked question
	decoder := json.NewDecoder(os.Stdin)
	decoder.DisallowUnknownFields() // a field that Kubernetes doesn't know has no effect there
	must(decoder.Decode(&asked))
	rules := matcher.BuildNetworkPolicies(true, asked.Policies)
	allowed := []bool{}
	for _, each := range asked.Connections {
		traffic := &matcher.Traffic{
			Source: side(each.From), Destination: side(each.To), ResolvedPort: each.Port, ResolvedPortName: each.Name,
			Protocol: core.ProtocolTCP,
		}
		allowed = append(allowed, rules.IsTrafficAllowed(traffic).IsAllowed())
	}
	must(json.NewEncoder(os.Stdout).Encode(allowed))
}

func side(of peer) *matcher.TrafficPeer {
	if of.Namespace == "" {
		return &matcher.TrafficPeer{IP: of.IP}
	}
	pod := &matcher.InternalPeer{PodLabels: of.Labels, NamespaceLabels: of.NamespaceLabels, Namespace: of.Namespace}
	return &matcher.TrafficPeer{Internal: pod, IP: of.IP}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

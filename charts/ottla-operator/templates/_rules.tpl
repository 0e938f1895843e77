{{- /* What the operator does in a namespace that it looks after. */ -}}
{{- define "ottla-operator.namespaceRules" -}}
- apiGroups: [ottla.dev]
  resources: [clusters, topics]
  verbs: [get, list, watch]
- apiGroups: [ottla.dev]
  resources: [clusters/status, topics/status]
  verbs: [patch]
# It makes these for a Cluster; of Secrets those with etcd's certificates.
- apiGroups: [""]
  resources: [services, configmaps, secrets, persistentvolumeclaims]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [cronjobs]
  verbs: [get, list, watch, create, patch, delete]
# A rolling restart deletes pods, and a broker's rack is told by an annotation; nothing but the StatefulSets makes pods.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}

{{- /* What it reads that belongs to no namespace. Without, it doesn't know zones, the addresses of node ports, labels of namespaces, and the age of a CRD. */ -}}
{{- define "ottla-operator.clusterRules" -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [get]
- apiGroups: [""]
  resources: [namespaces]
  verbs: [list]
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  verbs: [get]
{{- end -}}

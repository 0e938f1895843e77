{{- /* What the operator does in a namespace that it looks after. */ -}}
{{- define "ottla-operator.namespaceRules" -}}
- apiGroups: [ottla.dev]
  resources: [clusters, topics]
  verbs: [get, list, watch, patch]
- apiGroups: [ottla.dev]
  resources: [clusters/status, topics/status]
  verbs: [get, patch]
# Only needed where the API server refuses ownerReferences that block deletion (OwnerReferencesPermissionEnforcement).
- apiGroups: [ottla.dev]
  resources: [clusters/finalizers, topics/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, configmaps, persistentvolumeclaims]
  verbs: [get, list, watch, create, patch, delete]
# etcd's certificates are made here, and read where a Cluster names a Secret.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
# Rolling restarts delete pods; nothing but the StatefulSets makes them.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
# Snapshots and defragmentation of etcd.
- apiGroups: [batch]
  resources: [cronjobs, jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: ["", events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end -}}

{{- /* What it reads that belongs to no namespace. It works without, but for zones, node ports' addresses, growing volumes and selectors. */ -}}
{{- define "ottla-operator.clusterRules" -}}
- apiGroups: [""]
  resources: [nodes, namespaces]
  verbs: [get, list, watch]
- apiGroups: [storage.k8s.io]
  resources: [storageclasses]
  verbs: [get, list, watch]
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  verbs: [get, list, watch]
{{- end -}}

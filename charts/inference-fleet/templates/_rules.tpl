{{- /* What the operator may do in each namespace that it serves. There are no Secrets here, and no pods are created directly:
       but who may create a policy there can run pods there (see docs/guides/security.md). */ -}}
{{- define "inference-fleet.namespaceRules" -}}
# What users write: read; only the status is ours to write.
- apiGroups: [inference-fleet.dev]
  resources: [inferencepolicies, inferencemodels]
  verbs: [get, list, watch]
- apiGroups: [inference-fleet.dev]
  resources: [inferencepolicies/status, inferencemodels/status]
  verbs: [patch]
# Where the cluster asks it of whoever makes an owned object (OpenShift does).
- apiGroups: [inference-fleet.dev]
  resources: [inferencepolicies/finalizers, inferencemodels/finalizers]
  verbs: [update]
# Engines and gateways. Replicas move only through the scale subresource.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments/scale]
  verbs: [get, patch]
# Pods are watched; the one thing written to them is which of them a scale-down should take (pod-deletion-cost).
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch]
# Inspection of models.
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
# A policy's routes and memory; the Services of engines and gateways; the gateways' identities.
- apiGroups: [""]
  resources: [configmaps, services, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
# A gateway's identity is bound to one role, and no other can be bound.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [rolebindings]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [clusterroles]
  resourceNames: [{{ .Values.gateway.clusterRole.name }}]
  verbs: [bind]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end -}}

{{- define "inference-fleet.classRules" -}}
- apiGroups: [inference-fleet.dev]
  resources: [acceleratorclasses]
  verbs: [get, list, watch]
# What the nodes offer.
- apiGroups: [""]
  resources: [nodes]
  verbs: [get, list, watch]
{{- end -}}

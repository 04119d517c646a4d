{{- define "drafter-operator.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "drafter-operator.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "drafter-operator.fullname" .) }}
{{- end }}

{{- define "drafter-operator.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "drafter-operator.labels" -}}
{{ include "drafter-operator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "drafter-operator.rules" -}}
# The runs themselves: read, and their status written.
- apiGroups: [drafters.dev]
  resources: [drafterruns]
  verbs: [get, list, watch]
- apiGroups: [drafters.dev]
  resources: [drafterruns/status]
  verbs: [patch]
# Children: applied (which creates), scaled and suspended by a patch. Nothing is deleted by the
# operator: owner references do that.
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [services, persistentvolumeclaims]
  verbs: [get, create, patch]
# What a run refers to, and what its Pods say.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end }}

{{- define "drafter-operator.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "drafter-operator.fullname" -}}
{{- $name := include "drafter-operator.name" . }}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- /* Leaves room for a suffix, such as that of the Service for metrics. */ -}}
{{- define "drafter-operator.shortname" -}}
{{- include "drafter-operator.fullname" . | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "drafter-operator.serviceAccount" -}}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) }}
{{- fail "serviceAccount.name: name the ServiceAccount, since serviceAccount.create is false" }}
{{- end }}
{{- .Values.serviceAccount.name | default (include "drafter-operator.fullname" .) }}
{{- end }}

{{- define "drafter-operator.image" -}}
{{- $image := .Values.image }}
{{- if $image.digest }}{{ $image.repository }}@{{ $image.digest }}
{{- else }}{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "drafter-operator.selector" -}}
app.kubernetes.io/name: {{ include "drafter-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "drafter-operator.labels" -}}
{{ include "drafter-operator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "drafter-operator.monitoringLabels" -}}
{{- with .Values.monitoring.labels }}
{{- toYaml . }}
{{ end }}
{{- include "drafter-operator.labels" . }}
{{- end }}

{{- define "drafter-operator.watched" -}}
{{- with .Values.watchNamespaces -}}
matchNames:
  {{- toYaml . | nindent 2 }}
{{- else -}}
any: true
{{- end }}
{{- end }}

{{- define "drafter-operator.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "drafter-operator.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "drafter-operator.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "drafter-operator.subject" -}}
- kind: ServiceAccount
  name: {{ include "drafter-operator.serviceAccount" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}

{{- define "ottla-cluster.name" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 32 | trimSuffix "-" -}}
{{- end -}}

{{- define "ottla-cluster.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/name: ottla
app.kubernetes.io/instance: {{ include "ottla-cluster.name" . }}
app.kubernetes.io/part-of: ottla
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "ottla-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "ottla-operator.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "ottla-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "ottla-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "ottla-operator.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "ottla-operator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: ottla
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "ottla-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "ottla-operator.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- /* An image of values: registry/repository:tag, or @digest where that is given. Takes (dict "image" … "version" …). */ -}}
{{- define "ottla-operator.imageName" -}}
{{- $repository := .image.repository -}}
{{- if .image.registry -}}{{- $repository = printf "%s/%s" .image.registry .image.repository -}}{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .version .image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "ottla-operator.image" -}}
{{- include "ottla-operator.imageName" (dict "image" .Values.image "version" .Chart.AppVersion) -}}
{{- end -}}

{{- define "ottla-operator.etcdImage" -}}
{{- $image := merge (dict) .Values.etcdImage -}}
{{- if not $image.registry -}}{{- $_ := set $image "registry" .Values.image.registry -}}{{- end -}}
{{- include "ottla-operator.imageName" (dict "image" $image "version" .Chart.AppVersion) -}}
{{- end -}}

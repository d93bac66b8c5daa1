{{- define "adacompute.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "adacompute.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{- $end := ternary (printf "@%s" .Values.image.digest) (printf ":%v" $tag) (ne .Values.image.digest "") -}}
{{- printf "%s%s" .Values.image.repository $end | quote -}}
{{- end -}}

{{- define "adacompute.redisName" -}}
{{- printf "%s-redis" (include "adacompute.name" .) -}}
{{- end -}}

{{- define "adacompute.accountStore" -}}
{{- if .Values.redis.enabled -}}
redis://:${REDIS_PASSWORD}@{{ include "adacompute.redisName" . }}:6379/0
{{- else -}}
{{- required "redis.url is required if redis.enabled is false" .Values.redis.url -}}
{{- end -}}
{{- end -}}

{{- define "adacompute.labels" -}}
app: {{ include "adacompute.name" . }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "vq.labels" -}}
app.kubernetes.io/name: vq
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "vq.zookeeper" -}}
{{- if .Values.zookeeper.enabled -}}
{{- $servers := list -}}
{{- range $number := until (int .Values.zookeeper.replicas) -}}
{{- $servers = append $servers (printf "%s-zookeeper-%d.%s-zookeeper.%s.svc:2181" $.Release.Name $number $.Release.Name $.Release.Namespace) -}}
{{- end -}}
{{- join "," $servers -}}
{{- else -}}
{{- required "zookeeper.servers: name your ZooKeeper servers, host:port with commas between" .Values.zookeeper.servers -}}
{{- end -}}
{{- end }}

{{- define "vq.image" -}}
image: {{ printf "%s:%s" .Values.image.repository .Values.image.tag | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- define "vq.pod" -}}
# Without this, a Service named vq-console would give pods VQ_CONSOLE_PORT=tcp://…, and vq read it as a setting.
enableServiceLinks: false
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "vq.container" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "vq.claim" -}}
accessModes: [ReadWriteOnce]
{{- with .storageClass }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests: {storage: {{ .size }}}
{{- end }}

{{- define "vq.antiAffinity" -}}
podAntiAffinity:
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" .labels) }}
{{- if eq .kind "required" }}
  requiredDuringSchedulingIgnoredDuringExecution:
    - {{ toJson $term }}
{{- else }}
  preferredDuringSchedulingIgnoredDuringExecution:
    - {{ toJson (dict "weight" 100 "podAffinityTerm" $term) }}
{{- end }}
{{- end }}

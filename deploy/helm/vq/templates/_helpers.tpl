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

{{- /* Variables of every process: by which it reaches the cluster, and as whom. In: root, and who it is to ZooKeeper. */}}
{{- define "vq.security" -}}
{{- $security := .root.Values.security }}
{{- if $security.tls.secret }}
- {name: VQ_TLS_CA, value: /etc/vq-tls/ca.crt}
- {name: VQ_TLS_CERTIFICATE, value: /etc/vq-tls/tls.crt}
- {name: VQ_TLS_KEY, value: /etc/vq-tls/tls.key}
{{- end }}
{{- if or (not $security.tls.secret) (ne $security.tls.mode "required") }}
- {name: VQ_PLAINTEXT, value: "true"}
{{- end }}
{{- with $security.zookeeperTlsSecret }}
- {name: VQ_ZOOKEEPER_TLS_CA, value: /etc/vq-zookeeper-tls/ca.crt}
- {name: VQ_ZOOKEEPER_TLS_CERTIFICATE, value: /etc/vq-zookeeper-tls/tls.crt}
- {name: VQ_ZOOKEEPER_TLS_KEY, value: /etc/vq-zookeeper-tls/tls.key}
{{- end }}
{{- with $security.zookeeperAuthSecret }}
- name: VQ_ZOOKEEPER_AUTH
  valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $.as }}}}
{{- end }}
{{- if and $security.userSecret (ne .as "brokers") }}
- name: VQ_USER
  valueFrom: {secretKeyRef: {name: {{ $security.userSecret }}, key: username}}
- name: VQ_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ $security.userSecret }}, key: password}}
{{- end }}
{{- end }}

{{- /* Where the files of a Secret are; root owns them, so the group of the pod may read the key. */}}
{{- define "vq.tlsMounts" -}}
{{- if .Values.security.tls.secret }}
- {name: tls, mountPath: /etc/vq-tls, readOnly: true}
{{- end }}
{{- if .Values.security.zookeeperTlsSecret }}
- {name: zookeeper-tls, mountPath: /etc/vq-zookeeper-tls, readOnly: true}
{{- end }}
{{- end }}

{{- define "vq.tlsVolumes" -}}
{{- with .Values.security.tls.secret }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with .Values.security.zookeeperTlsSecret }}
- name: zookeeper-tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{- /* The same for what console and gateway serve. */}}
{{- define "vq.httpsMounts" -}}
{{- include "vq.tlsMounts" . }}
{{- if and .Values.security.tls.secret .Values.security.tls.httpsSecret }}
- {name: https, mountPath: /etc/vq-https, readOnly: true}
{{- end }}
{{- end }}

{{- define "vq.httpsVolumes" -}}
{{- include "vq.tlsVolumes" . }}
{{- with .Values.security.tls.httpsSecret }}
{{- if $.Values.security.tls.secret }}
- name: https
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- end }}

{{- define "vq.httpsDirectory" -}}
{{ if .Values.security.tls.httpsSecret }}/etc/vq-https{{ else }}/etc/vq-tls{{ end }}
{{- end }}

{{- define "scylla-spark.labels" -}}
app.kubernetes.io/name: scylla-spark
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end -}}

{{- define "scylla-spark.meta" -}}
name: {{ .root.Release.Name }}-{{ .role }}
labels:
  {{- include "scylla-spark.labels" . | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- end -}}

{{- define "scylla-spark.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* The pod of a role. A part gets 30 s to stop, Spark 20 s, and ingest and dispatch twice the drain more. */}}
{{- define "scylla-spark.pod" -}}
{{- $root := .root -}}
{{- $drains := has .role (list "ingest" "dispatch") -}}
metadata:
  labels:
    {{- include "scylla-spark.labels" . | nindent 4 }}
  annotations:
    checksum/settings: {{ $root.Values.settings | sha256sum }}
    {{- with $root.Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ $root.Values.serviceAccount.name }}
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: {{ add 60 (ternary (mul 2 $root.Values.drainSeconds) 0 $drains) }}
  securityContext: {runAsNonRoot: true, runAsUser: 10001, runAsGroup: 10001, fsGroup: 10001, seccompProfile: {type: RuntimeDefault}}
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with $root.Values.nodeSelector }}
  nodeSelector: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with $root.Values.tolerations }}
  tolerations: {{ toYaml . | nindent 4 }}
  {{- end }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "scylla-spark.labels" . | nindent 10 }}
  containers:
    - name: {{ .role }}
      image: "{{ $root.Values.image.repository }}:{{ $root.Values.image.tag | default $root.Chart.AppVersion }}"
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      args: {{ toJson .args }}
      securityContext:
        {{- include "scylla-spark.security" . | nindent 8 }}
      env:
        - {name: SCYLLASPARK_DATA_DIR, value: /var/lib/scylla-spark}
        - {name: SCYLLASPARK_DISPATCH__DRAIN, value: {{ $root.Values.drainSeconds }}s}
        - name: POD_IP
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
        - {name: SCYLLASPARK_METRICS__HOST, value: $(POD_IP)}
        - {name: SCYLLASPARK_METRICS__{{ ternary "" (printf "%s_" (upper .role)) (eq .role "dispatch") }}PORT, value: "9000"}
        {{- if eq .role "dispatch" }}
        - name: SCYLLASPARK_DISPATCH__INSTANCE_ID
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        - {name: SCYLLASPARK_DESK__HOST, value: $(POD_IP)}
        - {name: SCYLLASPARK_DESK__PORT, value: "9100"}
        {{- if $root.Values.sparkWorkers.port }}
        - {name: SCYLLASPARK_SPARK_WORKERS__PORT, value: {{ $root.Values.sparkWorkers.port | quote }}}
        - {name: SCYLLASPARK_SPARK_WORKERS__ADVERTISE, value: $(POD_IP)}
        {{- end }}
        {{- end }}
        {{- if eq .role "api" }}
        - {name: SCYLLASPARK_API__HOST, value: $(POD_IP)}
        - {name: SCYLLASPARK_API__PORT, value: "8080"}
        - {name: SCYLLASPARK_API__TOKENS, value: always}
        {{- $name := printf "%s-api" $root.Release.Name }}
        {{- $full := printf "%s.%s" $name $root.Release.Namespace }}
        - {name: SCYLLASPARK_API__ALLOWED_HOSTS, value: {{ list $name $full (printf "%s.svc" $full) (printf "%s.svc.cluster.local" $full) | toJson | quote }}}
        - {name: SCYLLASPARK_API__PUBLIC_URL, value: {{ $root.Values.api.publicUrl | quote }}}
        {{- end }}
        {{- range $name, $key := $root.Values.secretEnv }}
        - name: {{ $name }}
          valueFrom: {secretKeyRef: {name: {{ $root.Values.existingSecret }}, key: {{ $key }}}}
        {{- end }}
      ports:
        - {name: metrics, containerPort: 9000}
        {{- if eq .role "dispatch" }}
        - {name: desk, containerPort: 9100}
        {{- with $root.Values.sparkWorkers.port }}
        - {name: spark-workers, containerPort: {{ . }}}
        {{- end }}
        {{- end }}
        {{- if eq .role "api" }}
        - {name: http, containerPort: 8080}
        {{- end }}
      startupProbe: {httpGet: {path: /healthz, port: metrics}, periodSeconds: 5, failureThreshold: 60}
      livenessProbe: {httpGet: {path: /healthz, port: metrics}, periodSeconds: 20, timeoutSeconds: 10, failureThreshold: 6}
      readinessProbe: {httpGet: {path: /readyz, port: metrics}, periodSeconds: 10, timeoutSeconds: 10, failureThreshold: 3}
      resources: {{ toYaml (index $root.Values .role).resources | nindent 8 }}
      volumeMounts:
        - {name: settings, mountPath: /etc/scylla-spark, readOnly: true}
        - {name: data, mountPath: /var/lib/scylla-spark}
        - {name: tmp, mountPath: /tmp}
  volumes:
    - name: settings
      configMap: {name: {{ $root.Release.Name }}-settings}
    - {name: data, emptyDir: {}}
    - {name: tmp, emptyDir: {}}
{{- end -}}

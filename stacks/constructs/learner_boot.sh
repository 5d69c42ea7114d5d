# Starts the learner's container on a new instance. cloud-init runs this as root, after the exports above it.
#
# The machine image is AWS' ECS-optimized Amazon Linux 2023 (recipe: https://github.com/aws/amazon-ecs-ami, commit a2532d3).
# This needs from it: Docker, for GPUs NVIDIA's driver and container toolkit, dnf, whose repositories are in S3, and the
# root device /dev/xvda. If a step fails, or the whole takes longer than BOOT_LIMIT_S, `fail` reports it and ends the
# instance. Its group launches another, up to BOOT_LAUNCHES_MAX. `give-up` is the same for a learner that keeps dying.

set -euo pipefail
[ $# -gt 0 ] || exec timeout "$BOOT_LIMIT_S" bash "$0" boot
root=${BOOT_ROOT:-} # for tests
units=$root/etc/systemd/system home=$root/var/lib/nitro log=$root/var/log/cloud-init-output.log
instance=unknown step=start is_counted="" problem="this step of the boot failed"

begin() { # STEP
    step=$1
    echo "$(date -u +%FT%TZ) $step"
}

retry() { # COMMAND…: up to four tries
    local pause_s
    for pause_s in 5 20 60; do
        "$@" && return
        sleep "$pause_s"
    done
    "$@"
}

write_ledger() { # STATE REASON: a sign of life for the guard, which has noted the stack; not in another deployment's entry
    aws dynamodb update-item --table-name "$NITRO_LEDGER_TABLE" --key "run={S=$NITRO_EXPERIMENT/$NITRO_RUN}" \
        --condition-expression "#stack=:stack" --update-expression "SET #state=:state, #reason=:reason, #at=:at, #by=:by" \
        --expression-attribute-names "#stack=stack,#state=state,#reason=reason,#at=heartbeat_at_s,#by=instance_id" \
        --expression-attribute-values \
        ":stack={S=$NITRO_STACK},:state={S=$1},:reason={S='$2'},:at={N=$(date +%s)},:by={S=$instance}"
}

fail() { # whenever this ends before its last line
    local state=starting id
    set +e
    trap "" TERM
    shutdown -h +5 # in case a report hangs
    echo "$step: $problem"
    if [ -z "$is_counted" ]; then # nothing else would limit the launches
        state=finished
        retry aws autoscaling set-desired-capacity --auto-scaling-group-name "$NITRO_LEARNER_GROUP" --desired-capacity 0
    fi
    write_ledger "$state" "$step: $problem"
    tail -c 8000 "$log" >"$log.end"
    aws s3api put-object --bucket "$NITRO_RESULTS_BUCKET" --key "${NITRO_RESULTS_PREFIX}boot/$instance-$step.log" \
        --body "$log.end"
    # The stack's event shows only the id, so the first has the step. AWS documents only the second.
    for id in "$instance-$step" "$instance"; do
        aws cloudformation signal-resource --stack-name "$NITRO_STACK" --status FAILURE \
            --logical-resource-id "$NITRO_LEARNER_RESOURCE" --unique-id "$id"
    done
    shutdown -h now
}

log_in() {
    aws ecr get-login-password | docker login --username AWS --password-stdin "${BOOT_IMAGE%%/*}"
}

trap fail EXIT
trap 'problem="the boot was not over after $BOOT_LIMIT_S s"; exit 1' TERM
instance=$(cat "$root/var/lib/cloud/data/instance-id")
[ "$1" = boot ] || { step=learner problem="it keeps dying, and its log tells why"; exit 1; }

begin lifetime # The group's scheduled action ends it, too. Time spent in reboots counts.
printf '%s\n' '[Service]' Type=oneshot "ExecStart=/bin/sh -c 'shutdown -h now'" >"$units/nitro-lifetime.service"
printf '%s\n' '[Timer]' "OnCalendar=$(date -u -d "$BOOT_ENDS_AT" '+%F %T UTC')" Persistent=true \
    '[Install]' WantedBy=timers.target >"$units/nitro-lifetime.timer"
systemctl enable --now nitro-lifetime.timer

begin command-line
command -v aws || retry dnf install -y -q awscli-2

begin launch # Counts this deployment's. A timer whose time is over would not start.
launches=launches/${NITRO_STACK##*/}/
retry aws s3api put-object --bucket "$NITRO_RESULTS_BUCKET" --key "$NITRO_RESULTS_PREFIX$launches$instance"
number=$(retry aws s3api list-objects-v2 --bucket "$NITRO_RESULTS_BUCKET" \
    --prefix "$NITRO_RESULTS_PREFIX$launches" --query 'length(Contents)' --output text)
problem="this is launch $number of at most $BOOT_LAUNCHES_MAX, until $BOOT_ENDS_AT"
echo "$problem"
[ "$number" -le "$BOOT_LAUNCHES_MAX" ]
[ "$(date +%s)" -lt "$(date -d "$BOOT_ENDS_AT" +%s)" ]
is_counted=yes problem="this step of the boot failed"

begin guard
retry write_ledger starting ""

begin docker
systemctl disable --now ecs || true # It has no cluster here. Not every image has it.
systemctl enable --now docker

begin image
retry log_in
retry docker pull --quiet "$BOOT_IMAGE"
NITRO_CONTAINER_IMAGE=$(docker image inspect --format '{{index .RepoDigests 0}}' "$BOOT_IMAGE")
export NITRO_CONTAINER_IMAGE

begin learner
mkdir -p "$home"
chown 65534:65534 "$home"
(umask 077 && env | grep -E '^(NITRO_|AWS_DEFAULT_REGION=)' >"$root/etc/nitro.env")
read -r _ total_kib _ </proc/meminfo
printf '%s\n' '[Service]' Type=oneshot "ExecStart=/bin/bash $0 give-up" >"$units/nitro-give-up.service"
# The host's network: actors reach the cache at its address, the metadata service answers one hop away, and connections to
# Lambda, which are dropped if idle for minutes, need its keepalives. Exit codes are the container's: 128 + N after signal
# N. 74: to be continued here; 75: another instance continues; 125: Docker failed.
cat >"$units/nitro-learner.service" <<END
[Unit]
Description=Nitro learner
Wants=docker.service
After=docker.service
StartLimitIntervalSec=1h
StartLimitBurst=5
OnFailure=nitro-give-up.service

[Service]
Type=exec
ExecStartPre=/sbin/sysctl -qw net.ipv4.tcp_keepalive_time=60 net.ipv4.tcp_keepalive_intvl=15 net.ipv4.tcp_keepalive_probes=8
ExecStartPre=-/bin/docker rm --force nitro-learner
ExecStart=/bin/docker run --name=nitro-learner --network=host --ipc=host ${BOOT_GPUS:+--gpus=$BOOT_GPUS} \
    --cap-drop=ALL --security-opt=no-new-privileges --pids-limit=-1 --ulimit=nofile=65536:65536 \
    --memory=$((total_kib - 524288))k --env-file=$root/etc/nitro.env --env=HOME=$home --volume=$home:$home \
    --log-driver=awslogs --log-opt=awslogs-region=$AWS_DEFAULT_REGION --log-opt=awslogs-group=$BOOT_LOG_GROUP \
    --log-opt=awslogs-stream=$instance/learner --log-opt=mode=non-blocking $BOOT_IMAGE $home/run
ExecStop=-/bin/docker stop -t 85 nitro-learner
ExecStopPost=/bin/sh -c 'if [ "\$\$EXIT_STATUS" = 75 ]; then shutdown -h now; fi'
Restart=on-abnormal
RestartSec=30
TimeoutStopSec=90
KillMode=mixed
SuccessExitStatus=75 129 130 143
RestartForceExitStatus=74 125 129 130 132 134 135 136 137 139 143
StandardOutput=append:$log
StandardError=append:$log

[Install]
WantedBy=multi-user.target
END
systemctl enable --now nitro-learner.service
trap - EXIT
begin "done"

# Brings a fresh instance to the point where systemd trains in a container. The variables NITRO_* and BOOT_* stand above.
#
# Amazon's images for containers have bash, curl, python3, the AWS command line and Docker. Nothing is installed.
#
# Every step that fails is reported: in the log, in the bucket under boot/, as a metric, and to the stack, whose creation
# fails then. A failed instance ends itself; its group launches another, until BOOT_LAUNCHES_MAX were launched: then the
# group is set to 0 and stays there, and no actor is kept warm. That also happens where a launch cannot be counted.
#
# `give-up REASON` does the last part for the units that systemd starts when the learner keeps dying, and when the
# instance has lived for BOOT_LIFETIME_S, however far it came. `too-late PHASE SECONDS` ends an instance that is still in
# that phase of its start, and names it.
#
# BOOT_ROOT is put before every path that is written, BOOT_METADATA is where the instance's metadata are: for tests.

set -Eeuo pipefail
umask 022
export HOME="${HOME:-/root}" AWS_DEFAULT_REGION="$BOOT_REGION" AWS_PAGER=""
readonly root="${BOOT_ROOT:-}" metadata="${BOOT_METADATA:-http://169.254.169.254}/latest"
readonly here="$root/opt/nitro" logs="$root/var/log/nitro" results="s3://$NITRO_RESULTS_BUCKET/$NITRO_RESULTS_PREFIX"
readonly units="$root/etc/systemd/system" run="$root/var/lib/nitro" nobody=65534
step="start"
is_counted=""
log="$logs/boot.log"

run_step() {  # NAME COMMAND…
    step="$1"
    echo "$(date -u +%FT%TZ) $step"
    shift
    "$@"
}

retry() {  # COMMAND…: networks have bad moments
    local pause_s
    for pause_s in 5 20 60; do
        "$@" && return 0
        echo "again in $pause_s s: $*" >&2
        sleep "${BOOT_PAUSE_S:-$pause_s}"
    done
    "$@"
}

metadatum() {  # NAME
    curl --silent --show-error --fail --max-time 5 --header "X-aws-ec2-metadata-token: $token" \
        "$metadata/meta-data/$1"
}

identify() {
    token=$(retry curl --silent --show-error --fail --max-time 5 --request PUT \
        --header "X-aws-ec2-metadata-token-ttl-seconds: 600" "$metadata/api/token")
    NITRO_INSTANCE_ID=$(metadatum instance-id)
    NITRO_INSTANCE_TYPE=$(metadatum instance-type)
    NITRO_IMAGE_ID=$(metadatum ami-id)
    NITRO_PRIVATE_ADDRESS=$(metadatum local-ipv4)
    export NITRO_INSTANCE_ID NITRO_INSTANCE_TYPE NITRO_IMAGE_ID NITRO_PRIVATE_ADDRESS
}

ship_log() {  # this script's; Docker ships the learner's
    local group=(--log-group-name "$BOOT_LOG_GROUP" --log-stream-name "${NITRO_INSTANCE_ID:-unknown}/boot") events
    aws logs create-log-stream "${group[@]}" 2>/dev/null || true
    events=$(python3 -c 'if True:
        import json, sys, time
        now_ms = int(time.time() * 1000)
        lines = [line for line in open(sys.argv[1], errors="replace").read()[-30000:].splitlines() if line.strip()]
        print(json.dumps([{"timestamp": now_ms, "message": line} for line in lines[-500:]]))' "$logs/boot.log")
    aws logs put-log-events "${group[@]}" --log-events "$events" >/dev/null
}

report() {  # MESSAGE: never fails, whatever does not work
    local record
    record=$(python3 -c 'import json, os, sys; print(json.dumps({
        "instance_id": os.environ.get("NITRO_INSTANCE_ID"), "step": sys.argv[1], "message": sys.argv[2],
        "log": open(sys.argv[3], errors="replace").read()[-8000:] if os.path.exists(sys.argv[3]) else ""}))' \
        "$step" "$1" "$log") || record="{}"
    echo "$1" >&2
    ship_log || true
    printf '%s\n' "$record" | aws s3 cp - "${results}boot/${NITRO_INSTANCE_ID:-unknown}-$step.json" || true
    aws cloudwatch put-metric-data --namespace Nitro --metric-name BootFailures --value 1 \
        --dimensions "Experiment=$NITRO_EXPERIMENT,Run=$NITRO_RUN" || true
}

tell_stack() {  # its creation fails at once, if it waits; its event shows the id, so that of the first signal has the step
    local id="${NITRO_INSTANCE_ID:-unknown}" named
    # Of what is not exactly an instance's id, AWS does not say whether it counts.
    for named in "$id-${step// /-}" "$id"; do
        aws cloudformation signal-resource --stack-name "$NITRO_STACK" --status FAILURE \
            --logical-resource-id "$NITRO_LEARNER_RESOURCE" --unique-id "$named" || true
    done
}

write_ledger() {  # STATE REASON: a sign for the guard; prints the id of the stack that is being taken down, if any
    local request
    request=$(python3 -c 'if True:
        import json, os, sys, time
        instance = os.environ.get("NITRO_INSTANCE_ID", "unknown")
        texts = {"stack": os.environ["NITRO_STACK"], "state": sys.argv[1], "reason": sys.argv[2], "writer": instance,
                 "instance_id": instance}
        values = {name: {"S": text} for name, text in texts.items()} | {"heartbeat_at_s": {"N": str(time.time())}}
        print(json.dumps({
            "TableName": os.environ["NITRO_LEDGER_TABLE"],
            "Key": {"run": {"S": os.environ["NITRO_EXPERIMENT"] + "/" + os.environ["NITRO_RUN"]}},
            "UpdateExpression": "SET " + ", ".join(f"#{name} = :{name}" for name in values),
            "ExpressionAttributeNames": {f"#{name}": name for name in values}, "ReturnValues": "ALL_NEW",
            "ExpressionAttributeValues": {f":{name}": value for name, value in values.items()}}))' "$1" "$2")
    # The order is the guard's: this role may not even name it in a condition, but it is among what is returned.
    aws dynamodb update-item --cli-input-json "$request" --query Attributes.teardown.M.stack.S --output text
}

release() {  # no actor is kept warm, and no instance takes this one's place any more
    if [ "$NITRO_PROVISIONED" -gt 0 ]; then
        retry aws lambda delete-provisioned-concurrency-config --function-name "${NITRO_ACTOR_FUNCTION%:*}" \
            --qualifier "${NITRO_ACTOR_FUNCTION##*:}" ||
            echo "the warm actors stay, and cost money, until the stack is destroyed" >&2
    fi
    retry aws autoscaling set-desired-capacity --auto-scaling-group-name "$NITRO_LEARNER_GROUP" --desired-capacity 0 \
        --no-honor-cooldown
}

failed() {  # LINE COMMAND
    if [ "$BASH_SUBSHELL" -gt 0 ]; then
        echo "in line $1: $2" >&2
        exit 1
    fi
    trap - ERR
    set +e
    report "step '$step' failed in line $1: $2"
    tell_stack
    # Else nothing would bound the launches.
    [ -n "$is_counted" ] || release || true
    # So that people can read the log's end where it is shipped to.
    sleep "${BOOT_PAUSE_S:-10}"
    shutdown -h now
    exit 1
}

give_up() {  # REASON
    local reason="$1"
    step="give-up"
    write_ledger finished "$1" >/dev/null || reason="$1; the ledger could not be told"
    report "$reason"
    tell_stack
    release || shutdown -h now
}

too_late() {  # PHASE SECONDS: unless it is over
    local state
    step="$1"
    if [ "$1" = image ]; then
        [ ! -e "$units/nitro-learner.service" ] || return 0
    else
        state=$(aws dynamodb get-item --table-name "$NITRO_LEDGER_TABLE" --query Item.state.S --output text \
            --key "{\"run\": {\"S\": \"$NITRO_EXPERIMENT/$NITRO_RUN\"}}") || return 0
        [ "$state" = starting ] || return 0
    fi
    [ -n "${NITRO_INSTANCE_ID:-}" ] || identify || true
    report "phase '$1' of the start was not over after $2 s"
    tell_stack
    # Else nothing would bound the launches.
    [ -e "$here/counted" ] || release || true
    shutdown -h now
}

write_ending() {  # UNIT DESCRIPTION ARGUMENTS
    cat >"$units/$1.service" <<END
[Unit]
Description=$2

[Service]
Type=oneshot
ExecStart=/bin/bash $here/boot.sh $3
END
}

start_timer() {  # UNIT SECONDS: from now on, and over reboots: a time that went by meanwhile counts
    cat >"$units/$1.timer" <<END
[Unit]
Description=When $1 starts

[Timer]
OnCalendar=$(date -u -d "$2 seconds" '+%F %T UTC')
AccuracySec=1s
Persistent=true

[Install]
WantedBy=timers.target
END
    systemctl daemon-reload
    systemctl enable --now "$1.timer"
}

limit_phase() {  # PHASE SECONDS
    local unit="nitro-${1// /-}"
    echo "$(date -u +%FT%TZ) phase: $1, at most $2 s"
    write_ending "$unit" "Ends an instance whose start takes too long" "too-late \"$1\" $2"
    start_timer "$unit" "$2"
}

limit_lifetime() {
    mkdir -p "$units"
    write_ending nitro-lifetime "Ends an instance that has lived long enough" 'give-up "its lifetime is over"'
    start_timer nitro-lifetime "$BOOT_LIFETIME_S"
    limit_phase image "$BOOT_IMAGE_LIMIT_S"
}

start_docker() {
    command -v aws >/dev/null || retry dnf install --assumeyes awscli-2
    # Its agent has no cluster here; not every image has one.
    systemctl disable --now ecs || true
    systemctl enable --now docker
}

tell_guard() {  # that this instance boots: the deployment is not taken down as one that is silent
    local ordered
    ordered=$(retry write_ledger starting "")
    if [ "$ordered" = "$NITRO_STACK" ]; then
        give_up "the deployment is being taken down"
        exit 0
    fi
}

read_stack() {
    local created
    created=$(retry aws cloudformation describe-stacks --stack-name "$NITRO_STACK" --output text \
        --query 'Stacks[0].CreationTime')
    NITRO_BILLED_SINCE=$(date -d "$created" +%s)
    export NITRO_BILLED_SINCE
}

mark_launch() {  # FOLDER
    date -u +%FT%TZ | aws s3 cp - "$results$1$NITRO_INSTANCE_ID"
}

count_launch() {  # of this deployment, not of earlier ones of the same run
    local launches deployment="launches/${NITRO_STACK##*/}/"
    retry mark_launch "$deployment"
    launches=$(retry aws s3api list-objects-v2 --bucket "$NITRO_RESULTS_BUCKET" --output text \
        --prefix "$NITRO_RESULTS_PREFIX$deployment" --query 'length(Contents)')
    echo "launch $launches of $BOOT_LAUNCHES_MAX"
    if [ "$launches" -gt "$BOOT_LAUNCHES_MAX" ]; then
        give_up "this was launch $launches; learner.launches_max = $BOOT_LAUNCHES_MAX"
        exit 0
    fi
    is_counted=1
    touch "$here/counted"
}

get_files() {
    mkdir -p "$here"
    retry aws s3 cp --only-show-errors "$BOOT_ASSET_URL" "$here/files.zip"
    python3 -m zipfile -e "$here/files.zip" "$here"
}

log_in() {
    aws ecr get-login-password | docker login --username AWS --password-stdin "${BOOT_IMAGE%%/*}"
}

pull_image() {
    retry log_in
    retry timeout 400 docker pull --quiet "$BOOT_IMAGE"
    NITRO_CONTAINER_IMAGE=$(docker image inspect --format '{{index .RepoDigests 0}}' "$BOOT_IMAGE")
    export NITRO_CONTAINER_IMAGE
    echo "$NITRO_CONTAINER_IMAGE"
}

write_environment() {
    mkdir -p "$root/etc/nitro"
    (umask 077 && env | grep '^NITRO_' | sort >"$root/etc/nitro/deployment.env")
    printf '%s\n' "AWS_REGION=$BOOT_REGION" "AWS_DEFAULT_REGION=$BOOT_REGION" >>"$root/etc/nitro/deployment.env"
}

start_learner() {
    local docker total_kib options
    docker=$(command -v docker)
    read -r _ total_kib _ </proc/meminfo
    mkdir -p "$run"
    chown "$nobody:$nobody" "$run"
    # A thousand actors are a socket and a thread each; processes of the learner share memory.
    options=(
        --name=nitro-learner --network=host --ipc=host --cap-drop=ALL --security-opt=no-new-privileges
        --pids-limit=-1 --ulimit=nofile=65536:65536 "--memory=$((total_kib - 524288))k" ${BOOT_GPUS:+"--gpus=$BOOT_GPUS"}
        "--env-file=$root/etc/nitro/deployment.env" "--env=HOME=$run" "--volume=$here:$here:ro" "--volume=$run:$run"
        --log-driver=awslogs "--log-opt=awslogs-region=$BOOT_REGION" "--log-opt=awslogs-group=$BOOT_LOG_GROUP"
        "--log-opt=awslogs-stream=$NITRO_INSTANCE_ID/learner" --log-opt=mode=non-blocking)
    # Exit codes are the container's, above 128 after a signal; 125: Docker could not start it. A learner whose run another
    # one continues (75) is done, and its instance with it.
    cat >"$units/nitro-learner.service" <<END
[Unit]
Description=Nitro learner
Wants=network-online.target docker.service
After=network-online.target docker.service
StartLimitIntervalSec=1h
StartLimitBurst=5
OnFailure=nitro-give-up.service

[Service]
Type=exec
ExecStartPre=-$docker rm --force nitro-learner
ExecStart=$docker run ${options[*]} $BOOT_IMAGE $here/experiment.yaml $run/run
ExecStop=-$docker stop -t 85 nitro-learner
ExecStopPost=/bin/sh -c 'if [ "\$\$EXIT_STATUS" = 75 ]; then shutdown -h now; fi'
Restart=on-abnormal
RestartSec=30
TimeoutStopSec=90
KillMode=mixed
SuccessExitStatus=75 129 130 143
RestartForceExitStatus=74 125 129 130 132 134 135 136 137 139 143
StandardOutput=append:$logs/learner.log
StandardError=append:$logs/learner.log

[Install]
WantedBy=multi-user.target
END
    write_ending nitro-give-up "Ends the instance of a learner that cannot go on" \
        'give-up "the learner keeps dying; its log tells why"'
    limit_phase "first actors" "$BOOT_ACTORS_LIMIT_S"
    systemctl enable --now nitro-learner.service
}

if [ "${1:-}" = give-up ] || [ "${1:-}" = too-late ]; then
    if [ -e "$root/etc/nitro/deployment.env" ]; then
        # shellcheck disable=SC1091
        set -a && . "$root/etc/nitro/deployment.env" && set +a
    fi
    if [ -e "$logs/learner.log" ]; then
        log="$logs/learner.log"
    fi
    if [ "$1" = give-up ]; then
        give_up "$2"
    else
        too_late "$2" "$3"
    fi
    exit 0
fi
trap 'failed "$LINENO" "$BASH_COMMAND"' ERR
mkdir -p "$here" "$logs"
chmod 755 "$here"
exec > >(tee -a "$log") 2>&1
install -m 700 "$0" "$here/boot.sh"
run_step lifetime limit_lifetime
run_step docker start_docker
run_step identify identify
run_step launches count_launch
run_step stack read_stack
run_step guard tell_guard
run_step files get_files
run_step image pull_image
run_step environment write_environment
run_step learner start_learner
run_step logs ship_log || report "logs are not shipped"
echo "$(date -u +%FT%TZ) done"

# Prepares a new instance until systemd trains in a container. The user data sets the variables NITRO_* and BOOT_*, and
# writes this file and aws.py to /opt/nitro.
#
# Nothing is installed on the instance. aws.py signs the requests to AWS. The machine image is AWS' ECS-optimized Amazon
# Linux 2023 (https://docs.aws.amazon.com/AmazonECS/latest/developerguide/retrieve-ecs-optimized_AMI.html). This script
# needs from it (the recipe is https://github.com/aws/amazon-ecs-ami, as of commit a2532d3):
#
# - Docker with the awslogs driver: scripts/install-docker.sh
# - for GPUs NVIDIA's driver, from 580 on for torch's CUDA 13.0, and container toolkit:
#   scripts/al2023/gpu/install-nvidia-driver.sh
# - Session Manager's agent: packages_al2023, scripts/enable-services.sh
# - python3: the system's Python 3.9, which dnf and cloud-init use
# - curl: curl-minimal, see https://docs.aws.amazon.com/linux/al2023/ug/minimized-pkg-dependencies.html
# - the root device /dev/xvda of 30 GiB: al2023*.pkr.hcl, variables.pkr.hcl
#
# Every failed step is reported on the console, in the log, in the bucket under boot/, as a metric, in the ledger, and to
# the stack, whose creation then fails. A failed instance ends itself, and its group launches another. After
# BOOT_LAUNCHES_MAX launches, or if a launch cannot be counted, the group is set to 0, and no actor is kept warm.
#
# `give-up REASON` does this last part for the units that systemd starts when the learner keeps dying, and when the
# deployment's lifetime is over (BOOT_ENDS_AT), in any phase. `too-late PHASE SECONDS` ends an instance that is still in that
# phase of its start, and reports the phase. `watch-interruption` waits for EC2's notice of a spot interruption.
#
# For tests, BOOT_ROOT is a prefix of every path that is written, and BOOT_METADATA is the address of the metadata.

set -Eeuo pipefail
umask 022
export HOME="${HOME:-/root}"
readonly root="${BOOT_ROOT:-}" metadata="${BOOT_METADATA:-http://169.254.169.254}/latest"
readonly here="$root/opt/nitro" logs="$root/var/log/nitro"
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

retry() {  # COMMAND…: up to four tries
    local pause_s
    for pause_s in 5 20 60; do
        "$@" && return 0
        echo "again in $pause_s s: $*" >&2
        sleep "${BOOT_PAUSE_S:-$pause_s}"
    done
    "$@"
}

aws_call() {  # SERVICE OPERATION [NAME=VALUE…] [-]: prints AWS' answer
    python3 "$here/aws.py" "$@"
}

pick() {  # NAME…: the text under these names and numbers in the JSON on standard input
    python3 -c 'if True:
        import json, sys
        found = json.load(sys.stdin)
        for name in sys.argv[1:]:
            found = found[int(name) if isinstance(found, list) else name]
        print(found)' "$@"
}

element() {  # NAME: the text of the first element of that name in the XML on standard input
    local xml
    xml=$(cat)
    [[ "$xml" == *"<$1>"* ]] || return 1
    xml="${xml#*"<$1>"}"
    echo "${xml%%<*}"
}

new_token() {  # for ten minutes
    token=$(curl --silent --show-error --fail --max-time 5 --request PUT \
        --header "X-aws-ec2-metadata-token-ttl-seconds: 600" "$metadata/api/token")
}

metadatum() {  # NAME
    curl --silent --show-error --fail --max-time 5 --header "X-aws-ec2-metadata-token: $token" \
        "$metadata/meta-data/$1"
}

read_identity() {
    NITRO_INSTANCE_ID=$(metadatum instance-id) && NITRO_INSTANCE_TYPE=$(metadatum instance-type) &&
        NITRO_IMAGE_ID=$(metadatum ami-id)
}

identify() {
    retry new_token
    retry read_identity
    export NITRO_INSTANCE_ID NITRO_INSTANCE_TYPE NITRO_IMAGE_ID
}

ship_log() {  # this script's; Docker ships the learner's
    local stream="${NITRO_INSTANCE_ID:-unknown}/boot"
    aws_call logs CreateLogStream "logGroupName=$BOOT_LOG_GROUP" "logStreamName=$stream" >/dev/null 2>&1 || true
    python3 -c 'if True:
        import json, sys, time
        path, group, stream = sys.argv[1:]
        now_ms = int(time.time() * 1000)
        lines = [line for line in open(path, errors="replace").read()[-30000:].splitlines() if line.strip()]
        print(json.dumps({"logGroupName": group, "logStreamName": stream, "logEvents": [
            {"timestamp": now_ms, "message": line} for line in lines[-500:]]}))' \
        "$logs/boot.log" "$BOOT_LOG_GROUP" "$stream" | aws_call logs PutLogEvents - >/dev/null
}

put() {  # NAME: standard input becomes an object of the run
    aws_call s3 PutObject "Bucket=$NITRO_RESULTS_BUCKET" "Key=$NITRO_RESULTS_PREFIX$1" -
}

report() {  # MESSAGE: never fails, even if parts of it do
    local record
    record=$(python3 -c 'import json, os, sys; print(json.dumps({
        "instance_id": os.environ.get("NITRO_INSTANCE_ID"), "step": sys.argv[1], "message": sys.argv[2],
        "log": open(sys.argv[3], errors="replace").read()[-8000:] if os.path.exists(sys.argv[3]) else ""}))' \
        "$step" "$1" "$log") || record="{}"
    echo "$1" >&2
    ship_log || true
    printf '%s\n' "$record" | put "boot/${NITRO_INSTANCE_ID:-unknown}-$step.json" || true
    local datum="MetricData.member.1"
    aws_call cloudwatch PutMetricData Namespace=Nitro "$datum.MetricName=BootFailures" "$datum.Value=1" \
        "$datum.Dimensions.member.1.Name=Experiment" "$datum.Dimensions.member.1.Value=$NITRO_EXPERIMENT" \
        "$datum.Dimensions.member.2.Name=Run" "$datum.Dimensions.member.2.Value=$NITRO_RUN" >/dev/null || true
}

# Fails the stack's creation at once, if it waits. Its event shows only the signal's id, so the first id has the step.
tell_stack() {
    local id="${NITRO_INSTANCE_ID:-unknown}" named
    # AWS documents only plain instance ids, so a second signal follows with that.
    for named in "$id-${step// /-}" "$id"; do
        aws_call cloudformation SignalResource "StackName=$NITRO_STACK" Status=FAILURE \
            "LogicalResourceId=$NITRO_LEARNER_RESOURCE" "UniqueId=$named" >/dev/null || true
    done
}

write_ledger() {  # STATE REASON: a sign of life for the guard; prints the whole updated entry
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
    printf %s "$request" | aws_call dynamodb UpdateItem -
}

release() {  # ends the warm actors, and keeps the group from replacing this instance
    if [ "$NITRO_PROVISIONED" -gt 0 ]; then
        retry aws_call lambda DeleteProvisionedConcurrencyConfig "FunctionName=${NITRO_ACTOR_FUNCTION%:*}" \
            "Qualifier=${NITRO_ACTOR_FUNCTION##*:}" ||
            echo "the warm actors stay, and cost money, until the stack is destroyed" >&2
    fi
    retry aws_call autoscaling SetDesiredCapacity "AutoScalingGroupName=$NITRO_LEARNER_GROUP" DesiredCapacity=0 \
        HonorCooldown=false >/dev/null
}

failed() {  # LINE COMMAND
    local message="step '$step' failed in line $1: $2" state=starting
    if [ "$BASH_SUBSHELL" -gt 0 ]; then
        echo "in line $1: $2" >&2
        exit 1
    fi
    trap - ERR
    set +e
    report "$message"
    tell_stack
    # Otherwise nothing would limit the launches.
    [ -n "$is_counted" ] || { state=finished; release || true; }
    write_ledger "$state" "$message" >/dev/null
    # Time for the end of the log to be shipped.
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

too_late() {  # PHASE SECONDS: does nothing if the phase is over
    local message="phase '$1' of the start was not over after $2 s" state
    step="$1"
    if [ "$1" = image ]; then
        [ ! -e "$units/nitro-learner.service" ] || return 0
    else
        state=$(printf '{"TableName": "%s", "Key": {"run": {"S": "%s"}}}' \
            "$NITRO_LEDGER_TABLE" "$NITRO_EXPERIMENT/$NITRO_RUN" |
            aws_call dynamodb GetItem - | pick Item state S) || return 0
        [ "$state" = starting ] || return 0
    fi
    [ -n "${NITRO_INSTANCE_ID:-}" ] || identify || true
    report "$message"
    tell_stack
    state=starting
    # Otherwise nothing would limit the launches.
    [ -e "$here/counted" ] || { state=finished; release || true; }
    write_ledger "$state" "$message" >/dev/null || true
    shutdown -h now
}

watch_interruption() {  # EC2 gives two minutes' notice; AWS recommends checking every 5 s
    local notice
    until new_token && notice=$(metadatum spot/instance-action 2>/dev/null); do
        sleep "${BOOT_PAUSE_S:-5}"
    done
    echo "EC2 takes this instance back: $notice"
    # The learner saves before its stop timeout. The group's next instance continues the run.
    systemctl stop nitro-learner.service
    shutdown -h now
}

write_ending() {  # UNIT DESCRIPTION ARGUMENTS [TYPE]
    cat >"$units/$1.service" <<END
[Unit]
Description=$2

[Service]
Type=${4:-oneshot}
ExecStart=/bin/bash $here/boot.sh $3
StandardOutput=journal+console
StandardError=journal+console
END
}

start_timer() {  # UNIT DATE: time spent in reboots counts, too
    cat >"$units/$1.timer" <<END
[Unit]
Description=When $1 starts

[Timer]
OnCalendar=$(date -u -d "$2" '+%F %T UTC')
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
    start_timer "$unit" "$2 seconds"
}

limit_lifetime() {
    local ends_s soonest_s
    mkdir -p "$units"
    write_ending nitro-lifetime "Ends an instance that has lived long enough" 'give-up "its lifetime is over"'
    # An instance that is launched too late ends at once. A timer in the past would not start.
    ends_s=$(date -d "$BOOT_ENDS_AT" +%s)
    soonest_s=$(($(date +%s) + 30))
    start_timer nitro-lifetime "@$((ends_s > soonest_s ? ends_s : soonest_s))"
    limit_phase image "$BOOT_IMAGE_LIMIT_S"
}

start_docker() {
    # The ECS agent has no cluster here. Not every image has the agent.
    systemctl disable --now ecs || true
    systemctl enable --now docker
}

tell_guard() {  # that this instance boots, so that the deployment is not taken down for its silence
    local entry ordered
    entry=$(retry write_ledger starting "")
    # This role may not name the guard's order in a condition, so it reads the order, if there is one.
    ordered=$(printf %s "$entry" | pick Attributes teardown M stack S 2>/dev/null) || ordered=""
    if [ "$ordered" = "$NITRO_STACK" ]; then
        give_up "the deployment is being taken down"
        exit 0
    fi
}

read_stack() {
    local created
    created=$(retry aws_call cloudformation DescribeStacks "StackName=$NITRO_STACK" | element CreationTime)
    NITRO_BILLED_SINCE=$(date -d "$created" +%s)
    export NITRO_BILLED_SINCE
}

mark_launch() {  # FOLDER
    date -u +%FT%TZ | put "$1$NITRO_INSTANCE_ID"
}

count_launch() {  # counts this deployment's launches, without earlier deployments of the run
    local launches deployment="launches/${NITRO_STACK##*/}/"
    retry mark_launch "$deployment"
    launches=$(retry aws_call s3 ListObjectsV2 "Bucket=$NITRO_RESULTS_BUCKET" \
        "Prefix=$NITRO_RESULTS_PREFIX$deployment" | element KeyCount)
    echo "launch $launches of $BOOT_LAUNCHES_MAX"
    if [ "$launches" -gt "$BOOT_LAUNCHES_MAX" ]; then
        give_up "this was launch $launches of at most $BOOT_LAUNCHES_MAX"
        exit 0
    fi
    is_counted=1
    touch "$here/counted"
}

get_files() {
    retry aws_call s3 GetObject "Bucket=$BOOT_FILES_BUCKET" "Key=$BOOT_FILES_KEY" >"$here/files.zip"
    python3 -m zipfile -e "$here/files.zip" "$here"
}

log_in() {
    local password
    password=$(aws_call ecr GetAuthorizationToken | pick authorizationData 0 authorizationToken | base64 --decode)
    printf %s "${password#AWS:}" | docker login --username AWS --password-stdin "${BOOT_IMAGE%%/*}"
}

# The CDK names an image by the hash of its sources, in a repository that never overwrites a name. The run's record keeps
# the digest of the image that was pulled, and the machine image's id.
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

keep_connections() {  # keepalives: the network between here and Lambda drops idle connections after minutes
    mkdir -p "$root/etc/sysctl.d"
    printf 'net.ipv4.tcp_keepalive_%s\n' time=60 intvl=15 probes=8 >"$root/etc/sysctl.d/90-nitro.conf"
    systemctl restart systemd-sysctl
}

start_learner() {
    local docker total_kib options watch=""
    docker=$(command -v docker)
    read -r _ total_kib _ </proc/meminfo
    mkdir -p "$run"
    chown "$nobody:$nobody" "$run"
    # Each of a thousand actors needs a socket and a thread. The learner's processes share memory. Actors reach the cache
    # on the instance's address, and the metadata service allows one hop, hence the host's network. In its non-blocking
    # mode, awslogs loses lines if CloudWatch does not answer, but does not block the run.
    options=(
        --name=nitro-learner --network=host --ipc=host --cap-drop=ALL --security-opt=no-new-privileges
        --pids-limit=-1 --ulimit=nofile=65536:65536 "--memory=$((total_kib - 524288))k" ${BOOT_GPUS:+"--gpus=$BOOT_GPUS"}
        "--env-file=$root/etc/nitro/deployment.env" "--env=HOME=$run" "--volume=$here:$here:ro" "--volume=$run:$run"
        --log-driver=awslogs "--log-opt=awslogs-region=$BOOT_REGION" "--log-opt=awslogs-group=$BOOT_LOG_GROUP"
        "--log-opt=awslogs-stream=$NITRO_INSTANCE_ID/learner" --log-opt=mode=non-blocking)
    if [ "$BOOT_MARKET" = spot ]; then
        watch=nitro-interruption.service
        write_ending nitro-interruption "Ends a spot instance that EC2 takes back" watch-interruption exec
    fi
    # Exit codes are the container's: 128 + N after signal N, and 125 if Docker could not start it. With 75, another
    # learner continues the run, so this learner and its instance end.
    cat >"$units/nitro-learner.service" <<END
[Unit]
Description=Nitro learner
Wants=network-online.target docker.service $watch
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

if [ $# -gt 0 ]; then
    if [ -e "$root/etc/nitro/deployment.env" ]; then
        # shellcheck disable=SC1091
        set -a && . "$root/etc/nitro/deployment.env" && set +a
    fi
    if [ -e "$logs/learner.log" ]; then
        log="$logs/learner.log"
    fi
    "${1//-/_}" "${@:2}"
    exit 0
fi
trap 'failed "$LINENO" "$BASH_COMMAND"' ERR
mkdir -p "$here" "$logs"
chmod 755 "$here"
exec > >(tee -a "$log") 2>&1
install -m 700 "$0" "$here/boot.sh"
run_step lifetime limit_lifetime
run_step docker start_docker
run_step connections keep_connections
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
